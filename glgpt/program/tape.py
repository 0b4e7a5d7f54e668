"""Reverse-mode differentiation over recorded ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glgpt.program.tensor import Tensor

Gradients = Sequence[Tensor | None]
# Of (the outputs' gradients, the inputs' gradients so far): the inputs' gradients with this op's share.
Vjp = Callable[[Sequence[Tensor], Gradients], Gradients]


class Tape:
    """The differentiable ops in the order they were recorded, to be walked backwards (Griewank and Walther 2008).

    An op's vjp gets the sums so far of its inputs' gradients and returns the new sums, so that an addition can be
    fused into the pass that makes the last term.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[tuple[Tensor, ...], tuple[Tensor | None, ...], Vjp]] = []

    def note(self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor | None, ...], vjp: Vjp) -> None:
        """Remembers one op."""
        self._notes.append((outputs, inputs, vjp))

    def backward(self, sums: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Records the backward pass: `sums` are gradients to begin with, the result those of everything reached."""
        sums = dict(sums)
        for outputs, inputs, vjp in reversed(self._notes):
            given = [sums.pop(y) for y in outputs if y in sums]
            if not given:
                continue
            if len(given) < len(outputs):
                raise ValueError(f"only some of {[y.name for y in outputs]} have a gradient")
            found = vjp(given, [sums.get(x) if x else None for x in inputs])
            sums |= {x: d for x, d in zip(inputs, found, strict=True) if x and d}
        return sums
