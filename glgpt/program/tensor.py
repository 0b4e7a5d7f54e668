"""Defines symbolic tensors, on which ops are recorded before any texture exists."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.layout import Layout


@dataclass(frozen=True, eq=False)
class Tensor:
    """A symbolic tensor: a matrix with a layout, a name and a role (`program.spec.Texture`).

    Unless the role is scratch, the tensor has its own texture, which has the same name.
    """

    layout: Layout
    name: str
    role: str = "scratch"

    @property
    def rows(self) -> int:
        """Returns the number of rows of the matrix."""
        return self.layout.rows

    @property
    def cols(self) -> int:
        """Returns the number of columns of the matrix."""
        return self.layout.cols
