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
    """Keeps the run's probe, and Mesa's compiled shaders, out of the user's caches; lets interrupts through.

    A shell starts a job in the background with SIGINT ignored, and so would be every command a test starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = tempfile.mkdtemp(prefix="glgpt-tests-")
    os.environ["XDG_CACHE_HOME"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


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
