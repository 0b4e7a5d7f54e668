"""Reverse-mode differentiation over recorded ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glgpt.program.tensor import Tensor

Gradients = Sequence[Tensor | None]
# Takes (gradients of the outputs, gradients of the inputs so far); returns the inputs' gradients including this op.
Vjp = Callable[[Sequence[Tensor], Gradients], Gradients]


class Tape:
    """The differentiable ops in the order of recording, for reverse-mode differentiation (Griewank and Walther 2008).

    An op's vjp receives the sums so far of its inputs' gradients and returns the new sums, so that an addition can be
    fused into the pass that computes the last term.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[tuple[Tensor, ...], tuple[Tensor | None, ...], Vjp]] = []

    def note(self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor | None, ...], vjp: Vjp) -> None:
        """Records one op."""
        self._notes.append((outputs, inputs, vjp))

    def backward(self, sums: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Records the backward pass from the gradients `sums`; returns the gradients of all tensors that it reaches."""
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
