"""Provides for all tests the software device, a check for GL errors and leaked objects, and a separate cache."""

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
from helpers.probe import remember_probe
from hypothesis import settings

from glgpt.gl import device as gl_device
from glgpt.gl.device import Device, open_device

# Hypothesis draws the same examples in each run, so that a failure can be repeated.
settings.register_profile("glgpt", derandomize=True, deadline=None, database=None)
settings.register_profile("quick", settings.get_profile("glgpt"), max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    """Gives the run its own cache, shares the processors among its workers, and enables interrupts.

    - glgpt's cache is in a folder that is removed at the end of the run. The cache contains prepared probe results, so
      that no test times kernels and all machines use the same kernel. Tests marked `alone` do time kernels.
    - Mesa uses the user's shader cache, because compiling takes most of the time of a run. This is safe: the keys of
      the cache include Mesa's build, the processor and the shader. The workers, the browsers and the commands that
      tests start share the cache.
    - Each of n workers computes with 1/n of the processors.
    - Mesa draws in the thread that calls it (except in tests marked `alone`): its own threads sometimes use freed
      memory, which ended Chromium's GPU process about once in 50 tests (docs/design/decisions/page.md).
    - Mesa compiles shaders without LLVM's optimisation (except in tests marked `alone`). The optimisation takes most of
      the time of a run without a cache, and does not change results.
    - Hypothesis draws fewer examples in `make test` than in `make test-all`.
    - SIGINT gets Python's handler. A shell starts background jobs with SIGINT ignored. Without the handler, commands
      that tests start would inherit this, and could not be interrupted.
    """
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "glgpt")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the environment of the main process
        return
    folder = tempfile.mkdtemp(prefix="glgpt-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", user)
    os.environ["XDG_CACHE_HOME"] = folder
    alone = config.option.markexpr in ("alone", "soak and alone")
    if not alone:
        os.environ.setdefault("LP_NUM_THREADS", "0")
        os.environ.setdefault("GALLIVM_PERF", "nopt")
    workers = config.getoption("numprocesses", None)
    if workers:
        share = str(max(1, (os.cpu_count() or 1) // workers))
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # torch, numpy
            os.environ.setdefault(name, share)
    if not alone and not config.option.collectonly:
        remember_probe()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests marked `soak` unless the marker expression names them (`make test-slow`)."""
    if "soak" in config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Returns once(name, fill), which returns a folder that all workers share.

    The first call with a name fills the folder with `fill`.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has its own folder within the run's folder

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
    """Returns the software device, or the device that GLGPT_TEST_DEVICE names (the same values as for `--device`)."""
    return open_device(os.environ.get("GLGPT_TEST_DEVICE", "software"))


@pytest.fixture(scope="session")
def goldens() -> Path:
    return Path(__file__).parent / "goldens"


def alive() -> dict[int, Counter[str]]:
    """Returns the number of live GL objects of each kind, for each open device."""
    return {id(d): Counter(d.live.values()) for d in gl_device._here.open.values()}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a GL error set, or a new GL object alive."""
    before = alive()
    yield
    for opened in gl_device._here.open.values():
        opened.use()
        assert opened.ctx.error == "GL_NO_ERROR"
    for key, now in alive().items():
        left = now - before.get(key, Counter())
        assert not left, f"still alive: {', '.join(left)}"
