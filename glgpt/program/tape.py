"""Reverse-mode differentiation over recorded ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glgpt.program.tensor import Tensor

Gradients = Sequence[Tensor | None]
# The gradient of an op, a vector-Jacobian product: takes (gradients of the op's outputs, sums so far of the gradients
# of its inputs) and returns these sums with the terms of this op added. None: no gradient.
Vjp = Callable[[Sequence[Tensor], Gradients], Gradients]


class Tape:
    """The differentiable ops in the order of recording, for reverse-mode differentiation (Griewank and Walther 2008).

    If several ops read a tensor, its gradient is a sum with a term from each of them. An op's vjp receives the sums so
    far and returns the new sums, so that it can fuse the addition into the pass that computes its term.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[tuple[Tensor, ...], tuple[Tensor | None, ...], Vjp]] = []

    def note(self, outputs: tuple[Tensor, ...], inputs: tuple[Tensor | None, ...], vjp: Vjp) -> None:
        """Records one op: its outputs, its inputs (None: an input that is not given), and its vjp."""
        self._notes.append((outputs, inputs, vjp))

    def backward(self, sums: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Records the backward pass, which begins with the gradients `sums` (tensor -> gradient).

        Returns the gradients of all tensors that the pass reaches and that no op on the tape computed. Raises
        ValueError if only some outputs of an op have a gradient.
        """
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
