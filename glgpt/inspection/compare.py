"""Measuring a model against a reference: logits position by position, then every intermediate in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.inference.model import GPT2
from glgpt.inspection.reference import Case, shared_start
from glgpt.program.formats import FORMATS


@dataclass(frozen=True)
class Tolerance:
    """How far a value may be from its reference: `atol + rtol * |reference|`; by default as f32 keeps it.

    `greedy`: greedy tokens must be the reference's. Weights that were rounded to few bits choose others now and then.
    """

    atol: float = FORMATS["f32"].tolerance[0]
    rtol: float = FORMATS["f32"].tolerance[1]
    greedy: bool = True

    @classmethod
    def of(cls, dtype: str, atol: float | None = None, rtol: float | None = None) -> Tolerance:
        """What models of this dtype keep, but where a number is given."""
        fmt = FORMATS[dtype]
        usual = fmt.rounded or fmt.tolerance
        return cls(usual[0] if atol is None else atol, usual[1] if rtol is None else rtol, not fmt.quantised)

    def excess(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Error over allowed error, element by element: 1 is the limit; inf where only one of the two is finite."""
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(ours) & np.isfinite(theirs)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            ratio = np.abs(ours - theirs) / (self.atol + self.rtol * np.abs(theirs))
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        return np.where(same, 0.0, np.where(finite, ratio, np.inf))


@dataclass(frozen=True)
class Worst:
    """Where an array is furthest beyond, or closest to, its tolerance."""

    name: str
    index: tuple[int, ...]
    ours: float
    reference: float
    error: float
    excess: float

    @property
    def within(self) -> bool:
        """Whether the whole array keeps the tolerance."""
        return self.excess <= 1

    def __str__(self) -> str:
        place = f"{self.name}[{', '.join(map(str, self.index))}]"
        return f"{place}: glgpt {self.ours:.9g}, reference {self.reference:.9g}, differs by {self.error:.3g}"


def worst_of(name: str, ours: np.ndarray, theirs: np.ndarray, tolerance: Tolerance) -> Worst:
    """The element with the largest share of its tolerance. Raises GlgptError when shapes differ."""
    if ours.shape != theirs.shape:
        raise GlgptError(f"{name}: the reference is {list(theirs.shape)}, the model gives {list(ours.shape)}")
    excess = tolerance.excess(ours, theirs)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
    a, b = float(ours[index]), float(theirs[index])
    return Worst(name, index, a, b, abs(a - b), float(excess[index]))


@dataclass
class CaseResult:
    """One sequence compared."""

    name: str
    tokens: int
    max_abs: list[float]  # a position each
    kl: list[float]  # nats, reference to glgpt, a position each
    top1: list[bool]
    worst: Worst
    greedy: tuple[int, int] | None = None  # how many greedy tokens agree from the start, of how many
    activations: list[Worst] = field(default_factory=list)  # in the order they are computed
    greedy_counts: bool = True  # whether those tokens must agree

    @property
    def first_off(self) -> Worst | None:
        """The first intermediate beyond tolerance."""
        return next((w for w in self.activations if not w.within), None)

    @property
    def within(self) -> bool:
        """Whether all that was compared keeps the tolerance."""
        same_greedy = not self.greedy_counts or self.greedy is None or self.greedy[0] == self.greedy[1]
        return self.worst.within and same_greedy and self.first_off is None

    def as_json(self) -> dict[str, Any]:
        """The figures, for `--json`."""
        first = self.first_off
        return asdict(self) | {"within": self.within, "first_off": first and asdict(first)}


def kl_divergence(reference: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """KL(reference || ours) of two `[T, vocab]` of logits, in nats a row."""
    p, q = (x.astype(np.float64) - x.max(axis=1, keepdims=True) for x in (reference, ours))
    p -= np.log(np.exp(p).sum(axis=1, keepdims=True))
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    result: np.ndarray = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0)
    return result


def compare(model: GPT2, case: Case, tolerance: Tolerance, activations: bool = False) -> CaseResult:
    """Runs one case; with `activations`, also every intermediate that the reference holds."""
    known = list(model.config.activations)
    unknown = sorted(set(case.arrays) - set(known))
    if unknown:
        raise GlgptError(f"reference {case.name}: {unknown[0]} is no activation of {model.name}")
    names = [name for name in known if name in case.arrays and name != "logits"]
    cache: dict[str, np.ndarray] = {}
    if activations and names:
        logits, cache = model.run_with_cache(case.tokens, names)
    else:
        logits = model.logits(case.tokens)
    theirs = case.arrays["logits"]
    worst = worst_of("logits", logits, theirs, tolerance)
    with np.errstate(invalid="ignore"):  # a reference may hold infinities
        apart, kl = np.abs(logits.astype(np.float64) - theirs), kl_divergence(theirs, logits).tolist()
    return CaseResult(
        name=case.name,
        tokens=len(case.tokens),
        max_abs=apart.max(axis=1).tolist(),
        kl=kl,
        top1=(logits.argmax(axis=1) == theirs.argmax(axis=1)).tolist(),
        worst=worst,
        greedy=_greedy(model, case),
        activations=[*(worst_of(n, cache[n], case.arrays[n], tolerance) for n in names), worst] if activations else [],
        greedy_counts=tolerance.greedy,
    )


def _greedy(model: GPT2, case: Case) -> tuple[int, int] | None:
    if case.greedy is None:
        return None
    start = shared_start(case.tokens, case.greedy)
    wanted = case.greedy[start:]
    end = next((at for at, token in enumerate(wanted) if token in model.eos_ids), len(wanted))
    wanted = wanted[: end + 1]
    got = list(model.generate_ids(case.greedy[:start], len(wanted), temperature=0.0, eos=False))
    return shared_start(got, wanted), len(wanted)


def render(results: Sequence[CaseResult], tolerance: Tolerance) -> str:
    """A table with one line a case, then what is off or, if nothing is, the closest to it."""
    lines = [
        f"{'case':>6} {'tokens':>6} {'max error':>10} {'at':>5} {'mean KL':>9} {'worst KL':>9} {'top-1':>9}  greedy"
    ]
    for r in results:
        at = int(np.argmax(np.nan_to_num(r.max_abs, nan=np.inf)))
        greedy = f"{r.greedy[0]} of {r.greedy[1]}" if r.greedy else "-"
        lines.append(
            f"{r.name:>6} {r.tokens:>6} {r.max_abs[at]:>10.2e} {at:>5} {np.mean(r.kl):>9.1e} {max(r.kl):>9.1e}"
            f" {f'{sum(r.top1)}/{r.tokens}':>9}  {greedy}"
        )
    for r in results:
        for room, group in groupby(r.activations, key=lambda w: ".".join(w.name.split(".")[:2])):
            worst = max(group, key=lambda w: w.excess)
            lines.append(f"case {r.name}  {room:<7} {'ok ' if worst.within else 'OFF'}  worst {worst}")
    close = max(results, key=lambda r: r.worst.excess)
    lines.append(f"worst logit, case {close.name}: {close.worst}")
    for r in results:
        if r.first_off:
            lines.append(f"case {r.name} leaves tolerance first at {r.first_off}")
        if r.greedy and r.greedy[0] != r.greedy[1]:
            lines.append(f"case {r.name}: greedy tokens agree up to {r.greedy[0]} of {r.greedy[1]}")
    verdict = "within" if all(r.within for r in results) else "BEYOND"
    lines.append(f"{verdict} tolerance {tolerance.atol:g} + {tolerance.rtol:g}|reference|")
    return "\n".join(lines)
