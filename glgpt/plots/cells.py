"""Prepares matrices to be drawn in small cells of a picture: reshapes them, and defines their colour range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The colour range ends at this many times the mean magnitude of the values; the web page does the same.
REACH = 2.5
FLAT = 6  # matrices with fewer rows are folded: flattened and broken into rows of equal length


def folded(values: NDArray[np.float32], aspect: float) -> NDArray[np.float32]:
    """Returns a matrix for a cell that is `aspect` times as wide as high.

    Flattens a matrix of fewer than `FLAT` rows and breaks it into rows of equal length, padded with zeros. The length
    is chosen so that each value covers an almost square area of the cell. Returns other matrices unchanged.
    """
    if len(values) >= FLAT:
        return values
    columns = 2 ** max(0, round(np.log2(np.sqrt(values.size * aspect))))
    rows = -(-values.size // columns)
    return np.pad(values.ravel(), (0, rows * columns - values.size)).reshape(rows, columns)
