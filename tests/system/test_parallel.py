"""Tests calls in several processes: their results, their errors, and that no process remains."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.waiting import until

from glgpt.errors import GlgptError
from glgpt.system import parallel
from glgpt.system.parallel import in_processes, processes_for


def square(x: int) -> tuple[int, int]:
    """Returns the square, and the id of the process."""
    return x * x, os.getpid()


def fail(x: int) -> int:
    """Fails for 1; takes a minute for other numbers."""
    if x == 1:
        raise GlgptError("one is wrong")
    time.sleep(60)
    return x


def fail_late(x: int) -> int:
    """Fails for 1 after half a second."""
    time.sleep(x / 2)
    if x == 1:
        raise GlgptError("one is wrong")
    return x


def end(x: int) -> int:
    """Kills its own process, as the system does if memory does not suffice."""
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def note(folder: str) -> None:
    """Writes a file that is named after the id of the process, and sleeps for a minute."""
    Path(folder, f"{os.getpid()}.pid").touch()
    time.sleep(60)


def ignores_interrupts(_: int) -> bool:
    """True if the process blocks SIGINT."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_with_the_index_of_their_argument(processes: int) -> None:
    found = dict(in_processes(square, [3, 4, 5], processes))
    assert {i: result for i, (result, _) in found.items()} == {0: 9, 1: 16, 2: 25}
    assert (os.getpid() in {pid for _, pid in found.values()}) == (processes == 1)
    assert not multiprocessing.active_children()


def test_an_error_ends_the_other_processes() -> None:
    start = time.monotonic()
    with pytest.raises(GlgptError, match="one is wrong"):
        list(in_processes(fail, [0, 1], 2))
    assert time.monotonic() - start < 30 and not multiprocessing.active_children()


def test_processes_of_others_outlive_an_error() -> None:
    """Regression: an error also ended processes that another thread had started during the calls."""
    calls = in_processes(fail_late, [0, 1], 2)
    assert next(calls)
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        with pytest.raises(GlgptError, match="one is wrong"):
            next(calls)
        assert multiprocessing.active_children() == [other]
    finally:
        other.terminate()
        other.join()


def test_a_process_that_is_ended_from_outside_is_reported() -> None:
    with pytest.raises(GlgptError, match="ended from outside"):
        list(in_processes(end, [0, 1], 2))


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    imports = "from glgpt.system.parallel import in_processes\nfrom tests.system.test_parallel import note\n"
    call = f"if __name__ == '__main__':\n    list(in_processes(note, [{str(tmp_path)!r}] * 2, 2))\n"
    (tmp_path / "main.py").write_text(imports + call)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "main.py"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])},
    )
    try:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2, 30)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(Path(f"/proc/{file.stem}").exists() for file in tmp_path.glob("*.pid")), 30)


def test_a_system_without_semaphores_uses_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("Function not implemented")

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", fail)
    assert [result for _, result in in_processes(square, [3], 2)] == [(9, os.getpid())]


def test_an_interrupt_of_the_terminal_reaches_only_the_first_process() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert dict(in_processes(ignores_interrupts, [0], 2)) == {0: True}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_processes_share_processors_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_processors", lambda: 8)
    monkeypatch.setattr(parallel, "available_memory", lambda: 10 << 30)
    assert processes_for(3, 1 << 20) == 3
    assert processes_for(100, 1 << 20) == 8
    assert processes_for(100, 1 << 30) == 5
    assert processes_for(0, 1 << 40) == 1
