"""Computes a training step's texture memory and time from the recorded program, before textures are allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glgpt.errors import GlgptError, TextureError
from glgpt.program.spec import ROLES, Program
from glgpt.training.program import Recipe
from glgpt.tuning.kernel_selection import Choice, estimated_seconds

MIB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """Resources that a training needs: texture bytes by role, and the estimated seconds of a step."""

    recipe: Recipe
    memory: Mapping[str, int]
    step_s: float

    @property
    def fixed(self) -> int:
        """Bytes for parameters, gradients, moments (AdamW's running averages) and caches of keys and values.

        The options `--batch`, `--precision` and `--recompute` do not reduce this number.
        """
        return self.memory["weight"] + self.memory["state"]

    @property
    def total(self) -> int:
        """Bytes of all textures."""
        return sum(self.memory.values())

    def check(self, limit: int) -> None:
        """Raises GlgptError if the textures exceed `limit` bytes (0: unlimited).

        The message names options that reduce memory.
        """
        if not limit or self.total <= limit:
            return
        need = f"training needs {self}, more than the {limit / MIB:,.0f} MiB of --max-texture-memory"
        if self.fixed > limit:
            raise GlgptError(f"{need}; the model alone exceeds it: train a smaller one, or raise the limit")
        raise GlgptError(f"{need}; {self._remedy}")

    def check_memory(self, free: int | None) -> None:
        """Raises GlgptError if the textures exceed `free` bytes (None: unknown).

        Software OpenGL stores textures in main memory; `free` is what is available of it.
        """
        if free is None or self.total <= free:
            return
        need = f"training needs {self}, and software OpenGL has {free / MIB:,.0f} MiB of free main memory for them"
        remedy = "train a smaller model" if self.fixed > free else self._remedy
        most = f"--max-texture-memory {-(-self.total // MIB)}MiB"
        raise GlgptError(f"{need}; {remedy}, or try it all the same with {most}")

    def refused(self, error: TextureError) -> TextureError:
        """Returns the error for a driver that refused one of the textures."""
        return TextureError(f"{error.reason}: training needs {self}", self._remedy)

    @property
    def _remedy(self) -> str:
        r = self.recipe
        smaller = [
            f"--{name} below {value}" for name, value in (("batch", r.batch), ("context", r.context)) if value > 1
        ]
        smaller += ["--precision f16"] * (r.precision == "f32") + ["--recompute"] * (not r.recompute)
        return f"to reduce it, use {', '.join(smaller)}" if smaller else "train a smaller model"

    def __str__(self) -> str:
        batch = f"batches of {self.recipe.batch} x {self.recipe.context} tokens"
        total, fixed, rest = (f"{n / MIB:,.0f}" for n in (self.total, self.fixed, self.total - self.fixed))
        return f"{total} MiB of textures, {fixed} for parameters, gradients and moments and {rest} for {batch}"


def planned(program: Program, recipe: Recipe, choice: Choice) -> Plan:
    """Returns the plan of a training program on the device of `choice`."""
    entries = ["backward", *["accumulate"] * (recipe.accumulate - 1), "update"]
    seconds = sum(estimated_seconds(program, entry, choice) for entry in entries)
    return Plan(recipe, {role: program.nbytes([role]) for role in ROLES}, seconds)
