"""Runs cases of a target in child processes with limits, judges each case, and shortens the findings.

A verdict is one of:

- refused, with one printable line
- accepted, with the same result as the reference library
- a finding: an exception other than GlgptError (including a library's panic), a message of several lines, a difference
  from the reference library, use of more than `SECONDS` or `MEMORY`, or a crash
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mutations import Files, mutated

from glgpt.errors import GlgptError

SECONDS = 5.0  # maximum processor seconds of a case
MEMORY = 1 << 30  # bytes that a child may allocate in addition to its memory at the start
STALL_FACTOR = 6  # a case that computes nothing may wait for this many times SECONDS
BATCH = 500  # maximum number of cases in a child
LONGEST = 1000  # maximum characters of a message
REGRESSIONS = Path(__file__).parent / "regressions"


class Difference(Exception):  # noqa: N818
    """Raised if glgpt accepts a file but reads it wrongly, for example as other values than the reference library."""


class Target(Protocol):
    """Describes a parser to fuzz: valid files, and a function that reads mutated files."""

    name: str

    def seeds(self) -> list[Files]:
        """Returns small valid files."""
        ...

    def run(self, folder: Path) -> None:
        """Reads a folder's files. Raises GlgptError to refuse them, and Difference if glgpt reads them wrongly."""
        ...


@dataclass(frozen=True)
class Parser:
    """Makes a target of two functions."""

    name: str
    make: Callable[[], list[Files]]
    run: Callable[[Path], None]
    short: int = 80  # cases in `make test-all`; fewer for slow targets

    def seeds(self) -> list[Files]:
        """Returns the files of the first call of `make`."""
        return _made(self)


@functools.cache
def _made(parser: Parser) -> list[Files]:
    return parser.make()


@dataclass(frozen=True)
class Finding:
    target: str
    seed: int  # index of one of the target's seeds
    steps: list[int]
    what: str


