"""What every test shares: the software device, the watch over GL errors and objects, a cache of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from glgpt.gl import device as gl_device
from glgpt.gl.device import Device, open_device

# The same examples each time, so that a failure seen once is seen again.
settings.register_profile("glgpt", derandomize=True, deadline=None, database=None)
settings.load_profile("glgpt")


def pytest_configure(config: pytest.Config) -> None:
    """Gives the run a cache of its own, shares the processors among its workers, and lets interrupts through.

    - What glgpt caches (the probe) is in a folder that is removed at the end of the run.
    - What Mesa compiles stays in the user's cache, as with every program that draws: compiling is most of the time of
      a run, and Mesa's key covers its own build, the processor and the shader. The workers, the commands that tests
      start and the browsers all share it.
    - Each of n workers computes with 1/n of the processors.
    - Mesa draws in the thread that calls it (but for the tests that measure alone): its own threads use freed memory
      at times, which ended Chromium's GPU process about once in 50 tests (docs/design/decisions/page.md).
    - A shell starts a background job with SIGINT ignored, which every command that a test starts would inherit.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the environment of the main process
        return
    folder = tempfile.mkdtemp(prefix="glgpt-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", user)
    os.environ["XDG_CACHE_HOME"] = folder
    if config.option.markexpr != "alone":
        os.environ.setdefault("LP_NUM_THREADS", "0")
    workers = config.getoption("numprocesses", None)
    if workers:
        share = str(max(1, (os.cpu_count() or 1) // workers))
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # torch, numpy
            os.environ.setdefault(name, share)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """once(name, fill): a folder that `fill` fills in the first worker that asks, for all workers to read."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a folder of its own in that of the run

    def folder(name: str, fill: Callable[[Path], None]) -> Path:
        path = base / f"once-{name}"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                half = base / f"half-{name}"
                half.mkdir()
                fill(half)
                half.rename(path)
        return path

    return folder


@pytest.fixture(scope="session")
def device() -> Device:
    """The software driver, which every machine has; GLGPT_TEST_DEVICE names another, as `--device` does."""
    return open_device(os.environ.get("GLGPT_TEST_DEVICE", "software"))


@pytest.fixture(scope="session")
def goldens() -> Path:
    return Path(__file__).parent / "goldens"


def alive() -> dict[int, Counter[str]]:
    """What lives on each open device."""
    return {id(d): Counter(d.live.values()) for d in gl_device._here.open.values()}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a GL error set, or a GL object alive that was not there before."""
    before = alive()
    yield
    for opened in gl_device._here.open.values():
        opened.use()
        assert opened.ctx.error == "GL_NO_ERROR"
    for key, now in alive().items():
        left = now - before.get(key, Counter())
        assert not left, f"still alive: {', '.join(left)}"
