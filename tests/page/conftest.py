"""An exported folder on a loopback server, and a real Chromium to open it in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import FLAGS, find_chromium
from playwright.sync_api import sync_playwright

from glgpt.data_files import data_path
from glgpt.errors import GlgptError

TOKENS = 12  # of the text that a page writes when it opens, unless its address says otherwise


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
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's page, f32, in shards of 8 MiB."""
    from glgpt.export import export

    try:
        if not (data_path("viewer/dist") / "index.html").is_file():
            pytest.fail("the page is not built: make viewer")
    except GlgptError:
        pytest.fail("the page is not built: make viewer")
    out = tmp_path_factory.mktemp("site") / "sub" / "page"
    out.parent.mkdir()
    export(None, out, "f32", shard_size=8 << 20)
    return out


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Serves a folder and gives its address: as `glgpt serve` does, or (`plain`) as `python -m http.server` does."""
    from glgpt.serve import server

    running: list[ThreadingHTTPServer] = []

    def start(folder: Path, plain: bool = False) -> str:
        if plain:
            made = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        else:
            made = server(folder, 0)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        running.append(made)
        return f"http://127.0.0.1:{made.server_address[1]}/"

    yield start
    for made in running:
        made.shutdown()
        made.server_close()


@pytest.fixture
def browse(chromium: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens an address in a fresh profile; fails the test for an exception or a warning in the page."""
    thrown: list[str] = []
    with sync_playwright() as p:
        contexts = []

        def open_page(address: str, init: str = "", flags: Sequence[str] = FLAGS, **options: Any) -> Any:
            context = p.chromium.launch_persistent_context(
                str(tmp_path / f"profile{len(contexts)}"),
                executable_path=chromium,
                headless=True,
                args=[*flags],
                **options,
            )
            contexts.append(context)
            page = context.pages[0]
            page.set_default_timeout(90_000)
            page.on("pageerror", lambda error: thrown.append(str(error)))
            page.on("console", lambda said: thrown.append(said.text) if said.type == "warning" else None)
            if init:
                page.add_init_script(init)
            page.goto(address if "#" in address else f"{address}#tokens={TOKENS}")
            return page

        yield open_page
        for context in contexts:
            context.close()
    assert thrown == [], "the page threw"
