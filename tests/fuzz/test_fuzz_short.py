"""A short, seeded part of `make fuzz`, and all stored regressions."""

from __future__ import annotations

import sys

import guided
import harness
import pytest
from harness import fuzz, limited, regressions
from targets import TARGETS, Parser

SHORT = 150  # cases of each parser


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_files_are_refused_or_read_rightly(target: Parser) -> None:
    verdicts, findings = fuzz(target, SHORT, seed=1)
    assert not findings, "\n".join(f"{f.what} (seed {f.seed}, steps {f.steps})" for f in findings)
    assert verdicts["refused"] + verdicts["accepted"] == SHORT


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_was_found_stays_mended(target: Parser) -> None:
    kept = regressions(target)
    found = dict(zip(kept, limited(target, list(kept.values())), strict=True))
    assert all(what in ("refused", "accepted") for what in found.values()), found


def test_guided_inputs_are_all_files_of_a_target() -> None:
    files = {"b": b"", "a/x.json": b"{}", "c": b"\0" * 300}
    assert guided.split(guided.joined(files), sorted(files)) == files
    assert guided.split(guided.joined(files) + b"x", sorted(files)) is None
    assert guided.split(b"", ["a"]) is None
    assert set(guided.TARGETS.split(",")) < {target.name for target in TARGETS}


def test_guided_fuzzing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    with pytest.raises(SystemExit, match="pip install atheris"):
        guided.main()


class Broken:
    """A parser with each kind of fault."""

    name = "broken"

    def seeds(self) -> list[dict[str, bytes]]:
        return [{"a.json": b"{}"}]

    def run(self, folder: object) -> None:
        kind = (folder / "kind").read_text()  # type: ignore[operator]
        if kind == "hang":
            while True:
                pass
        if kind == "memory":
            bytearray(4 << 30)
        if kind == "crash":
            import os

            os.abort()
        if kind == "raise":
            raise KeyError(kind)
        if kind == "lines":
            from glgpt.errors import GlgptError

            raise GlgptError("two\nlines")


def test_every_kind_of_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SECONDS", 0.5)
    kinds = ["fine", "raise", "memory", "lines", "crash", "hang", "fine"]
    found = list(limited(Broken(), [{"kind": kind.encode()} for kind in kinds]))
    wanted = [
        "accepted",
        "KeyError",
        "MemoryError",
        "a message",
        "the process ended",
        "more than 0.5",
        "accepted",
    ]
    assert len(found) == len(wanted) and all(a.startswith(b) for a, b in zip(found, wanted, strict=True)), found


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_mutated_is_accepted_before(target: Parser) -> None:
    """Checks that seeds are accepted, since mutations of refused files find nothing: manifest.json must be current."""
    assert set(limited(target, target.seeds())) == {"accepted"}
