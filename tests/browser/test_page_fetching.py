"""Tests that the page can fetch a text that a visitor requests, also from servers that misbehave."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers.stranger import BYTES, TEXT, Stranger
from training_page import Browse, Serve

from glgpt.page.reading import Reading

pytestmark = pytest.mark.slow
FETCH = """async ([address, options]) => {
  const heard = {tries: 1, bytes: []};
  try {
    const found = await glgpt.fetchText(address, {
      wait: 20, patience: 700, most: 1000000, ...options,
      onRetry: () => heard.tries++, onBytes: (done, total) => heard.bytes.push([done, total]),
    });
    return {...heard, ...found};
  } catch (error) {
    return {...heard, error: error.message};
  }
}"""


class Open(Stranger):
    """Serves like `Stranger`, and allows pages of other origins to read everything except `/closed`."""

    def end_headers(self) -> None:
        if not self.path.startswith("/closed"):
            self.send_header("Access-Control-Allow-Origin", "*")
            self.send_header("Access-Control-Allow-Headers", "*")
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        super().end_headers()

    def send(self, status: int, body: bytes, length: int | None = None, **headers: str) -> None:
        super().send(status, body, length, **headers)
        self.wfile.flush()
        time.sleep(
            0.2 if (length or 0) > len(body) else 0
        )  # so that the browser reports these bytes before the connection ends

    def do_OPTIONS(self) -> None:  # noqa: N802, as http.server has it
        self.send(204, b"")

    def do_HEAD(self) -> None:  # noqa: N802
        self.send_response(200)
        self.end_headers()

    def on_closed(self) -> None:
        self.on_text()

    def on_changed(self) -> None:
        """Interrupts the first answer, and serves another text afterwards."""
        again = Stranger.asked.count("/changed") > 1
        body = BYTES.upper() if again else BYTES
        self.send(200, body if again else body[:1000], len(body))


@pytest.fixture
def stranger() -> Iterator[str]:
    Stranger.asked, Stranger.ranges = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Open)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(site: Path, serve: Serve, browse: Browse, stranger: str, tmp_path: Path) -> Any:
    """Returns a page that may fetch from `stranger`, a server of another origin."""
    folder = tmp_path / "page"
    shutil.copytree(site, folder)
    Reading("none", [stranger]).allow(folder / "index.html")
    page = browse(serve(folder, plain=True) + "#tokens=1&view=train", provokes="Failed to load|CORS|net::|policy")
    page.evaluate("glgpt.ready")
    return page


@pytest.mark.soak
def test_a_text_comes_whole_or_in_words_for_people(page: Any, stranger: str) -> None:
    def fetch(path: str, **options: Any) -> Any:
        Stranger.asked, Stranger.ranges = [], []
        found = page.evaluate(FETCH, [f"{stranger}/{path}", options])
        assert ("error" in found) != ("text" in found), found
        return found

    assert Stranger.asked == []  # nothing is fetched without a request
    found = fetch("text")
    assert (found["text"], found["bytes"], found["source"]) == (TEXT, len(BYTES), f"{stranger}/text")
    assert fetch("moved")["text"] == TEXT
    assert fetch("busy")["text"] == TEXT and Stranger.asked == ["/busy"] * 3
    resumed = fetch("resumed")
    assert resumed["text"] == TEXT
    assert list(filter(None, Stranger.ranges)) == [f"bytes={n * (len(BYTES) // 3 + 1)}-" for n in (1, 2)]
    assert fetch("changed")["text"] == BYTES.upper().decode()  # not a mix of two versions
    for path, said, tries in (
        ("missing", "the server answers 404", 1),
        ("page", "is a web page, not a text", 1),
        ("dressed", "is a web page, not a text", 1),
        ("latin", "is not utf-8 text. Choose another encoding", 1),
        ("zeros", "holds a zero byte", 1),
        ("empty", "is empty", 1),
        ("cut", "tried 4 times: ", 4),
        ("stalls", "no data arrived for 0.2 s", 4),
        ("endless", "this page accepts up to 1.0 MB", 1),
        ("round", "tried 4 times", 4),
        ("closed", "does not let other pages read it (CORS)", 1),
    ):
        found = fetch(path, **({"patience": 200} if path == "stalls" else {}))
        assert said in found.get("error", ""), (path, found)
        assert found["tries"] == tries, path
    assert fetch("latin", encoding="windows-1252")["text"] == "naïve café"
    assert Stranger.asked == ["/latin"]
    fetch("latin")
    assert fetch("latin", encoding="windows-1252")["text"] == "naïve café"
    assert Stranger.asked == []  # the bytes were cached
    for address, said in (
        ("http://127.0.0.1:9/x", "may only fetch from"),
        ("novel", "is not an address"),
        ("file:///etc/hostname", "is not a web address"),
    ):
        assert said in page.evaluate(FETCH, [address, {}])["error"]


def test_a_visitor_fetches_cancels_and_trains_on_what_came(page: Any, stranger: str) -> None:
    page.locator(".train-fetched summary").click()
    page.get_by_label("Address").fill(f"{stranger}/stalls")
    page.get_by_role("button", name="Fetch", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.locator(".ui-problem").get_by_text("Stopped.").wait_for()
    page.get_by_label("Address").fill(f"{stranger}/text")
    page.get_by_role("button", name="Fetch", exact=True).click()
    page.wait_for_function("document.querySelector('.train-preview .ui-sample')?.textContent.includes('summer')")
    page.evaluate("document.querySelector('.train-stages button:nth-child(1)')")
    page.get_by_role("button", name="One step").click()
    page.wait_for_function("glgpt.training.session?.step === 1")
    origin = page.evaluate("glgpt.training.session.plan.origin")
    assert origin["source"] == f"{stranger}/text" and origin["date"].endswith("Z")
