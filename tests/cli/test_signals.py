"""Tests signals at any moment of a command: the command prints one line and exits with 128 + the signal's number."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from glgpt.cli import main
from glgpt.system.files import workplace
from glgpt.system.signals import Terminated, unwinding

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
COMMANDS = {
    "generate": ["generate", "To be", "--tokens", "250", "--seed", "1"],
    "info": ["info"],
    "train --help": ["train", "--help"],
    "dump": ["dump", "To be", "--out", "pictures"],  # draws with matplotlib
}
EXPECTED = {
    signal.SIGINT: (130, "glgpt: interrupted\n"),
    signal.SIGTERM: (143, "glgpt: terminated\n"),
    signal.SIGHUP: (129, "glgpt: terminal closed\n"),
}


def caught(pid: int) -> bool:
    """True if a process has a handler for SIGTERM. A command sets it before anything else."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


def waiting(pid: int) -> bool:
    """True if a process has pending signals. The kernel may deliver them in another order than they were sent."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return any(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))


def struck(args: list[str], after: float, numbers: tuple[int, ...], gap: float) -> str | None:
    """Sends signals to a command, `after` seconds after it has set its handlers. Returns the failure, or None."""
    with tempfile.TemporaryDirectory() as folder:
        return _struck(args, after, numbers, gap, folder)


def _struck(args: list[str], after: float, numbers: tuple[int, ...], gap: float, folder: str) -> str | None:
    process = subprocess.Popen(
        [sys.executable, "-m", "glgpt", *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not caught(process.pid):
        time.sleep(0.001)
    time.sleep(after)
    ran = process.poll() is None
    for number in numbers:
        process.send_signal(number)
        time.sleep(gap)
        while gap >= 0.01 and waiting(process.pid):  # a busy machine delivers the signal late
            time.sleep(0.001)
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{args[0]} after {after:.3f} s: {numbers} lost; {process.communicate()[1][-300:]!r}"
    left = sorted(p.name for p in Path(folder).iterdir())
    if left not in ([], ["pictures"]):
        return f"{args[0]} after {after:.3f} s: {left} is left"
    if not ran or process.returncode == 0:  # the work was done before the signal
        return f"{args[0]} after {after:.3f} s: {err[-300:]!r}" if "Traceback" in err or "glgpt: " in err else None
    allowed = [EXPECTED[signal.Signals(n)] for n in (numbers if gap < 0.01 else numbers[:1])]  # either may come first
    if (process.returncode, err) in allowed:
        return None
    return f"{args[0]} after {after:.3f} s, {numbers}: {process.returncode}, {err[-300:]!r}"


def strike(moments: int, seed: int, longest: float = 2.0) -> list[str]:
    """Sends one or two signals to all commands at random moments; returns the failures."""
    chance = random.Random(seed)
    found = []
    for i in range(moments):
        first, second = chance.choice(list(EXPECTED)), chance.choice(list(EXPECTED))
        numbers = (first, second) if chance.random() < 0.5 else (first,)
        gap = chance.choice((0, 0.001, 0.02)) if len(numbers) > 1 else 0
        after = chance.random() ** 2 * longest
        found.append(struck(COMMANDS[list(COMMANDS)[i % len(COMMANDS)]], after, numbers, gap))
    return [what for what in found if what]


@pytest.mark.soak
@pytest.mark.slow
def test_random_moments() -> None:
    """Sends signals at 12 random moments. Run as a program, this file sends them at 200 by default."""
    assert strike(12, 7) == []


@pytest.mark.parametrize("number", EXPECTED)
def test_the_first_moments(number: int) -> None:
    assert [struck(COMMANDS["info"], after, (number, number), 0.001) for after in (0, 0.05, 0.2)] == [None] * 3


@pytest.mark.slow
def test_the_first_of_two_signals_decides() -> None:
    """Fails if a SIGINT after SIGTERM sets the exit code: Python handles pending signals in order of their numbers."""
    busy = "import hashlib; print(flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 3_000_000)"
    for code in (
        f"import glgpt.cli; from glgpt.__main__ import entry; glgpt.cli.main = lambda leave: exec({busy!r}); entry()",
        f"import sys; from glgpt.__main__ import leave; from glgpt.system.signal_log import record; record()\n"
        f"from glgpt.cli import parser, main; from types import SimpleNamespace as N\n"
        f"parser.build_parser = lambda _: N(parse_args=lambda _: N(run=lambda _: exec({busy!r})))\n"
        f"sys.exit(main([], leave))",
    ):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout and process.stdout.read(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            time.sleep(0.05)  # longer than the kernel takes to deliver a signal
            process.send_signal(number)
        assert (process.communicate()[1], process.returncode) == (b"glgpt: terminated\n", 143)


def test_a_module_is_imported_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an exception during the import of an extension of matplotlib aborted the process (exit code -6)."""
    (tmp_path / "extension_of_glgpts_tests.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    for _ in range(1000): pass\n"
        "except BaseException:\n"
        "    raise ImportError('initialization failed')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    start = time.monotonic()
    with pytest.raises(Terminated), unwinding():
        import extension_of_glgpts_tests  # type: ignore[import-not-found]  # noqa: F401

        time.sleep(20)
    assert "extension_of_glgpts_tests" in sys.modules and time.monotonic() - start < 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_while_a_destructor_runs_is_not_lost() -> None:
    class Struck:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass  # the exception is raised here, and Python drops it

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), unwinding():
        Struck()
        time.sleep(20)
    assert time.monotonic() - start < 10


def test_what_is_half_done_is_undone_whatever_comes_meanwhile() -> None:
    undone = []
    left: list[int] = []
    with pytest.raises(Terminated), unwinding(left.append):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # the thread of `unwinding` sends SIGTERM again here
            undone.append(True)
    assert (undone, left) == ([True], [])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_folder_made_when_the_signal_arrives_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a signal between the creation of a temporary folder and its `try` did not remove the folder."""
    make = tempfile.mkdtemp

    def struck_mkdtemp(**where: str) -> str:
        made = make(**where)
        os.kill(os.getpid(), signal.SIGTERM)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", struck_mkdtemp)
    with pytest.raises(Terminated), unwinding(), workplace(tmp_path / "runs" / "new"):
        pytest.fail("the signal was lost")
    assert not list(tmp_path.iterdir())


def test_a_signal_that_arrives_when_a_block_is_entered_is_cleaned_up_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a signal between a context manager's `yield` and its block did not remove the temporary folder."""

    class Struck(contextlib._GeneratorContextManager):  # type: ignore[type-arg]
        def __enter__(self) -> object:
            super().__enter__()
            raise Terminated

    def run(_: object) -> int:
        with Struck(workplace.__wrapped__, (tmp_path / "runs" / "new",), {}):  # type: ignore[attr-defined]
            return 0

    parsed = SimpleNamespace(parse_args=lambda _: SimpleNamespace(run=run))
    monkeypatch.setattr("glgpt.cli.parser.build_parser", lambda _: parsed)
    left = []
    main([], lambda number: left.append((number, list(tmp_path.iterdir()))))
    assert left == [(signal.SIGTERM, [])]


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # background jobs of a shell, and their children, ignore SIGINT
    number_of_moments = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    failures = strike(number_of_moments, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print("\n".join(failures))
    print(f"{number_of_moments} moments, {len(failures)} failures")
    sys.exit(bool(failures))
