"""Symbolic tensors, on which ops are recorded before any texture exists."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.layout import Layout


@dataclass(frozen=True, eq=False)
class Tensor:
    """A symbolic tensor: its layout, a name, and a role; a tensor that is not scratch has the texture of its name."""

    layout: Layout
    name: str
    role: str = "scratch"

    @property
    def rows(self) -> int:
        """Returns the rows of the matrix."""
        return self.layout.rows

    @property
    def cols(self) -> int:
        """Returns the columns of the matrix."""
        return self.layout.cols
