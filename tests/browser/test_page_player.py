"""Tests the page without weights: it opens model files for whose shapes it has programs, or reports why it cannot."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import activation
from helpers.chat_models import CHATML
from helpers.exports import USUAL, few_recordings
from helpers.gguf_files import LLAMA, TOKENS, VOCAB, WIDE_LLAMA, llama, tokenizer, wide_llama
from helpers.reference import random_weights, save_checkpoint

from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.opening import Checkpoint
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.player import mixes
from glgpt.page.player.export import PlayerOptions, export_player
from glgpt.page.prompts import QUESTIONS
from glgpt.program.tolerance import Tolerance
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.untrusted.chat import load_chat

Serve = Callable[..., str]
Browse = Callable[..., Any]

GPT2 = GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=2, n_head=2)
MIXED = {"blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "token_embd": "Q6_K"}  # types of these tensors in Q4_K_M
RARE = {"blk.0.attn_q": "Q3_K", "blk.0.attn_v": "Q8_0", "blk.0.ffn_up": "Q5_K", "blk.0.ffn_down": "IQ4_XS"}
LOAD = "Load the model"
ANSWERED = f"document.querySelector('[role=alert]') || document.body.textContent.includes('{LOAD}')"
READY = "globalThis.glgpt?.model"
# Gives the driver a GPU's name, so that the page plays recordings that blend. llvmpipe can blend too, but slowly.
LIKE_A_GPU = """
const real = WebGL2RenderingContext.prototype.getParameter;
WebGL2RenderingContext.prototype.getParameter = function (name) {
  return name === 0x9246 ? "A GPU" : real.call(this, name);
};
"""


# Makes dFdy in both columns of a quad (2 x 2 pixels) return the left column's derivative, as some drivers do.
COARSE = """
const source = WebGL2RenderingContext.prototype.shaderSource;
const coarse = ['float', 'vec4'].map((type) => `
highp ${type} coarse(highp ${type} v) {
  highp ${type} derivative = dFdy(v);
  return derivative - float(int(gl_FragCoord.x) & 1) * dFdx(derivative);
}`).join('');
WebGL2RenderingContext.prototype.shaderSource = function (shader, text) {
  const changed = text.replaceAll('dFdy(', 'coarse(');
  source.call(this, shader, changed === text ? text : changed.replace('\\n', `${coarse}\\n`));
};
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with small model files of random weights."""
    folder = tmp_path_factory.mktemp("models")
    llama(folder / "plain.gguf", "Q8_0")
    wide_llama(folder / "mixed.gguf", MIXED, "Q4_K", WIDE_LLAMA | {"general.name": "Mixed"})
    wide_llama(folder / "rare.gguf", RARE, "Q2_K", WIDE_LLAMA | {"general.name": "Rare"})
    save_checkpoint(folder / "gpt2", GPT2, random_weights(GPT2))
    for name, file in (("llama", "plain.gguf"), ("wide", "mixed.gguf")):
        with Checkpoint.open(folder / file) as checkpoint:
            (folder / f"{name}.json").write_text(json.dumps(checkpoint.config.to_dict()))
    return folder


@pytest.fixture(scope="module")
def player(once: Callable[..., Path], models: Path) -> Path:
    """Returns the page with programs of these models' shapes."""
    shapes = [models / "llama.json", models / "wide.json", models / "gpt2" / "config.json"]
    with few_mixes(), few_recordings(*USUAL, "4x8-blended", "4x8-paired"):
        return (
            once("player", lambda folder: export_player(folder / "page", PlayerOptions(shapes, common=False))) / "page"
        )


