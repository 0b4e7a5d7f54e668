"""Symbolic tensors: what ops are recorded on before any texture exists."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.layout import Layout


@dataclass(frozen=True, eq=False)
class Tensor:
    """A symbolic tensor: its layout, and the texture's name where it has one already (all but scratch)."""

    layout: Layout
    name: str
    role: str = "scratch"

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return self.layout.rows

    @property
    def cols(self) -> int:
        """Columns of the matrix."""
        return self.layout.cols
