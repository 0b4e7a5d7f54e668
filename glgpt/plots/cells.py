"""Prepares matrices for small cells of a picture: their shape and their colour range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REACH = 2.5  # a value of this many mean magnitudes has the strongest colour, as in the page
FLAT = 6  # matrices with fewer rows are folded


def folded(values: NDArray[np.float32], aspect: float) -> NDArray[np.float32]:
    """Returns a matrix for a cell `aspect` times as wide as high; wraps a flat one into several rows, padded with 0."""
    if len(values) >= FLAT:
        return values
    columns = 2 ** max(0, round(np.log2(np.sqrt(values.size * aspect))))
    rows = -(-values.size // columns)
    return np.pad(values.ravel(), (0, rows * columns - values.size)).reshape(rows, columns)
