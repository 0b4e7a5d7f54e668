"""An exported folder on a loopback server, and a real Chromium to open it in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import FLAGS, find_chromium, wait_without_eval
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


class Probes:
    """What pages have measured of their kernels, by the key under which a browser remembers it, for all workers.

    Each test has a fresh profile, but only the first page of a kind measures: the others are second visits.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(self) -> dict[str, str]:
        return {
            key: value for path in self._folder.glob("*.json") for key, value in json.loads(path.read_text()).items()
        }

    def keep(self, key: str, value: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        part = self._folder / f"{name}.{os.getpid()}"
        part.write_text(json.dumps({key: value}))
        part.replace(self._folder / f"{name}.json")


@pytest.fixture(scope="session")
def probes(once: Callable[..., Path]) -> Probes:
    return Probes(once("probes", lambda folder: None))


REMEMBER = """
for (const [key, value] of Object.entries(%s)) {
  try { if (localStorage.getItem(key) === null) localStorage.setItem(key, value); } catch { /* has no storage */ }
}
const set = Storage.prototype.setItem;
Storage.prototype.setItem = function (key, value) {
  if (key.startsWith("glgpt probe ")) void rememberProbe(key, value);
  return set.call(this, key, value);
};"""


@pytest.fixture
def browse(chromium: str, tmp_path: Path, complaints: list[str], probes: Probes) -> Iterator[Callable[..., Any]]:
    """Opens an address in a fresh profile; fails the test for a complaint but those that match `provokes`."""
    expected = [TAKEN]
    with sync_playwright() as p:
        contexts = []

        def open_page(
            address: str, init: str = "", flags: Sequence[str] = FLAGS, provokes: str | None = None, **options: Any
        ) -> Any:
            if provokes is not None:
                expected.append(provokes)
            context = p.chromium.launch_persistent_context(
                str(tmp_path / f"profile{len(contexts)}"),
                executable_path=chromium,
                headless=True,
                args=[*flags],
                **options,
            )
            contexts.append(context)
            context.expose_binding("rememberProbe", lambda _, key, value: probes.keep(key, value))
            context.add_init_script(f"{{{REMEMBER % json.dumps(probes.known())}}}")
            page = wait_without_eval(context.pages[0])
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
