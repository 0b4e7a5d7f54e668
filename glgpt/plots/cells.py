"""Matrices as small cells of a picture: their shape, and how far their colours reach."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REACH = 2.5  # mean magnitudes at which a colour is at its strongest, as the page has it
FLAT = 6  # rows below which a matrix is folded


def folded(values: NDArray[np.float32], aspect: float) -> NDArray[np.float32]:
    """A matrix for a cell `aspect` times as wide as high: a flat one's values in several rows, zeros behind them."""
    if len(values) >= FLAT:
        return values
    columns = 2 ** max(0, round(np.log2(np.sqrt(values.size * aspect))))
    rows = -(-values.size // columns)
    return np.pad(values.ravel(), (0, rows * columns - values.size)).reshape(rows, columns)
