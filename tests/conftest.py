"""What every test shares: the software device, the watch over GL errors and objects, a cache of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from glgpt.gl import device as gl_device
from glgpt.gl.device import Device, open_device

# The same examples each time, so that a failure seen once is seen again.
settings.register_profile("glgpt", derandomize=True, deadline=None, database=None)
settings.load_profile("glgpt")


def pytest_configure(config: pytest.Config) -> None:
    """Gives the run caches of its own, shares the processors among its workers, and lets interrupts through.

    - What glgpt caches (the probe) lives in a folder that is removed at the end of the run.
    - What Mesa compiles lives in `.pytest_cache` and stays: compiling is most of a run's time, and Mesa's key covers
      the driver's build, the processor and the shader. All workers and all commands that tests start share it.
    - Each of n workers draws with 1/n of the processors.
    - A shell starts a background job with SIGINT ignored, which every command that a test starts would inherit.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the environment of the main process
        return
    folder = tempfile.mkdtemp(prefix="glgpt-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["XDG_CACHE_HOME"] = folder
    if config.cache:
        os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(config.cache.mkdir("mesa")))
    workers = config.getoption("numprocesses", None)
    if workers:
        os.environ.setdefault("LP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


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
