"""Small faults that the tests must catch: `make mutants`, or `python tests/helpers/mutants.py [NAME…]`.

Each fault is made in a scratch copy of the repository, where its tests then run. A fault is

- caught if its tests fail, as they should, or take too long;
- survived if its tests pass: strengthen a test;
- stale if its text is not found exactly once, or if its tests do not exist or are marked `slow` (`make test` excludes
  those, and must catch every fault): rewrite it in `mutants.json`.

Exit code 0: all were caught. The tests first run without any fault and must pass.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.json")
FAILED, NONE_RAN = 1, 5  # exit codes of pytest


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file`, `find` is replaced by `replace`. `tests` are pytest's arguments, or files of Vitest."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def stale(self) -> str:
        """Returns the reason why the fault cannot be made, or an empty string."""
        path = ROOT / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.find)
        if count != 1:
            return f"{self.find!r} is found {count} times in {self.file}"
        missing = [
            t for t in self.tests if t.startswith(("tests/", "viewer/")) and not (ROOT / t.split("::")[0]).exists()
        ]
        return f"{', '.join(missing)}: no such tests" if missing else ""

    @property
    def in_page(self) -> bool:
        """True if Vitest runs the tests of this fault."""
        return self.tests[0].endswith(".ts")


def mutants() -> list[Mutant]:
    """Returns all faults of mutants.json."""
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in listed]


def copy_to(folder: Path) -> None:
    """Copies the files that git tracks or would add, and links ignored ones that the tests need."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for name in ("viewer/node_modules", "viewer/dist"):
        if (ROOT / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to((ROOT / name).resolve())


@contextmanager
def made(mutant: Mutant, folder: Path) -> Iterator[None]:
    """Makes the fault in the copy for the duration of the block."""
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.find, mutant.replace), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def run(tests: tuple[str, ...], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Runs the tests; returns (exit code, output). The code is None if they took longer than `seconds`."""
    if tests[0].endswith(".ts"):
        command, place = ["npx", "vitest", "run", *(t.removeprefix("viewer/") for t in tests)], folder / "viewer"
    else:
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line"]
        command += ["-m", "not slow", *tests]
        place = folder
    shared = {"PYTHONPATH": str(folder), "MESA_SHADER_CACHE_DIR": str(folder.parent / "mesa")}
    try:
        done = subprocess.run(
            command, cwd=place, env=os.environ | shared, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"took more than {seconds:.0f} s"
    return done.returncode, done.stdout + done.stderr


def groups(chosen: list[Mutant]) -> list[tuple[str, ...]]:
    """Returns the tests to run without a fault: Vitest's, pytest's, and each selection by -k separately."""
    selected = [m.tests for m in chosen if "-k" in m.tests]
    rest = [tuple(t for m in chosen if m.in_page == page and "-k" not in m.tests for t in m.tests) for page in (0, 1)]
    return [tuple(dict.fromkeys(tests)) for tests in rest if tests] + list(dict.fromkeys(selected))


def verdict(mutant: Mutant, folder: Path, seconds: float) -> str:
    """Returns caught, survived or stale, with a reason."""
    if mutant.stale:
        return f"stale: {mutant.stale}"
    with made(mutant, folder):
        code, output = run(mutant.tests, folder, seconds)
    if code in (None, FAILED):
        return "caught"
    if code == 0:
        return "survived"
    return f"stale: its tests do not run (exit code {code}): {output.strip().splitlines()[-1:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only faults whose name or file holds one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of scratch copies used at a time")
    parser.add_argument("--seconds", type=float, default=300, help="time limit of one fault's tests")
    parser.add_argument("--no-clean-run", action="store_true", help="leave out the run without a fault")
    parser.add_argument("--check", action="store_true", help="only check for stale faults")
    args = parser.parse_args()
    chosen = [m for m in mutants() if not args.names or any(name in f"{m.file} {m.name}" for name in args.names)]
    if args.check:
        stale = [f"{m.name}: {m.stale}" for m in chosen if m.stale]
        print(*stale, f"{len(chosen)} faults, {len(stale)} stale", sep="\n")
        return bool(stale)
    with tempfile.TemporaryDirectory(prefix="glgpt-mutants-") as scratch:
        folders = [Path(scratch) / str(i) for i in range(max(1, args.jobs))]
        for folder in folders:
            folder.mkdir()
            copy_to(folder)
        for tests in groups([m for m in chosen if not m.stale and not args.no_clean_run]):
            code, output = run(tests, folders[0], 10 * args.seconds)
            if code != 0:
                print(output, f"the tests fail without any fault: {' '.join(tests)}", sep="\n", file=sys.stderr)
                return 2
        return report(chosen, folders, args.seconds)


def report(chosen: list[Mutant], folders: list[Path], seconds: float) -> int:
    """Runs all faults, prints a line for each result, and returns the exit code."""
    free = list(folders)

    def judged(mutant: Mutant) -> str:
        folder, start = free.pop(), time.monotonic()
        try:
            found = verdict(mutant, folder, seconds)
        finally:
            free.append(folder)
        word, _, why = found.partition(":")
        print(f"{word:9}{time.monotonic() - start:5.0f} s  {mutant.name}{f': {why}' if why else ''}", flush=True)
        return found

    with ThreadPoolExecutor(len(folders)) as pool:
        found = list(pool.map(judged, chosen))
    counts = {word: sum(f.startswith(word) for f in found) for word in ("caught", "survived", "stale")}
    print(", ".join(f"{n} {word}" for word, n in counts.items()))
    return counts["caught"] != len(chosen)


if __name__ == "__main__":
    sys.exit(main())