@contextlib.contextmanager
def few_mixes(*names: str) -> Iterator[None]:
    """Makes exports record programs only for the mixes `names`, by default for the mixes of the files of `models`.

    A mix gives the type of each tensor. "any" is for the files of all mixes that have no separate program.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            mixes, "RECIPES", [r for r in mixes.RECIPES if r.name in (names or ("F32", "Q8_0", "Q4_K_M", "any"))]
        )
        yield


def give(page: Any, files: list[Path]) -> str:
    """Chooses files, waits until the page has read their headers, and returns the text that the page shows."""
    page.set_input_files("input[type=file]", [str(file) for file in files])
    page.wait_for_function(ANSWERED)
    return str(page.inner_text("main"))


def load(page: Any) -> None:
    page.get_by_role("button", name=LOAD).click()
    page.wait_for_function(READY)
    page.evaluate("glgpt.ready")


def drop(page: Any, files: list[Path]) -> None:
    """Drops files on the page as a person does."""
    given = [[file.name, list(file.read_bytes())] for file in files]
    page.evaluate(
        """(files) => {
      const data = new DataTransfer();
      for (const [name, bytes] of files) data.items.add(new File([new Uint8Array(bytes)], name));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }""",
        given,
    )
    page.wait_for_function(ANSWERED)


def has_the_desktops_logits(page: Any, file: Path) -> None:
    with LanguageModel.from_pretrained(file, device="software") as model:
        ids = np.random.default_rng(0).integers(0, 250, 40).tolist()
        expected, _ = model.run_with_cache(ids, ["embed"])
        tolerance = Tolerance.of(model.dtype, model.config.n_layer, same_weights=True)
        greedy = list(model.generate_ids(ids[:5], 8, temperature=0))
    measured = tolerance.measure(activation(page, "logits", ids), expected)
    assert measured.excess <= 1, measured
    generated = page.evaluate("(ids) => glgpt.generate({ids, tokens: 8, temperature: 0, eos: false})", ids[:5])
    assert generated["ids"] == greedy


def test_a_dropped_file_runs_as_on_the_desktop(player: Path, models: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(player) + "#tokens=3")
    drop(page, [models / "mixed.gguf"])
    shown = page.inner_text("main")
    assert "Mixed" in shown and "the mix Q4_K_M" in shown and "graphics memory" in shown and "Keep a copy" in shown
    page.keyboard.press("Enter")  # the button has the focus
    page.wait_for_function(READY)
    has_the_desktops_logits(page, models / "mixed.gguf")
    assert page.evaluate("glgpt.encode('hello')") == [TOKENS.index("hello")]
    for name in ("Attention", "Blocks", "Textures", "Passes", "Device", "Text"):
        page.get_by_role("navigation").get_by_role("button", name=name, exact=True).click()
        page.wait_for_function("!document.querySelector('main [role=alert]') && document.querySelector('main section')")
    assert "Q4_K, Q6_K" in page.evaluate("glgpt.info().stored.join(', ')")
    page.get_by_role("button", name="Open another model").click()
    page.wait_for_function("document.body.textContent.includes('Open a model file')")


def test_a_rare_mix_of_types_runs_as_on_the_desktop(player: Path, models: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(player) + "#tokens=1")
    assert "weights are used as stored" in give(page, [models / "rare.gguf"])
    load(page)
    has_the_desktops_logits(page, models / "rare.gguf")


def test_quantised_weights_next_to_f16_are_decoded(player: Path, tmp_path: Path, serve: Serve, browse: Browse) -> None:
    """Regression: the page refused a file with both types, since it has no program for both in fewer than 32 bits."""
    file = wide_llama(tmp_path / "half.gguf", {"blk.0.ffn_up": "F16"}, "Q5_K")
    page = browse(serve(player) + "#tokens=1")
    shown = give(page, [file])
    assert "decoded to 32 bits" in shown and "--shape half.gguf" in shown
    load(page)
    has_the_desktops_logits(page, file)


def test_another_type_of_the_same_shape_needs_no_other_export(
    player: Path, models: Path, serve: Serve, browse: Browse
) -> None:
    page = browse(serve(player) + "#tokens=1")
    give(page, [models / "plain.gguf"])
    load(page)
    has_the_desktops_logits(page, models / "plain.gguf")


@pytest.mark.parametrize(
    ("file", "driver", "pairs"),
    [
        ("mixed.gguf", LIKE_A_GPU, True),
        ("plain.gguf", LIKE_A_GPU + COARSE, None),
        pytest.param("plain.gguf", LIKE_A_GPU, True, marks=pytest.mark.soak),
    ],
    ids=["pairs", "coarse derivatives", "pairs, q8"],
)
def test_a_gpu_adds_up_products_by_blending(
    player: Path, models: Path, serve: Serve, browse: Browse, file: str, driver: str, pairs: bool | None
) -> None:
    """Fails if a GPU plays the recording for devices without blending, which has at least twice as many passes."""
    page = browse(serve(player) + "#tokens=1", driver, measures=True)
    give(page, [models / file])
    load(page)
    chosen = page.evaluate(
        "(({ blends, pairs, draw_buffers }) => [blends, pairs, draw_buffers])(glgpt.model.recording)"
    )
    assert chosen == [True, pairs, 8]
    has_the_desktops_logits(page, models / file)
    page.get_by_role("button", name="MLP of block 0: open in Textures").focus()  # no pass computes this activation
    assert "products for h.0.mlp.act in texture" in page.get_by_role("tooltip").inner_text()


def test_the_files_of_a_folder_run_as_on_the_desktop(player: Path, models: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(player) + "#tokens=1")
    assert "config.json is missing" in give(page, [models / "gpt2" / "model.safetensors"])
    shown = give(page, [models / "gpt2" / name for name in ("config.json", "model.safetensors")])
    assert "the mix F32" in shown and "none that this page supports" in shown
    load(page)
    has_the_desktops_logits(page, models / "gpt2")


def test_a_folder_without_ends_of_text_chats(
    player: Path, models: Path, tmp_path: Path, serve: Serve, browse: Browse
) -> None:
    """Fails if chat_template.jinja is not read, or the tokenizer's end token does not end a text."""
    folder = tmp_path / "folder"
    convert(models / "plain.gguf", folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": []}')
    (folder / "chat_template.jinja").write_text(CHATML)
    page = browse(serve(player) + "#tokens=1")
    give(page, sorted(folder.iterdir()))
    load(page)
    page.get_by_role("navigation").get_by_role("button", name="Chat", exact=True).wait_for()
    page.get_by_role("button", name=QUESTIONS[0]).wait_for()  # the suggested prompt is a question, as for a chat
    tokenizer = load_tokenizer(folder, VOCAB)
    assert tokenizer and page.evaluate("(id) => glgpt.model.ends(id)", tokenizer.eos)
    chat = load_chat(folder, tokenizer)
    assert chat and page.evaluate("glgpt.model.promptIds('hello')") == chat.encode(tokenizer, "hello")


def test_files_that_it_cannot_open_say_what_to_do(
    player: Path, models: Path, tmp_path: Path, serve: Serve, browse: Browse
) -> None:
    page = browse(serve(player) + "#tokens=1")
    other = llama(tmp_path / "it's other.gguf", metadata=LLAMA | tokenizer() | {"llama.rope.freq_base": 5e5})
    shown = give(page, [other])
    assert "It differs from" in shown and "in rope.freq_base" in shown
    assert "glgpt export --player --shape 'it'\\''s other.gguf' --out player" in shown
    experts = llama(tmp_path / "experts.gguf", metadata=LLAMA | tokenizer() | {"llama.expert_count": 8})
    assert "in expert_count" in give(page, [experts])
    window = llama(tmp_path / "window.gguf", metadata=LLAMA | tokenizer() | {"llama.attention.sliding_window": 63})
    assert "in attention.sliding_window" in give(page, [window])
    (tmp_path / "short.gguf").write_bytes((models / "plain.gguf").read_bytes()[:-100])
    assert "it is truncated" in give(page, [tmp_path / "short.gguf"])
    (tmp_path / "notes.txt").write_text("notes")
    assert "notes.txt is not a model file" in give(page, [tmp_path / "notes.txt"])
    assert "the mix Q8_0" in give(page, [models / "plain.gguf"])  # the page still opens other files


def test_a_kept_model_opens_on_the_next_visit_and_can_be_removed(
    player: Path, models: Path, serve: Serve, browse: Browse
) -> None:
    address = serve(player) + "#tokens=1"
    page = browse(address)
    give(page, [models / "plain.gguf"])
    page.get_by_label("Keep a copy").check()
    load(page)
    page.reload()
    page.get_by_role("button", name="Open plain.gguf").click()
    page.wait_for_function(ANSWERED)
    assert not page.get_by_label("Keep a copy").count()
    load(page)
    page.reload()
    page.get_by_role("button", name="Remove plain.gguf").click()
    page.wait_for_function("!document.body.textContent.includes('Kept in this browser')")


@pytest.fixture
def elsewhere(models: Path, serve: Serve) -> Iterator[str]:
    """Yields the address of a second server, from which pages of other origins may read files."""
    import threading
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Open(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("Access-Control-Allow-Origin", "*")
            super().end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Open, directory=str(models)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_a_link_is_fetched_after_the_visitor_agrees(
    once: Callable[..., Path], models: Path, tmp_path: Path, elsewhere: str, serve: Serve, browse: Browse
) -> None:
    """Fails if the page fetches before the visitor agrees, or from servers that its policy does not name."""
    options = PlayerOptions([models / "llama.json"], common=False, hosts=[elsewhere])
    with few_mixes(), few_recordings(*USUAL):
        export_player(tmp_path / "page", options)
    page = browse(f"{serve(tmp_path / 'page')}?model={elsewhere}/plain.gguf#tokens=1")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.wait_for_function("document.body.textContent.includes('Fetch plain.gguf?')")
    assert not any(url.startswith(elsewhere) for url in requests)
    page.get_by_role("button", name="Fetch the model").click()
    page.wait_for_function(ANSWERED)
    load(page)
    assert page.evaluate("glgpt.generate({prompt: 'hello', tokens: 2, eos: false}).then((g) => g.ids.length)") == 2
    page.goto(page.url.replace(elsewhere, "https://models.example"))
    page.reload()
    page.get_by_role("button", name="Fetch the model").click()
    page.wait_for_function("document.querySelector('[role=alert]')")
    assert "--fetch-from https://models.example" in page.inner_text("[role=alert]")


def test_the_start_screen_fits_a_phone(player: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(player) + "#tokens=1", viewport={"width": 360, "height": 640})
    page.wait_for_function("document.body.textContent.includes('Open a model file')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    button = page.get_by_role("button", name="Choose a file").bounding_box()
    assert button["height"] >= 40 and button["y"] + button["height"] < 640
