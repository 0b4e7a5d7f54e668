"""A page that holds the first blocks, and a server process for the others that is killed in the middle of a text."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glgpt.inference.model import GPT2
from glgpt.page.export import export
from glgpt.page.split import SplitPage

PROMPT = "First Citizen:\nBefore we"
HERE = 2  # blocks of the page
LOST = "WebSocket connection to|ERR_CONNECTION"  # what Chromium writes when a server is away


class Process:
    """`glgpt split serve` on a port of its own, to be ended and started again."""

    def __init__(self, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url, self.options = f"ws://127.0.0.1:{self.port}", options
        self.running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "glgpt", "split", "serve", "--blocks", f"{HERE}-5", "--json"]
        command += ["--listen", str(self.port), "--device", "software", *self.options]
        self.running = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"LP_NUM_THREADS": "1"}
        )
        assert self.running.stdout
        assert json.loads(self.running.stdout.readline())["event"] == "ready"

    def kill(self) -> None:
        if self.running:
            self.running.kill()
            self.running.communicate()
            self.running = None


@pytest.fixture
def server() -> Iterator[Callable[..., Process]]:
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> Process:
            made = Process(*options)
            stack.callback(made.kill)
            made.start()
            return made

        yield start


@pytest.fixture
def split_page(tmp_path: Path, serve: Callable[..., str]) -> Callable[[str], str]:
    def make(url: str) -> str:
        manifest = export(None, tmp_path / "page", split=SplitPage(HERE, url))
        whole = GPT2.from_pretrained(None, device="software")
        assert sum(s["bytes"] for s in manifest["shards"]) < 0.5 * whole.player.program.nbytes(("weight",))
        whole.close()
        return serve(tmp_path / "page")

    return make


def wanted(tokens: int, **settings: Any) -> str:
    with GPT2.from_pretrained(None, device="software") as model:
        return model.generate(PROMPT, tokens, **settings).read()


def test_a_server_killed_and_started_again_in_the_middle_of_a_text(
    server: Callable[..., Process], split_page: Callable[[str], str], browse: Callable[..., Any]
) -> None:
    process = server()
    page = browse(split_page(process.url) + "#tokens=2", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.wait_for_function("document.querySelector('.split .said .connected')")
    page.evaluate("globalThis.count = 0")
    ask = "{prompt: %s, tokens: 40, temperature: 0.8, seed: 5, alternatives: 3, onToken: () => globalThis.count++}"
    page.evaluate(f"void (globalThis.text = glgpt.generate({ask % json.dumps(PROMPT)}))")
    page.wait_for_function("globalThis.count >= 8")
    process.kill()
    page.wait_for_function("document.querySelector('.split .wire.connecting')")
    assert page.evaluate("globalThis.count") < 40
    process.start()
    found = page.evaluate("globalThis.text")
    assert found["text"] == wanted(40, temperature=0.8, seed=5)
    assert page.locator(".split .side.here").get_attribute("data-blocks") == "embedding,0,1"
    assert page.locator(".split .side.there").get_attribute("data-blocks") == "2,3,4,5,head"
    assert "connected again" in page.locator(".split .said").inner_text()


def test_the_page_looks_inside_both_sides(
    server: Callable[..., Process], split_page: Callable[[str], str], browse: Callable[..., Any]
) -> None:
    process = server("--token", "open sesame")
    page = browse(split_page(process.url) + "#tokens=4", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.get_by_label("Token", exact=True).fill("wrong")
    page.get_by_role("button", name="Connect", exact=True).click()
    page.wait_for_function("document.querySelector('.split .said').innerText.includes('the token is wrong')")
    page.get_by_label("Token", exact=True).fill("open sesame")
    page.get_by_role("button", name="Connect", exact=True).click()
    page.wait_for_function("document.querySelector('.split .said .connected')")
    parity = page.evaluate("glgpt.parity()")
    assert parity["pass"], parity
    ids = page.evaluate("glgpt.encode('To be, or not')")
    with GPT2.from_pretrained(None, device="software") as model:
        pattern = model.run_with_cache(ids, ["h.4.attn.pattern"])[1]["h.4.attn.pattern"]
    theirs = page.evaluate(f"glgpt.activation('h.4.attn.pattern', {ids}).then((v) => [v.shape, Array.from(v.data)])")
    assert theirs[0] == list(pattern.shape)
    assert max(abs(a - b) for a, b in zip(theirs[1], pattern.ravel().tolist(), strict=True)) < 1e-4
    blocks = page.evaluate(f"glgpt.borrow((model) => glgpt.lens(model, {ids}, 3))")
    assert [b["name"] for b in blocks] == ["embed", *(f"h.{i}.resid_post" for i in range(6))]
    with GPT2.from_pretrained(None, device="software") as model:
        assert blocks[-1]["top"][0]["id"] == int(model.logits(ids)[3].argmax())
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function("document.querySelectorAll('.token').length > 5 && !document.querySelector('.caret')")
    for view in ("Attention", "Blocks", "Textures", "Passes", "Device", "Text"):
        page.get_by_role("navigation", name="Views").get_by_role("button", name=view, exact=True).click()
        page.wait_for_timeout(500)


def test_a_page_without_its_server_says_so(split_page: Callable[[str], str], browse: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"
    page = browse(split_page(url) + "#tokens=2", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.wait_for_function("document.querySelector('.split .said').innerText.includes('No connection to')")
