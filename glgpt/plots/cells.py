"""Prepares matrices to be drawn in small cells of a picture: reshapes them, and defines their colour range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REACH = 2.5  # a value of this many times the mean magnitude gets the strongest colour, as on the web page
FLAT = 6  # matrices with fewer rows are folded: flattened and broken into rows of equal length


def folded(values: NDArray[np.float32], aspect: float) -> NDArray[np.float32]:
    """Returns a matrix for a cell that is `aspect` times as wide as high.

    Flattens a matrix of fewer than `FLAT` rows and breaks it into rows of equal length, padded with zeros, so that each
    value covers an about square area of the cell. Returns other matrices unchanged.
    """
    if len(values) >= FLAT:
        return values
    columns = 2 ** max(0, round(np.log2(np.sqrt(values.size * aspect))))
    rows = -(-values.size // columns)
    return np.pad(values.ravel(), (0, rows * columns - values.size)).reshape(rows, columns)
