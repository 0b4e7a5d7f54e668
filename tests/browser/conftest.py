"""An exported folder on a loopback server, and a real Chromium to open it in."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import FLAGS, find_chromium, remembering, wait_without_eval
from deep_models import write_deep_model
from playwright.sync_api import sync_playwright
from training_page import presets_for_tests

from glgpt.errors import GlgptError
from glgpt.system.files import data_path

TOKENS = 12  # of the text that a page writes when it opens, unless its address says otherwise
LOUD = ("warning", "error", "assert")  # of what a page writes to the console
# Chromium took the context, as it may on a busy machine: the page must recover.
TAKEN = "CONTEXT_LOST_WEBGL: loseContext"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def chromium() -> str:
    try:
        return find_chromium()
    except GlgptError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def exported(once: Callable[..., Path]) -> Path:
    """The embedded model's page, f32, in shards of 8 MiB."""
    from glgpt.page.export import export

    try:
        if not (data_path("viewer/dist") / "index.html").is_file():
            pytest.fail("the page is not built: make viewer")
    except GlgptError:
        pytest.fail("the page is not built: make viewer")
    return (
        once("exported", lambda folder: export(None, folder / "sub" / "page", "f32", shard_size=8 << 20)) / "sub/page"
    )


@pytest.fixture(scope="session")
def site(once: Callable[..., Path]) -> Iterator[Path]:
    """A page that trains `mini`, which is small enough for tests."""
    from glgpt.page.export import export

    with presets_for_tests():
        yield once("site", lambda folder: export(None, folder / "page", "f16", train=("mini",))) / "page"


@pytest.fixture(scope="session")
def deep(once: Callable[..., Path]) -> Callable[[str], tuple[Path, Path]]:
    """deep(family): the folder of a model of twelve blocks (`deep_models`), and that of its page."""
    from glgpt.page.export import export

    def made(family: str) -> tuple[Path, Path]:
        name = f"deep-{family}"

        def fill(folder: Path) -> None:
            (folder / name).mkdir()
            write_deep_model(family, folder / name)
            export(folder / name, folder / "page", device="software")

        folder = once(name, fill)
        return folder / name, folder / "page"

    return made


@pytest.fixture(scope="session")
def single_file(once: Callable[..., Path]) -> Path:
    """The embedded model's page in one file, f32."""
    from glgpt.page.export import export

    return once("single", lambda folder: export(None, folder / "page.html", "f32", single_file=True)) / "page.html"


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Serves a folder and gives its address: as `glgpt serve` does, or (`plain`) as `python -m http.server` does."""
    from glgpt.page.serve import application, serving

    with contextlib.ExitStack() as stack:

        def start(folder: Path, plain: bool = False) -> str:
            if not plain:
                return stack.enter_context(serving(application(folder)))
            made = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))))
            threading.Thread(target=made.serve_forever, daemon=True).start()
            stack.callback(made.shutdown)
            return f"http://127.0.0.1:{made.server_address[1]}/"

        yield start


@pytest.fixture
def complaints() -> list[str]:
    """What pages have complained of: exceptions and rejections that nobody caught, warnings and errors logged."""
    return []


@pytest.fixture(scope="session")
def remembers(once: Callable[..., Path], exported: Path, serve: Callable[..., str], chromium: str) -> str:
    """A script with which a page finds its kernels measured, as at a second visit.

    Else it would measure them when it rests, in the midst of a test. The embedded model's page does it, once for all
    workers; what another page would measure has the same names.
    """

    def fill(folder: Path) -> None:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=chromium, headless=True, args=[*FLAGS])
            page = browser.new_page()
            page.goto(serve(exported) + "#tokens=1")
            measured = page.evaluate("glgpt.warmUp().then(() => JSON.stringify(glgpt.model.probe))")
            (folder / "probe.json").write_text(measured)
            browser.close()

    return remembering((once("probe", fill) / "probe.json").read_text())


class Browsers:
    """Chromiums, one for all tests of a module that start it with the same flags."""

    def __init__(self, chromium: str) -> None:
        self._executable = chromium
        self._playwright = sync_playwright().start()
        self._running: dict[tuple[str, ...], Any] = {}

    def context(self, flags: Sequence[str], profile: Path | None, **options: Any) -> Any:
        """A fresh profile in memory, or in a browser of its own with this folder for it."""
        launch: dict[str, Any] = {"executable_path": self._executable, "headless": True, "args": [*flags]}
        chromium = self._playwright.chromium
        if profile:
            return chromium.launch_persistent_context(str(profile), **launch, **options)
        key = tuple(flags)
        if key not in self._running or not self._running[key].is_connected():
            self._running[key] = chromium.launch(**launch)
        return self._running[key].new_context(**options)

    def close(self) -> None:
        for browser in self._running.values():
            browser.close()
        self._playwright.stop()


@pytest.fixture(scope="module")
def browsers(chromium: str, remembers: str) -> Iterator[Browsers]:
    """Closed with the module: Playwright keeps an event loop running, which tests elsewhere must not find."""
    started = Browsers(chromium)
    yield started
    started.close()


@pytest.fixture
def browse(browsers: Browsers, tmp_path: Path, complaints: list[str], remembers: str) -> Iterator[Callable[..., Any]]:
    """Opens an address in a fresh profile; fails the test for a complaint but those that match `provokes`.

    The profile is in memory and the browser other tests' too, but with `own`: then both are the test's alone, and the
    profile is on the disk. With `measures`, the page has not measured its kernels yet. Nothing moves unless a test asks
    for it: drawing the frames of an animation takes longer than the text that it accompanies.
    """
    expected = [TAKEN]
    contexts = []

    def open_page(
        address: str,
        init: str = "",
        flags: Sequence[str] = FLAGS,
        provokes: str | None = None,
        own: bool = False,
        measures: bool = False,
        **options: Any,
    ) -> Any:
        if provokes is not None:
            expected.append(provokes)
        options.setdefault("reduced_motion", "reduce")
        context = browsers.context(flags, tmp_path / f"profile{len(contexts)}" if own else None, **options)
        contexts.append(context)
        if not measures:
            context.add_init_script(f"{{{remembers}}}")
        page = wait_without_eval(context.pages[0] if own else context.new_page())
        page.set_default_timeout(90_000)
        context.on("weberror", lambda event: complaints.append(str(event.error)))
        context.on("console", lambda said: complaints.append(said.text) if said.type in LOUD else None)
        if init:
            page.add_init_script(init)
        page.goto(address if "#" in address else f"{address}#tokens={TOKENS}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [said for said in complaints if not any(re.search(e, said) for e in expected)] == [], "the page complained"


@pytest.fixture
def page(site: Path, serve: Callable[..., str], browse: Callable[..., Any]) -> Any:
    """The page that trains `mini`, ready."""
    page = browse(serve(site) + "#tokens=1")
    page.evaluate("glgpt.ready")
    return page