def verdict(run: Callable[[Path], None], folder: Path) -> str:
    """Returns "refused", "accepted", or a description of the fault. Only KeyboardInterrupt is raised."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            run(folder)
    except GlgptError as error:
        message = str(error)
        if not message.isprintable() or not message or len(message) > LONGEST:
            return f"a message that is not a printable line of at most {LONGEST} characters: {message[:200]!r}"
        return "refused"
    except SystemExit as end:
        said = printed.getvalue()
        if end.code in (0, None):
            return "accepted"
        lines = said.strip().splitlines()
        fine = end.code == 2 and len(lines) == 1 and lines[0].isprintable()
        return "refused" if fine else f"exit {end.code} with {said[:200]!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the panic of a Rust library is not an Exception
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:160]} ({Path(where.filename).name}:{where.lineno})"
    return "accepted"


def write(folder: Path, files: Files) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def judged(target: Target, files: Files) -> str:
    """Returns the verdict on files, judged in this process."""
    folder = Path(tempfile.mkdtemp(prefix="glgpt-fuzz-"))
    try:
        write(folder, files)
        return verdict(target.run, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def limited(target: Target, cases: Sequence[Files]) -> Iterator[str]:
    """Yields the verdict on each of the cases, judged in child processes with limits on time and memory.

    A child leads its own process group. Processes that a case started end with the group, and an interrupt from the
    keyboard reaches only this process.
    """
    at = 0
    while at < len(cases):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            _child(target, cases[at:], write)
        os.close(write)
        with contextlib.suppress(OSError):  # the child also does this, and may have ended
            os.setpgid(child, child)
        try:
            with os.fdopen(read, "rb") as pipe:
                buffer, waited, used = b"", 0, 0.0
                while at < len(cases):
                    if not select.select([pipe], [], [], SECONDS)[0]:
                        waited += 1  # a case that computes has SECONDS of processor time, even on a busy machine
                        if _cpu(child) - used < SECONDS and waited < STALL_FACTOR:
                            continue
                        yield f"more than {SECONDS:g} s"
                        at += 1
                        break
                    waited, used = 0, _cpu(child)
                    block = os.read(pipe.fileno(), 1 << 16)
                    if not block:
                        code = _end(child)
                        child = 0
                        yield f"the process ended with {code}"
                        at += 1
                        break
                    buffer += block
                    *lines, buffer = buffer.split(b"\n")
                    for line in lines:
                        yield json.loads(line)
                        at += 1
        finally:
            if child:
                _end(child)


def _end(child: int) -> int:
    """Ends a child and the processes that its cases left. Returns the child's exit code."""
    with contextlib.suppress(ProcessLookupError):  # the child ended before it had a group
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _cpu(process: int) -> float:
    """Returns the processor seconds of a process and of its ended children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _child(target: Target, cases: Sequence[Files], pipe: int) -> None:
    try:
        os.setpgid(0, 0)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()  # pytest's fault handler writes to a copy of stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides messages; the verdict reports a crash
        for files in cases:
            os.write(pipe, json.dumps(judged(target, files)).encode() + b"\n")
    finally:
        os._exit(0)


def case(target: Target, seeds: list[Files], number: int, seed: int) -> tuple[int, list[int]]:
    """Returns the case `number`: the index of its seed, and its mutation steps."""
    draw = random.Random(f"{target.name} {seed} {number}")
    steps = [draw.getrandbits(32) for _ in range(draw.choice([1, 1, 1, 2, 2, 3, 5]))]
    return draw.randrange(len(seeds)), steps


def shortened(target: Target, files: Files, steps: list[int], what: str) -> list[int]:
    """Drops the steps that a finding of the same kind does not need. Returns the other steps."""
    kind = what.split(":", maxsplit=1)[0]
    left = list(steps)
    for step in steps:
        fewer = [s for s in left if s != step]
        if fewer and next(limited(target, [mutated(files, fewer)])).split(":")[0] == kind:
            left = fewer
    return left


def fuzz(target: Target, count: int, seed: int, until: float | None = None) -> tuple[Counter[str], list[Finding]]:
    """Judges `count` cases, or fewer if time runs out. Returns the number of cases by verdict, and the findings.

    Each kind of finding is returned only once, with shortened steps, and at most 20 kinds.
    """
    seeds, verdicts, found = target.seeds(), Counter[str](), {}
    for start in range(0, count, BATCH):
        if until and time.monotonic() > until:
            break
        chosen = [case(target, seeds, n, seed) for n in range(start, min(count, start + BATCH))]
        files = [mutated(seeds[i], steps) for i, steps in chosen]
        for (i, steps), what in zip(chosen, limited(target, files), strict=True):
            verdicts["refused" if what == "refused" else "accepted" if what == "accepted" else "finding"] += 1
            if what not in ("refused", "accepted") and len(found) < 20:
                found.setdefault(what.split(":")[0] + what.rpartition("(")[2], (i, steps, what))
    findings = [
        Finding(target.name, i, shortened(target, seeds[i], steps, what), what) for i, steps, what in found.values()
    ]
    return verdicts, findings


def kept(target: Target, finding: Finding) -> Path:
    """Writes the files of a finding to the regressions, which every later run also judges. Returns the folder."""
    files = mutated(target.seeds()[finding.seed], finding.steps)
    folder = REGRESSIONS / target.name / "-".join(f"{step:08x}" for step in finding.steps[:3])
    write(folder, files)
    return folder


def regressions(target: Target) -> dict[str, Files]:
    """Returns the stored regressions of a target, by name."""
    found = {}
    for folder in sorted(p for p in (REGRESSIONS / target.name).glob("*") if p.is_dir()):
        found[folder.name] = {
            str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
        }
    return found


def main(targets: Sequence[Any]) -> int:
    """Runs `make fuzz` and returns the exit code.

    Reads the variables CASES (per target, default 10,000), SECONDS (for all targets together), SEED and ONLY=name,name.
    """
    try:
        return _fuzzed(targets)
    except KeyboardInterrupt:
        print("interrupted; findings of the targets above are kept", flush=True)
        return 128 + signal.SIGINT


def _fuzzed(targets: Sequence[Any]) -> int:
    only = os.environ.get("ONLY", "")
    chosen = [t for t in targets if not only or t.name in only.split(",")]
    seconds, count, seed = (
        os.environ.get("SECONDS"),
        int(os.environ.get("CASES", "10000")),
        int(os.environ.get("SEED") or 0),
    )
    bad = 0
    for i, target in enumerate(chosen):
        start = time.monotonic()
        until = start + float(seconds) / len(chosen) if seconds else None
        verdicts, findings = fuzz(target, count, seed, until)
        before = list(limited(target, list(regressions(target).values())))
        again = sum(what not in ("refused", "accepted") for what in before)
        bad += len(findings) + again
        took = time.monotonic() - start
        counts = ", ".join(f"{verdicts[kind]:,} {kind}" for kind in ("refused", "accepted"))
        counted = f"{verdicts.total():7,} cases: {counts}, {verdicts['finding']:,} findings"
        before_them = f"({len(before)} kept, {again} fail) in {took:.0f} s [{i + 1}/{len(chosen)}]"
        print(f"{target.name:16} {counted} {before_them}", flush=True)
        for finding in findings:
            print(f"    {finding.what}\n    kept in {kept(target, finding)}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit("run: python tests/fuzz")
