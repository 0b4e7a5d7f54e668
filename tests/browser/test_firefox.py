"""Tests the exported page in the installed Firefox, driven over its built-in WebDriver BiDi."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from browser import MEASURED
from helpers.gguf_files import wide_llama
from training_page import PLAY, QUIET
from websockets.sync.client import ClientConnection, connect

from glgpt import Constraint, LanguageModel
from glgpt.page.player import mixes
from glgpt.page.player.export import PlayerOptions, export_player

PROMPT = "First Citizen:\nBefore we proceed"
PATTERN = "[a-z ]*"  # the constraint of a text
# Even headless, Firefox offers no WebGL without a display. Under Xvfb, a preference must force WebGL.
PREFERENCES = 'user_pref("webgl.force-enabled", true);\nuser_pref("browser.shell.checkDefaultBrowser", false);\n'
POLICY = "Content-Security-Policy"
Evaluate = Callable[[str], Any]


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """Runs a virtual X server; yields its name."""
    if not shutil.which("Xvfb"):
        pytest.fail("no Xvfb on this machine: install it (Debian, Ubuntu: apt install xvfb)")
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1280x900x24", "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as pipe:
        number = pipe.readline().strip()
    assert number, "Xvfb did not start"
    yield f":{number}"
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def firefox(display: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address at which a Firefox with a fresh profile accepts BiDi commands."""
    found = shutil.which("firefox-esr") or shutil.which("firefox")
    if not found:
        pytest.fail("no Firefox on this machine: install it (Debian: apt install firefox-esr)")
    profile = tmp_path_factory.mktemp("firefox")
    (profile / "user.js").write_text(PREFERENCES)
    process = subprocess.Popen(
        [found, "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0", "about:blank"],
        env=os.environ | {"DISPLAY": display, "LIBGL_ALWAYS_SOFTWARE": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr
    said = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr)
    address = next((match[1] for match in said if match), None)
    assert address, "Firefox ended before it listened"
    yield address
    process.terminate()
    process.stderr.close()
    process.wait()


class BiDi:
    """Holds a session with Firefox and the errors that its pages have logged."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, count(1)
        self.complaints: list[str] = []
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=600))).get("id") != number:
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] == "error":
                self.complaints.append(answer["params"]["text"])
        assert answer["type"] == "success", answer
        return dict(answer["result"])


@pytest.fixture(scope="module")
def session(firefox: str) -> Iterator[BiDi]:
    """Yields the session that all tests of this module share."""
    with connect(f"{firefox}/session", max_size=None) as socket:
        yield BiDi(socket)


@pytest.fixture
def browse(session: BiDi) -> Iterator[Callable[..., Evaluate]]:
    """Opens an address in a tab; returns a function that evaluates JavaScript in the page and awaits its promise.

    Fails the test for an uncaught exception, or an error in the console that does not contain `provokes`.
    With `measures`, the page has not measured its kernels yet.
    """
    provoked: list[str] = []
    tabs: list[str] = []

    def open_page(address: str, provokes: str | None = None, measures: bool = False) -> Evaluate:
        if provokes:
            provoked.append(provokes)
        context = session.call("browsingContext.create", type="tab")["context"]
        tabs.append(context)
        if not measures:
            script = f"() => {{{MEASURED}}}"
            session.call("script.addPreloadScript", functionDeclaration=script, contexts=[context])
        session.call("browsingContext.navigate", context=context, url=address, wait="complete")

        def evaluate(script: str) -> Any:
            asked = {"expression": f"Promise.resolve({script}).then(JSON.stringify)", "target": {"context": context}}
            answer = session.call("script.evaluate", **asked, awaitPromise=True)
            assert answer["type"] == "success", answer["exceptionDetails"]["text"]
            return json.loads(answer["result"].get("value", "null"))

        return evaluate

    yield open_page
    session.call("browsingContext.getTree")  # afterwards, all earlier log entries have arrived
    for tab in tabs:
        session.call("browsingContext.close", context=tab)
    complaints = session.complaints[:]
    session.complaints.clear()
    assert [said for said in complaints if not any(part in said for part in provoked)] == [], "the page complained"


@pytest.mark.soak
def test_firefox_passes_the_self_test(
    small: tuple[Path, Path], serve: Callable[..., str], browse: Callable[..., Evaluate]
) -> None:
    evaluate = browse(serve(small[1]) + "#selftest&op=norm")
    report = "document.querySelector('[data-part=json] textarea')?.value ?? ''"
    for _ in range(600):
        if text := evaluate(report):
            break
        sleep(0.1)
    found = json.loads(text)
    assert found["passed"] and not found["failed"] and found["context_loss"].startswith("recovered in ")


def test_firefox_says_what_the_desktop_says(
    small: tuple[Path, Path], serve: Callable[..., str], browse: Callable[..., Evaluate]
) -> None:
    """Fails if a page that is served from a folder differs from the desktop, or violates its policy."""
    evaluate = browse(serve(small[1]), provokes=POLICY, measures=True)
    watch(evaluate)
    evaluate("glgpt.ready")
    assert "llvmpipe" in evaluate("glgpt.info().renderer")
    ids = evaluate(f"glgpt.generate({json.dumps({'prompt': PROMPT, 'tokens': 48, 'temperature': 0})}).then(r => r.ids)")
    constrained = json.dumps({"prompt": PROMPT, "tokens": 12, "temperature": 0, "constraint": {"regex": PATTERN}})
    text = evaluate(f"glgpt.generate({constrained}).then((r) => r.text)")
    assert evaluate("glgpt.model.sampling.masked.bits === null")  # only Chrome reads tokens bit by bit
    with LanguageModel.from_pretrained(small[0], device="software") as desktop:
        assert ids == list(desktop.generate_ids(PROMPT, 48, temperature=0))
        assert text == "".join(desktop.generate(PROMPT, 12, temperature=0, constraint=Constraint.regex(PATTERN)))
    parity = evaluate("glgpt.parity()")
    assert parity["pass"] and parity["maxError"] < 1e-4, parity
    evaluate("glgpt.warmUp()")
    assert min(evaluate("Object.values(glgpt.model.kernels.probe)")) > 0
    keeps_the_policy(evaluate)


@pytest.mark.soak
def test_firefox_opens_a_model_file(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Evaluate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixes, "RECIPES", ())  # records programs only for this file's tensor types
    model = wide_llama(tmp_path / "model.gguf", {"token_embd": "Q6_K"}, "Q4_K")
    export_player(tmp_path / "page", PlayerOptions([model], common=False))
    shutil.copy(model, tmp_path / "page" / "model.gguf")
    evaluate = browse(serve(tmp_path / "page") + "#tokens=1")
    drop = """(async () => {
      const data = new DataTransfer();
      data.items.add(new File([await (await fetch("model.gguf")).blob()], "model.gguf"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
      const load = () => [...document.querySelectorAll("button")].find((b) => b.textContent === "Load the model");
      while (!load() || load().disabled) await new Promise((next) => setTimeout(next, 50));
      load().click();
      while (!globalThis.glgpt?.model) await new Promise((next) => setTimeout(next, 50));
    })()"""
    evaluate(drop)
    ids = evaluate("glgpt.generate({ids: [1, 2, 3], tokens: 8, temperature: 0, eos: false}).then((g) => g.ids)")
    with LanguageModel.from_pretrained(model, device="software") as desktop:
        assert ids == list(desktop.generate_ids([1, 2, 3], 8, temperature=0))


# Sends a message, and opens the attention of the answer's third token. Returns the answer.
CHATS = """(async (message) => {
  await glgpt.ready;
  const found = async (find) => {
    while (!find()) await new Promise((next) => setTimeout(next, 50));
    return find();
  };
  const button = (name) => [...document.querySelectorAll("button")].find((b) => b.textContent.trim() === name);
  const field = () => document.querySelector("[aria-label=Message]");
  await found(field);
  const coming = field(); // the page replaces the field when the model is ready
  coming.value = message;
  coming.dispatchEvent(new InputEvent("input", { bubbles: true }));
  await found(() => button("Send") && !button("Send").disabled);
  field().dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  (await found(() => !button("Stop") && button("Tokens"))).click();
  await found(() => document.querySelector("[aria-label=Messages] [data-part=token]"));
  const tokens = document.querySelectorAll("[aria-label=Messages] [data-part=token]");
  const text = [...tokens].map((token) => token.textContent).join("");
  tokens[2].click();
  (await found(() => button("Attention"))).click();
  await found(() => document.querySelector("section[aria-label=Attention]"));
  return text;
})"""


def test_firefox_chats(
    deep: Callable[[str], tuple[Path, Path]], serve: Callable[..., str], browse: Callable[..., Evaluate]
) -> None:
    """Fails if an answer differs from the desktop's, or a token of the answer does not open its attention."""
    folder, site = deep("llama")
    text = browse(serve(site) + "#answer=6&temperature=0")(f"{CHATS}('hello')")
    with LanguageModel.from_pretrained(folder, device="software") as model:
        expected = model.chat([{"role": "user", "content": "hello"}], 6, temperature=0).read()
    assert text and text == expected.removesuffix("\ufffd")  # the page's tokens omit an incomplete last character


def test_firefox_chats_with_smollm2(
    chat_page: Path, serve: Callable[..., str], browse: Callable[..., Evaluate]
) -> None:
    """Fails if the page of `make demo-chat` gives a wrong answer in Firefox."""
    evaluate = browse(serve(chat_page) + "#answer=8&temperature=0")
    assert "Paris" in evaluate(f"{CHATS}('What is the capital of France?')")


@pytest.mark.soak
def test_firefox_goes_from_a_text_to_a_score_in_a_single_file(
    single_file: Path, browse: Callable[..., Evaluate]
) -> None:
    """Fails if a page opened from disk, without a server, cannot train a model, generate a text and compute a score."""
    evaluate = browse(single_file.as_uri() + "#tokens=1&view=train&step=train&steps=12&evalEvery=6")
    evaluate("glgpt.ready")
    until = "(async () => { while (!(%s)) await new Promise((next) => setTimeout(next, 50)); return true; })()"
    start = "document.querySelector('.train-run .ui-primary')"
    evaluate(until % f"{start} && !{start}.disabled")
    evaluate(f"({start}.click(), 0)")
    evaluate(until % "document.querySelector('.train-state')?.dataset.status === 'done'")
    first, last = evaluate("(({points}) => [points.at(1).loss, points.at(-1).loss])(glgpt.training.session)")
    assert last < first
    evaluate("glgpt.training.session.write(() => {}, {prompt: 'To', tokens: 5, temperature: 0.8})")
    score = evaluate(
        "glgpt.score().then((score) => score.figures.map(({name, nats_per_token}) => [name, nats_per_token]))"
    )
    figures = dict(score)
    assert figures["model"] < figures["chance"] and {"unigram", "bigram", "trigram", "embedded"} <= set(figures)


@pytest.mark.soak
def test_firefox_keeps_the_policy_of_a_single_file(single_file: Path, browse: Callable[..., Evaluate]) -> None:
    evaluate = browse(single_file.as_uri(), provokes=POLICY)
    watch(evaluate)
    evaluate("glgpt.ready")
    evaluate("glgpt.generate({prompt: 'To be', tokens: 2})")
    training = {"text": PLAY, "config": QUIET, "steps": 1}
    assert 0 < evaluate(f"glgpt.train({json.dumps(training)}).then(({{loss}}) => loss)") < 10
    keeps_the_policy(evaluate)


def watch(evaluate: Evaluate) -> None:
    """Records violations of the policy from now on."""
    evaluate("(addEventListener('securitypolicyviolation', (e) => (window.seen ??= []).push(e.effectiveDirective)), 0)")


def keeps_the_policy(evaluate: Evaluate) -> None:
    """Checks that there was no violation since `watch`, and that an injected script does not run."""
    assert evaluate("window.seen ?? null") is None
    slip_in = """(async () => {
      const script = document.createElement('script');
      script.textContent = 'window.ran = 1';
      document.body.append(script);
      await new Promise((resolve) => setTimeout(resolve, 200));
      return [window.ran ?? 0, window.seen];
    })()"""
    ran, seen = evaluate(slip_in)
    assert ran == 0 and seen and all(directive.startswith("script-src") for directive in seen)
