"""Runs a short, seeded part of `make fuzz`, and all stored regressions."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import guided
import harness
import pytest
from harness import Parser, fuzz, limited, regressions
from mutations import mutated
from targets import TARGETS
from tokenizer_targets import LONGEST, described_text

from glgpt.errors import GlgptError


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_hostile_files_are_refused_or_read_rightly(target: Parser) -> None:
    verdicts, findings = fuzz(target, target.short, seed=1)
    assert not findings, "\n".join(f"{f.what} (seed {f.seed}, steps {f.steps})" for f in findings)
    assert verdicts["refused"] + verdicts["accepted"] == target.short


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


class PanicException(BaseException):
    """Imitates the exception of a Rust library that panics."""


class Broken:
    """Provides a target with each kind of fault."""

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
        if kind == "panic":
            raise PanicException(kind)
        if kind == "lines":
            raise GlgptError("two\nlines")


@pytest.mark.slow
def test_every_kind_of_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SECONDS", 0.5)
    kinds = ["fine", "raise", "panic", "memory", "lines", "crash", "hang", "fine"]
    found = list(limited(Broken(), [{"kind": kind.encode()} for kind in kinds]))
    wanted = [
        "accepted",
        "KeyError",
        "PanicException",
        "MemoryError",
        "a message",
        "the process ended",
        "more than 0.5",
        "accepted",
    ]
    assert len(found) == len(wanted) and all(a.startswith(b) for a, b in zip(found, wanted, strict=True)), found


def test_a_crash_leaves_no_trace_in_the_log(tmp_path: Path) -> None:
    """Fails if the tests' fault handler logs the crash of a case, which would look like a crash of the tests."""
    with (tmp_path / "log").open("w+") as log:
        was = faulthandler.is_enabled()
        faulthandler.enable(log)
        try:
            assert next(iter(limited(Broken(), [{"kind": b"crash"}]))).startswith("the process ended")
        finally:
            faulthandler.enable(sys.__stderr__) if was else faulthandler.disable()
        assert not (tmp_path / "log").read_text()


def test_a_case_that_hangs_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Starts(Broken):
        def run(self, folder: object) -> None:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (tmp_path / "started").write_text(str(child.pid))
            child.wait()

    monkeypatch.setattr(harness, "SECONDS", 0.2)
    assert list(limited(Starts(), [{}])) == ["more than 0.2 s"]
    process = Path("/proc") / (tmp_path / "started").read_text() / "stat"
    for _ in range(100):
        if not process.exists() or ") Z " in process.read_text():
            return
        time.sleep(0.1)
    raise AssertionError("the process continues")


def test_an_interrupt_from_the_keyboard_is_not_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.verdict(interrupted, Path())
    monkeypatch.setattr(harness, "fuzz", interrupted)
    assert harness.main(TARGETS[:1]) == 130


def test_texts_of_parts_are_mutated_within_their_bounds() -> None:
    seed = next(target for target in TARGETS if target.name == "tokenizer-text").seeds()[0]
    texts = [_text_of(mutated(seed, [step])) for step in range(200)]
    assert len(set(texts)) > 80 and any("\ud800" in text for text in texts) and max(map(len, texts)) > 20_000


def _text_of(files: dict[str, bytes]) -> str:
    with tempfile.TemporaryDirectory() as name:
        harness.write(Path(name), files)
        try:
            return described_text(Path(name), LONGEST)[1]
        except GlgptError:
            return ""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_mutated_is_accepted_before(target: Parser) -> None:
    """Fails if a seed is refused, such as an outdated manifest.json. Mutations of a refused file would find nothing."""
    assert set(limited(target, target.seeds())) == {"accepted"}
