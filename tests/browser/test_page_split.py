"""Tests pages that run blocks on a server: a server killed during a text, the head in the page, a moved split point."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.exports import export_few
from helpers.split_proxies import Delaying
from small_model import write_small_model
from websockets.sync.client import connect

from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.export_options import ExportOptions
from glgpt.page.split import SplitPage
from glgpt.wire import hidden, messages

REPEATED = "To be, or not to be, or not to be, or not to be, or not"
PROMPT = "First Citizen:\nBefore we"
CONFIG = GPT2Config.sized(1024, 256, 64, 6, 4)
HERE = 2  # number of blocks in the page
PLACE = "ws://server.invalid:8043"  # placeholder in exported pages, replaced by the address of a test's server
LOST = "WebSocket connection to|ERR_CONNECTION"  # Chromium's messages when a server is offline


class Process:
    """Runs `glgpt split serve` on a free port, in a process that can be killed and restarted."""

    def __init__(self, model: Path, *options: str, blocks: str = f"{HERE}-5") -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url, self.options = f"ws://127.0.0.1:{self.port}", ("--model", str(model), "--blocks", blocks, *options)
        self.running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "glgpt", "split", "serve", "--json"]
        command += ["--listen", str(self.port), "--device", "software", *self.options]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.running.stdout
        assert json.loads(self.running.stdout.readline())["event"] == "ready"

    def kill(self) -> None:
        if self.running:
            self.running.kill()
            self.running.communicate()
            self.running = None


@pytest.fixture(scope="module")
def model(once: Callable[..., Path]) -> Path:
    """Returns the folder of a random model with six blocks, which repeats itself and generates no end token."""
    return once("split-model", lambda folder: write_small_model(folder / "model", CONFIG, seed=8)) / "model"


@pytest.fixture
def desktop(model: Path) -> Iterator[LanguageModel]:
    """Yields the model of the module's pages, loaded on the desktop."""
    with LanguageModel.from_pretrained(model, device="software") as opened:
        yield opened


@pytest.fixture(scope="module")
def usual_once(model: Path) -> Iterator[Process]:
    made = Process(model)
    yield made
    made.kill()


@pytest.fixture
def usual(usual_once: Process) -> Process:
    """Returns a running server with the blocks 2 to 5 and the head. The tests share this server."""
    if not usual_once.running:
        usual_once.start()
    return usual_once


@pytest.fixture
def server(model: Path) -> Iterator[Callable[..., Process]]:
    with contextlib.ExitStack() as stack:

        def start(*options: str, **more: str) -> Process:
            made = Process(model, *options, **more)
            stack.callback(made.kill)
            made.start()
            return made

        yield start


@pytest.fixture
def split_page(tmp_path: Path, model: Path, serve: Callable[..., str], once: Callable[..., Path]) -> Callable[..., str]:
    """Returns a function that serves a page for the server at `url`. Pages that differ only in `url` are one export."""

    def make(url: str, blocks: int | None = HERE, head: bool = False) -> str:
        def fill(folder: Path) -> None:
            options = ExportOptions(split=SplitPage(blocks, PLACE, head=head))
            export_few(model, folder / "page", options, device="software")
            if blocks:
                shards = json.loads((folder / "page/manifest.json").read_text(encoding="utf-8"))["shards"]
                with LanguageModel.from_pretrained(model, device="software") as whole:
                    assert sum(s["bytes"] for s in shards) < 0.5 * whole.player.program.nbytes(("weight",))

        page = shutil.copytree(once(f"split-{blocks}-{head}", fill) / "page", tmp_path / "page")
        for name in ("manifest.json", "index.html"):
            text = (page / name).read_text(encoding="utf-8")
            assert text.count(PLACE) == 1
            (page / name).write_text(text.replace(PLACE, url), encoding="utf-8")
        return serve(page)

    return make


def wanted(desktop: LanguageModel, tokens: int, prompt: str = PROMPT, **settings: Any) -> str:
    return desktop.generate(prompt, tokens, **settings).read()


