"""Scales the loss in f16 training, to keep gradients in the range of float16 (Micikevicius et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.errors import GlgptError

START = 2.0**16
MIN_SCALE, MAX_SCALE = 1.0, 2.0**24
GROW_AFTER = 2000  # number of steps without an overflow after which the scale doubles


class OverflowedError(GlgptError):
    """Raised if gradients overflow f16 even with the smallest loss scale; `what` describes the overflow in `step`."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"step {step}: {what}; use a lower lr or clip, or train with precision f32")
        self.step, self.what = step, what


@dataclass(frozen=True)
class LossScale:
    """The factor by which the loss is multiplied (`value`, a power of two), and the number of steps taken with it.

    A gradient above the largest float16 makes the norm of all gradients infinite, and the step changes no parameter.
    Then the scale is halved and the step is repeated. After `GROW_AFTER` steps without an overflow, the scale doubles,
    because small gradients underflow to zero if the scale is too small.
    """

    value: float = START
    steps: int = 0

    def after_step(self) -> LossScale:
        """Returns the scale for the next step, after a step without overflow."""
        if self.steps + 1 < GROW_AFTER:
            return LossScale(self.value, self.steps + 1)
        return LossScale(min(2 * self.value, MAX_SCALE), 0)

    def after_overflow(self, step: int) -> LossScale:
        """Returns the scale for repeating the step. Raises OverflowedError if this scale is already the smallest."""
        if self.value <= MIN_SCALE:
            raise OverflowedError(step, f"gradients overflow f16 even with a loss scale of {self.value:g}")
        return LossScale(max(self.value / 2, MIN_SCALE), 0)
