"""Differentiates recorded ops in reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glgpt.program.tensor import Tensor

Gradients = Sequence[Tensor | None]
# The vector-Jacobian product of an op. It takes the gradients of the op's outputs and, for each input, the sum of the
# terms of the input's gradient so far. It returns these sums with the op's terms added. None stands for no gradient.
Vjp = Callable[[Sequence[Tensor], Gradients], Gradients]


class Tape:
    """The differentiable ops in the order of recording, for reverse-mode differentiation (Griewank and Walther 2008).

    If several ops read a tensor, the tensor's gradient is a sum with a term from each op. An op's vjp receives the sum
    so far and returns the new sum, so that the pass that computes the op's term can also add it.
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
