"""Compares a model with a reference: the logits of each position, then every activation in order.

A case is a sequence of tokens, together with the logits and activations that the reference computed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection.reference import Case, shared_start
from glgpt.program.tolerance import Tolerance, kl_divergence, tokens_first


@dataclass(frozen=True)
class Worst:
    """The comparison of an array with its reference: the errors of the whole array, and its worst value.

    `index`, `ours`, `reference` and `error` (absolute) describe the worst value: the value whose error is largest
    relative to the tolerance. `relative` is the relative error of the array, and `excess` is the array's error as a
    multiple of the tolerance.
    """

    name: str
    index: tuple[int, ...]
    ours: float
    reference: float
    error: float
    relative: float
    excess: float

    @property
    def within(self) -> bool:
        """True if the whole array is within the tolerance."""
        return self.excess <= 1

    def __str__(self) -> str:
        place = f"{self.name}[{', '.join(map(str, self.index))}]"
        return f"{place}: glgpt {self.ours:.9g}, reference {self.reference:.9g}, differs by {self.error:.3g}"


def worst_of(name: str, ours: np.ndarray, reference: np.ndarray, tolerance: Tolerance) -> Worst:
    """Compares an activation or logits with the reference. Raises GlgptError if the shapes differ."""
    if ours.shape != reference.shape:
        raise GlgptError(f"{name}: the reference is {list(reference.shape)}, the model's is {list(ours.shape)}")
    measured = tolerance.measure(tokens_first(ours), tokens_first(reference))
    token, value = measured.at
    index = (token, value) if ours.ndim == 2 else (value // ours.shape[2], token, value % ours.shape[2])
    a, b = float(ours[index]), float(reference[index])
    return Worst(name, index, a, b, abs(a - b), measured.relative, measured.excess)


@dataclass
class CaseResult:
    """The result of comparing one sequence."""

    name: str
    tokens: int
    max_abs: list[float]  # largest absolute error of the logits, for each position
    kl: list[float]  # KL(reference || glgpt) in nats, for each position
    kl_limit: float  # limit for the mean of `kl`
    top1: list[bool]  # for each position, True if the model and the reference have the same likeliest token
    worst: Worst  # the comparison of the logits
    greedy: tuple[int, int] | None = None  # greedy tokens: (number before the first difference, number in total)
    activations: list[Worst] = field(default_factory=list)  # in the order of computation
    greedy_counts: bool = True  # True: the greedy tokens must agree
    tie: bool = False  # True: at the first difference, both models' tokens are equally likely within the tolerance

    @property
    def first_off(self) -> Worst | None:
        """Returns the first activation beyond the tolerance, or None."""
        return next((w for w in self.activations if not w.within), None)

    @property
    def within(self) -> bool:
        """True if everything that was compared is within the tolerance."""
        same_greedy = not self.greedy_counts or self.tie or self.greedy is None or self.greedy[0] == self.greedy[1]
        close = self.worst.within and bool(np.mean(self.kl) <= self.kl_limit)  # False for NaN
        return close and same_greedy and self.first_off is None

    def as_json(self) -> dict[str, Any]:
        """Returns the results as plain data, for `--json`."""
        first = self.first_off
        return asdict(self) | {"within": self.within, "first_off": first and asdict(first)}


def compare(model: LanguageModel, case: Case, tolerance: Tolerance, activations: bool = False) -> CaseResult:
    """Runs one case and compares the logits and the greedy tokens; with `activations`, also every activation.

    Greedy tokens and activations are compared only if the reference has them.

    Raises GlgptError if the reference has an unknown activation or a greedy token outside the model's vocabulary, or if
    an array's shape differs from the model's.
    """
    known = list(model.config.activations)
    unknown = sorted(set(case.arrays) - set(known))
    if unknown:
        raise GlgptError(f"reference {case.name}: {unknown[0]} is not an activation of {model.name}")
    outside = [token for token in case.greedy or () if not 0 <= token < model.config.vocab_size]
    if outside:
        raise GlgptError(f"reference {case.name}: `greedy` holds {outside[0]}, which is not a token of {model.name}")
    names = [name for name in known if name in case.arrays and name != "logits"]
    cache: dict[str, np.ndarray] = {}
    if activations and names:
        logits, cache = model.run_with_cache(case.tokens, names)
    else:
        logits = model.logits(case.tokens)
    wanted = case.arrays["logits"]
    worst = worst_of("logits", logits, wanted, tolerance)
    with np.errstate(invalid="ignore"):  # a reference may contain infinities
        errors, kl = np.abs(logits.astype(np.float64) - wanted), kl_divergence(wanted, logits).tolist()
    greedy, tie = _greedy(model, case, tolerance)
    return CaseResult(
        name=case.name,
        tokens=len(case.tokens),
        max_abs=errors.max(axis=1).tolist(),
        kl=kl,
        kl_limit=tolerance.kl,
        top1=(logits.argmax(axis=1) == wanted.argmax(axis=1)).tolist(),
        worst=worst,
        greedy=greedy,
        tie=tie,
        activations=[*(worst_of(n, cache[n], case.arrays[n], tolerance) for n in names), worst] if activations else [],
        greedy_counts=tolerance.greedy,
    )


def _greedy(model: LanguageModel, case: Case, tolerance: Tolerance) -> tuple[tuple[int, int] | None, bool]:
    """Returns (number of greedy tokens before the first difference, number of greedy tokens), and True for a tie.

    A tie means that the model's and the reference's tokens at the first difference are equally likely within the
    tolerance. Instead of the pair of numbers, returns None if the case has no greedy tokens.
    """
    if case.greedy is None:
        return None, False
    start = shared_start(case.tokens, case.greedy)
    wanted = case.greedy[start:]
    end = next((at for at, token in enumerate(wanted) if token in model.eos_ids), len(wanted))
    wanted = wanted[: end + 1]
    got = list(model.generate_ids(case.greedy[:start], len(wanted), temperature=0.0, eos=False))
    same = shared_start(got, wanted)
    tie = same < min(len(got), len(wanted))
    if tie:
        logits = model.logits(case.greedy[: start + same][-model.config.n_positions :])[-1]
        tie = tolerance.ties(logits, got[same], wanted[same])
    return (same, len(wanted)), tie


def render(results: Sequence[CaseResult], tolerance: Tolerance) -> str:
    """Formats the results as text: a table of the cases, the largest errors, and whether all are in tolerance."""
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
        for part, group in groupby(r.activations, key=lambda w: ".".join(w.name.split(".")[:2])):
            worst = max(group, key=lambda w: w.excess)
            share = f"{'ok ' if worst.within else 'OFF'} {_percent(worst.excess):>6}"
            lines.append(f"case {r.name}  {part:<7} {share}  worst {worst}")
    close = max(results, key=lambda r: r.worst.excess)
    lines.append(f"worst logit, case {close.name}: {close.worst}")
    for r in results:
        if r.first_off:
            lines.append(f"case {r.name}: first beyond the tolerance: {r.first_off}")
        if r.greedy and r.greedy[0] != r.greedy[1]:
            tie = "; the next two candidates are equally likely within the tolerance" if r.tie else ""
            lines.append(f"case {r.name}: the first {r.greedy[0]} of {r.greedy[1]} greedy tokens agree{tie}")
    verdict = "within" if all(r.within for r in results) else "BEYOND"
    kl = max(float(np.mean(r.kl)) for r in results)
    limits = f"{tolerance}, mean KL {tolerance.kl:g}"
    lines.append(f"{verdict} tolerance ({limits}): logits {_percent(close.worst.excess)}, mean KL {kl:.1e}")
    return "\n".join(lines)


def _percent(excess: float) -> str:
    """Formats a multiple of a tolerance as a percentage."""
    return f"{100 * excess:.1f}%" if excess < 100 else f"{100 * excess:.0e}%"