def agrees_with_the_desktop(page: Any, desktop: LanguageModel) -> None:
    """Checks the page's logits (`glgpt.parity()`), and that its logit lens ends with the desktop's likeliest token."""
    parity = page.evaluate("glgpt.parity()")
    assert parity["pass"], parity
    ids = page.evaluate("glgpt.encode('To be, or not')")
    blocks = page.evaluate(f"glgpt.borrow((model) => glgpt.lens(model, {ids}, 3))")
    assert blocks[-1]["top"][0]["id"] == int(desktop.logits(ids)[3].argmax())


@pytest.mark.soak
def test_a_server_killed_and_started_again_in_the_middle_of_a_text(
    usual: Process, split_page: Callable[[str], str], browse: Callable[..., Any], desktop: LanguageModel
) -> None:
    process = usual
    page = browse(split_page(process.url) + "#tokens=2", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.wait_for_function("document.querySelector('.split-connected')")
    page.evaluate("globalThis.count = 0")
    ask = "{prompt: %s, tokens: 30, temperature: 0.8, seed: 5, alternatives: 3, onToken: () => globalThis.count++}"
    page.evaluate(f"void (globalThis.text = glgpt.generate({ask % json.dumps(PROMPT)}))")
    page.wait_for_function("globalThis.count >= 8")
    process.kill()
    page.wait_for_function("document.querySelector('.split-connecting')")
    assert page.evaluate("globalThis.count") < 30
    process.start()
    found = page.evaluate("globalThis.text")
    assert found["text"] == wanted(desktop, 30, temperature=0.8, seed=5)
    assert generated(page, 12, minP=0.2) == wanted(desktop, 12, temperature=0.8, seed=5, min_p=0.2)
    assert len(page.evaluate("glgpt.generate({prompt: 'To be', tokens: 2, alternatives: 50}).then((r) => r.ids)")) == 2
    stops_while_the_server_hangs(page, process, desktop)
    assert page.locator(".split-side.split-here").get_attribute("data-blocks") == "embedding,0,1"
    assert page.locator(".split-side.split-there").get_attribute("data-blocks") == "2,3,4,5,head"
    assert "reconnected" in page.locator(".split-said").inner_text()


def stops_while_the_server_hangs(page: Any, process: Process, desktop: LanguageModel) -> None:
    """Fails if a generation that waits for the server cannot be aborted, or if the next generation is wrong."""
    assert process.running
    process.running.send_signal(signal.SIGSTOP)
    try:
        ask = "{prompt: 'To be', tokens: 9, signal: AbortSignal.timeout(500)}"
        assert page.evaluate(f"glgpt.generate({ask}).then((r) => r.stopped)") == "aborted"
    finally:
        process.running.send_signal(signal.SIGCONT)
    assert generated(page, 12) == wanted(desktop, 12, temperature=0.8, seed=5)


@pytest.mark.soak
def test_the_page_guesses_ahead_where_latency_is_high(
    usual: Process, split_page: Callable[[str], str], browse: Callable[..., Any], desktop: LanguageModel
) -> None:
    """Fails if guessed tokens change the text, or if an accepted guess does not save a round trip."""
    page = browse(split_page(Delaying(usual.url, 0.05).url) + "#tokens=1", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.wait_for_function(
        "document.querySelector('.text-token:not(.text-given)') && !document.querySelector('.text-caret')"
    )
    count = """globalThis.trips = 0;
      const step = glgpt.model.split.step.bind(glgpt.model.split);
      glgpt.model.split.step = (...args) => { if (args[5]) globalThis.trips++; return step(...args); }; 0"""
    page.evaluate(f"() => {{ {count} }}")
    page.get_by_label("Guess ahead").select_option("always")
    for settings, theirs in (
        ({"temperature": 0, "alternatives": 2}, {"temperature": 0}),
        ({"temperature": 0.1, "seed": 4}, {"temperature": 0.1, "seed": 4}),
    ):
        page.evaluate("() => { globalThis.trips = 0; glgpt.model.split.guessed = glgpt.model.split.accepted = 0; }")
        assert generated(page, 30, prompt=REPEATED, **settings) == wanted(desktop, 30, prompt=REPEATED, **theirs)
        trips, guessed, right = page.evaluate("[trips, glgpt.model.split.guessed, glgpt.model.split.accepted]")
        assert 0 < guessed >= right and trips == 30 - right, (trips, guessed, right)
        assert right or settings["temperature"]
    said = page.locator(".split-said")
    assert f"{right} of {guessed} guesses accepted" in said.inner_text()
    page.get_by_label("Guess ahead").select_option("never")
    generated(page, 10, prompt=REPEATED, temperature=0)
    assert page.evaluate("glgpt.model.split.guessed") == guessed


def test_a_chunk_lost_with_its_connection_is_fed_again(
    usual: Process, split_page: Callable[[str], str], browse: Callable[..., Any]
) -> None:
    """Fails if a prompt's chunk is lost when the connection breaks between two chunks, and is not sent again.

    Before the test, the server's session holds another text.
    """
    page = browse(split_page(usual.url) + "#tokens=1")
    page.evaluate("glgpt.ready")
    generated(page, 2, prompt="All: We know't, we know't. " * 16)
    script = """() => {
      const {split, cache, splitGenerator} = glgpt.model, hidden = splitGenerator.hidden.bind(splitGenerator);
      const until = async (status) => { while (split.status !== status) await new Promise((r) => setTimeout(r, 1)); };
      globalThis.chunks = 0;
      cache.known = cache.known.filter((size) => size <= 64); // so that the prompt has several chunks
      split.socket.socket.send = () => {};
      splitGenerator.hidden = async (...args) => {
        const states = await hidden(...args);
        if (++globalThis.chunks === 2) {
          split.socket.socket.close();
          await until("connecting");
          await until("connected");
        }
        while (globalThis.chunks === 3 && split.waiting.length) await new Promise((r) => setTimeout(r, 1));
        return states;
      };
    }"""
    page.evaluate(script)
    weigh = """async () => {
      const found = [], prompt = 'First Citizen: Before we proceed any further, hear me speak. '.repeat(8);
      const onToken = ({id, p}) => found.push([id, p]);
      await glgpt.generate({prompt, tokens: 6, temperature: 0, alternatives: 1, onToken});
      return found;
    }"""
    found = np.array(page.evaluate(weigh))
    assert page.evaluate("glgpt.model.split.reconnects === 1 && globalThis.chunks > 4")
    page.evaluate("() => { glgpt.model.cache.forget(0); glgpt.model.split.held = []; }")
    np.testing.assert_allclose(found, np.array(page.evaluate(weigh)), rtol=1e-3)


@pytest.mark.soak
def test_a_full_server_is_tried_again(
    server: Callable[..., Process], split_page: Callable[[str], str], browse: Callable[..., Any]
) -> None:
    """Fails if a page does not try a full server again. The test first uses all the server's connections."""
    process, width, ended = server("--sessions", "1"), CONFIG.n_embd, threading.Event()

    def use(others: list[Any]) -> None:
        for seq in itertools.count():
            for other in others:
                look = messages.Look(seq=seq, n=1)
                other.send(messages.encode(look, hidden.pack(np.ones((1, width), np.float32), "f32")))
                other.recv(timeout=60)
            if ended.wait(1):
                return

    with contextlib.ExitStack() as stack:
        others = []
        for _ in range(20):  # the server's maximum number of connections
            others.append(stack.enter_context(connect(process.url, compression=None, proxy=None)))
            others[-1].send(messages.encode(messages.Open(protocol=messages.PROTOCOL)))
            others[-1].recv(timeout=20)
        user = threading.Thread(target=use, args=(others,))
        user.start()
        stack.callback(user.join)
        stack.callback(ended.set)
        page = browse(split_page(process.url) + "#tokens=2", provokes=LOST)
        page.evaluate("glgpt.ready")
        page.wait_for_function("document.querySelector('.split-said').innerText.includes('the server is full')")
        assert not page.get_by_label("Access token", exact=True).count()
    page.wait_for_function("document.querySelector('.split-connected')")
    page.wait_for_function("document.querySelectorAll('.text-token:not(.text-given)').length === 2")


def test_the_page_looks_inside_both_sides(
    server: Callable[..., Process],
    split_page: Callable[[str], str],
    browse: Callable[..., Any],
    desktop: LanguageModel,
) -> None:
    process = server("--token", "open sesame")
    page = browse(split_page(process.url) + "#tokens=4", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.get_by_label("Access token", exact=True).fill("wrong")
    page.get_by_role("button", name="Connect", exact=True).click()
    page.wait_for_function("document.querySelector('.split-said').innerText.includes('the token is wrong')")
    page.get_by_label("Access token", exact=True).fill("open sesame")
    page.get_by_role("button", name="Connect", exact=True).click()
    page.wait_for_function("document.querySelector('.split-connected')")
    parity = page.evaluate("glgpt.parity()")
    assert parity["pass"], parity
    ids = page.evaluate("glgpt.encode('To be, or not')")
    pattern = desktop.run_with_cache(ids, ["h.4.attn.pattern"])[1]["h.4.attn.pattern"]
    theirs = page.evaluate(f"glgpt.activation('h.4.attn.pattern', {ids}).then((v) => [v.shape, Array.from(v.data)])")
    assert theirs[0] == list(pattern.shape)
    assert max(abs(a - b) for a, b in zip(theirs[1], pattern.ravel().tolist(), strict=True)) < 1e-4
    blocks = page.evaluate(f"glgpt.borrow((model) => glgpt.lens(model, {ids}, 3))")
    assert [b["name"] for b in blocks] == ["embed", *(f"h.{i}.resid_post" for i in range(6))]
    assert blocks[-1]["top"][0]["id"] == int(desktop.logits(ids)[3].argmax())
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function(
        "document.querySelectorAll('.text-token').length > 5 && !document.querySelector('.text-caret')"
    )
    shows_the_servers_blocks(page, desktop)
    for view in ("Blocks", "Passes", "Device", "Text"):
        page.get_by_role("navigation", name="Views").get_by_role("button", name=view, exact=True).click()
        page.wait_for_timeout(200)


# Returns the share of painted pixels in a band of a canvas. The band is from `from` to `to`, in shares of the height.
PAINTED_BETWEEN = """([selector, from, to]) => {
  const canvas = document.querySelector(selector), {width, height} = canvas;
  const flat = Object.assign(document.createElement("canvas"), {width, height}).getContext("2d");
  flat.drawImage(canvas, 0, 0);
  const [top, rows] = [Math.floor(height * from), Math.floor(height * (to - from))];
  const {data} = flat.getImageData(0, top, width, rows);
  let count = 0;
  for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
  return 4 * count / data.length;
}"""


def shows_the_servers_blocks(page: Any, desktop: LanguageModel) -> None:
    """Fails if the view Attention or Textures does not show the desktop's activations of block 4."""
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Attention", exact=True).click()
    page.locator("[data-view=attention]").get_by_role("combobox", name="Layer").select_option("4")
    page.locator("[data-view=attention]").get_by_role("combobox", name="Head").select_option("3")
    page.wait_for_function("document.querySelector('[data-part=one] .ui-reading b').innerText !== '…'")
    for layer in range(6):
        area = json.dumps([".attention-squares canvas", layer / 6, (layer + 1) / 6])
        page.wait_for_function(f"({PAINTED_BETWEEN})({area}) > 0.2")
    page.wait_for_function(f"({PAINTED_BETWEEN})(['.attention-head canvas', 0.5, 1]) > 0.2")
    ids = page.evaluate("glgpt.last")
    pattern = desktop.run_with_cache(ids, ["h.4.attn.pattern"])[1]["h.4.attn.pattern"]
    last = len(ids) - 1
    rows = {int(last * (0.5 + 0.5 * i / 5)) for i in range(6)}  # the view opens with one of these rows
    sharpest = [100 * float(pattern[3, t].max()) for t in rows]
    reading = "parseFloat(document.querySelector('[data-part=one] .ui-reading b').innerText)"
    page.wait_for_function(f"{sharpest}.some((each) => Math.abs(each - {reading}) < 0.01)")
    assert page.locator("[data-view=attention] .ui-problem").count() == 0
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Textures", exact=True).click()
    page.get_by_role("group", name="Block").get_by_role("button", name="4", exact=True).click()
    total, width = len(ids), page.evaluate("glgpt.model.manifest.config.n_embd")
    shapes = {"attn.z": (total, width), "attn.q": (total, width), "attn.pattern": (total * pattern.shape[0], total)}
    for which, (rows, cols) in shapes.items():
        page.locator(".textures-list").get_by_role("button", name=which, exact=True).click()
        said = f"Matrix of {rows} x {cols}, computed by the server"
        page.wait_for_function(f"document.querySelector('[data-view=textures]').innerText.includes({json.dumps(said)})")
    page.wait_for_function(f"({PAINTED_BETWEEN})(['.plane canvas', 0.5, 1]) > 0.2")


def test_a_page_without_its_server_says_so(split_page: Callable[[str], str], browse: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"
    page = browse(split_page(url) + "#tokens=2", provokes=LOST)
    page.evaluate("glgpt.ready")
    page.wait_for_function("document.querySelector('.split-said').innerText.includes('No connection to')")


def generated(page: Any, tokens: int, **settings: Any) -> str:
    options = {"prompt": PROMPT, "tokens": tokens, "temperature": 0.8, "seed": 5} | settings
    found: str = page.evaluate(f"glgpt.generate({json.dumps(options)}).then((r) => r.text)")
    return found


@pytest.mark.soak
def test_a_page_with_the_head_draws_the_tokens(
    server: Callable[..., Process],
    split_page: Callable[..., str],
    browse: Callable[..., Any],
    desktop: LanguageModel,
) -> None:
    process = server(blocks=f"+{HERE}-5")  # the server lacks the head
    page = browse(split_page(process.url, head=True) + "#tokens=4", provokes=LOST)
    page.evaluate("glgpt.ready")
    assert generated(page, 24, alternatives=3) == wanted(desktop, 24, temperature=0.8, seed=5)
    assert generated(page, 12, topP=0.9) == wanted(desktop, 12, temperature=0.8, seed=5, top_p=0.9)
    assert page.locator(".split-side.split-here").get_attribute("data-blocks") == "embedding,0,1,head"
    assert page.locator(".split-side.split-there").get_attribute("data-blocks") == "2,3,4,5"
    agrees_with_the_desktop(page, desktop)


@pytest.mark.soak
def test_the_cut_moves_while_a_text_is_written(
    server: Callable[..., Process],
    split_page: Callable[..., str],
    browse: Callable[..., Any],
    desktop: LanguageModel,
) -> None:
    process = server(blocks="0-5")
    page = browse(split_page(process.url, None) + "#tokens=4", provokes=LOST)
    page.evaluate("glgpt.ready")
    slider = page.get_by_label("Blocks in this page")
    assert slider.input_value() == "6" and page.locator(".split-side.split-there").count() == 0
    text = wanted(desktop, 30, temperature=0.8, seed=5)
    assert generated(page, 30) == text
    for here in (3, 0, 5):
        slider.fill(str(here))
        page.get_by_label("Guess ahead").select_option("never")  # the table below counts steps of one token
        assert generated(page, 30) == text, here
        assert page.locator(".split-side.split-there").get_attribute("data-blocks") == ",".join(
            [*map(str, range(here, 6)), "head"]
        )
        columns = "[...document.querySelectorAll('.machine-there')].map((s) => s.style.getPropertyValue('--column'))"
        assert {int(c) - 2 for c in page.evaluate(columns)} == {*range(here, 7)}  # column 6 shows the logits
    options = json.dumps({"prompt": PROMPT, "tokens": 30, "temperature": 0.8, "seed": 5})
    # `onToken` moves the slider: a fast page may finish its text before a click from the test arrives.
    written = slider.evaluate(
        f"""(slider) => {{
            const moves = {{ 4: 2, 10: 6, 16: 4 }};
            let count = 0;
            const onToken = () => {{
                const here = moves[++count];
                if (here === undefined) return;
                slider.value = here;
                slider.dispatchEvent(new Event("input", {{ bubbles: true }}));
            }};
            return glgpt.generate({{ ...{options}, onToken }}).then((r) => r.text);
        }}"""
    )
    assert written == text
    rows = page.locator(".split-tried tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["0", "2", "3", "4", "5", "6"]
    assert rows[-1].split()[4] == "0", rows  # no bytes if all blocks run in the page
    assert all(int(row.split()[4].replace(",", "")) > 4 * CONFIG.n_embd for row in rows[:-1]), rows
    agrees_with_the_desktop(page, desktop)
    assert generated(page, 30) == text  # `agrees_with_the_desktop` has changed the caches
    process.kill()
    slider.fill("6")
    assert generated(page, 30) == text  # all blocks run in the page
