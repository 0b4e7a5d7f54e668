"""Tests a page and a split server behind nginx with TLS, each at a path. `make test-proxy` installs nginx."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reverse_proxy import proxied
from serving import running
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.page.serve import Server, application
from glgpt.split.engine import Engine
from glgpt.split.server import Access, StageServer

MODEL = Path(__file__).parents[1] / "goldens/llama-grouped"


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields the origin of a proxy with a trusted certificate, in front of a page and a server of one block."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<!doctype html><script src='app.js'></script>")
    (site / "app.js").write_text("'a script'")
    page = Server(application(site), port=0)
    thread = threading.Thread(target=page.run, daemon=True)
    thread.start()
    engine = Engine(MODEL, "1", device="software")
    access = Access("secret", ())
    server = StageServer(engine, access, port=0)
    ports = {"page": int(page.address.split(":")[2].strip("/")), "split": int(server.url.rpartition(":")[2])}
    try:
        with running(server), proxied(tmp_path, **ports) as (origin, cert):
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
            server.app.access = Access("secret", (origin,))
            yield origin
    finally:
        engine.close()
        page.stop()
        thread.join(20)


def test_a_page_is_served_at_its_path(proxy: str) -> None:
    with urllib.request.urlopen(f"{proxy}/page/") as answer:
        assert answer.status == 200 and b"app.js" in answer.read()
        assert answer.headers["Content-Security-Policy"] or answer.headers["X-Content-Type-Options"]
    with urllib.request.urlopen(f"{proxy}/page/app.js") as answer:
        assert answer.read() == b"'a script'"


def test_a_text_is_generated_over_tls_and_a_path(proxy: str) -> None:
    with urllib.request.urlopen(f"{proxy}/split/health") as answer:
        assert json.loads(answer.read()) == {"status": "ok"}
    url = proxy.replace("https", "wss") + "/split/"
    with LanguageModel.from_pretrained(MODEL, device="software") as model:
        whole = list(model.generate_ids([3, 31, 6], 6, temperature=0))
    with load(MODEL, rest=url, token="secret", device="software") as split:
        assert list(split.generate_ids([3, 31, 6], 6, temperature=0)) == whole


def test_only_the_proxys_own_pages_may_connect(proxy: str) -> None:
    url, context = proxy.replace("https", "wss") + "/split/", ssl.create_default_context()
    with connect(url, ssl=context, origin=proxy):  # type: ignore[arg-type]
        pass
    for other in ("https://elsewhere.example", proxy.replace("https", "http")):
        with pytest.raises(InvalidStatus, match="403"), connect(url, ssl=context, origin=other):  # type: ignore[arg-type]
            pass
