"""What a training in halves multiplies its loss with, so that its gradients fit them (Micikevicius et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.errors import GlgptError

START = 2.0**16
LEAST, MOST = 1.0, 2.0**24
GROW_AFTER = 2000  # steps without an overflow


class OverflowedError(GlgptError):
    """Gradients that no loss scale makes fit halves: `what` is wrong with those of `step`."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"step {step}: {what}; take a lower lr or clip, or train with precision f32")
        self.step, self.what = step, what


@dataclass(frozen=True)
class LossScale:
    """A power of two, and how many steps were taken with it.

    A gradient beyond the largest half makes the norm of all gradients infinite, which changes no parameter: the scale
    halves, and the step is taken again. After `GROW_AFTER` steps it doubles, since small gradients become zero.
    """

    value: float = START
    steps: int = 0

    def after_step(self) -> LossScale:
        """That of the step after one that fitted."""
        if self.steps + 1 < GROW_AFTER:
            return LossScale(self.value, self.steps + 1)
        return LossScale(min(2 * self.value, MOST), 0)

    def after_overflow(self, step: int) -> LossScale:
        """That to take the step again with. Raises OverflowedError where the scale is as small as it gets."""
        if self.value <= LEAST:
            raise OverflowedError(step, f"gradients are beyond halves even with a loss scale of {self.value:g}")
        return LossScale(max(self.value / 2, LEAST), 0)
