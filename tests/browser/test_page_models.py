"""Tests that every tab can show the page's own model, the model in training, and a model from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import FOLLOW
from browser import logits as logits_of
from test_page_pipeline import unpacked
from training_page import PLAY, QUIET, SEED, TRAIN, Browse, Serve

from glgpt.inference.model import LanguageModel

pytestmark = pytest.mark.slow
BPE = {"text": PLAY, "config": {**QUIET, "tokenizer": "bpe:300"}, "seed": SEED}
SLOW = 90_000  # ms; waits may be long, since other processes may use the two cores too
PROMPT = "To be, or not"
# Tracks all existing textures and their bytes. Runs before the page creates its first texture.
COUNTED = """
  globalThis.textures = new Set();
  const make = WebGL2RenderingContext.prototype.createTexture;
  const drop = WebGL2RenderingContext.prototype.deleteTexture;
  const store = WebGL2RenderingContext.prototype.texStorage3D;
  WebGL2RenderingContext.prototype.createTexture = function () {
    const texture = make.call(this);
    globalThis.textures.add(texture);
    return texture;
  };
  WebGL2RenderingContext.prototype.deleteTexture = function (texture) {
    globalThis.textures.delete(texture);
    return drop.call(this, texture);
  };
  WebGL2RenderingContext.prototype.texStorage3D = function (...of) {
    const bound = this.getParameter(this.TEXTURE_BINDING_2D_ARRAY);
    bound.bytes = 16 * of[3] * of[4] * of[5];
    return store.apply(this, of);
  };
"""
BYTES = "[...textures].reduce((sum, {bytes = 0}) => sum + bytes, 0)"


def choose(page: Any, name: str) -> None:
    page.get_by_role("group", name="Model").get_by_role("button", name=name).click()


def used(page: Any, which: str) -> None:
    page.wait_for_function(f"glgpt.used === '{which}' && !document.querySelector('.models button:disabled')", SLOW)
    settled(page)


def settled(page: Any) -> None:
    page.wait_for_function("document.querySelectorAll('.text-stream .text-token').length > 3", SLOW)


def logits(page: Any) -> np.ndarray[Any, Any]:
    return logits_of(page, page.evaluate("(p) => glgpt.encode(p)", PROMPT))


@pytest.mark.soak
def test_every_tab_shows_the_model_in_training(site: Path, serve: Serve, browse: Browse, tmp_path: Path) -> None:
    page = browse(serve(site) + "#tokens=6&temperature=0", COUNTED)
    page.set_default_timeout(SLOW)
    page.evaluate("glgpt.ready")
    settled(page)
    page.wait_for_function("glgpt.model.cache.watcher", timeout=SLOW)  # the drawing tools are ready
    assert page.locator(".models-chip").count() == 0
    page.evaluate(TRAIN, [{**BPE, "steps": 12}, 0])
    before = page.evaluate(BYTES)

    choose(page, "mine, step 12")
    used(page, "mine")
    own = page.evaluate("glgpt.model.memory()")
    line = 256 * 16  # bytes of the texture with which a view draws the new model
    assert own["weight"] == 0 and page.evaluate(BYTES) - before - sum(own.values()) in (0, line)  # no copy of a weight
    with LanguageModel.from_pretrained(unpacked(page, tmp_path / "model"), device="software") as model:
        ids = model.tokenizer.encode(PROMPT)
        assert page.evaluate("(p) => glgpt.encode(p)", PROMPT) == ids
        np.testing.assert_allclose(logits(page), model.logits(ids).reshape(-1), atol=2e-4, rtol=1e-4)
        text = page.evaluate("(p) => glgpt.generate({prompt: p, tokens: 8, seed: 3}).then((r) => r.text)", PROMPT)
        assert text == model.generate(PROMPT, 8, temperature=0.8, seed=3).read()

    page.evaluate("glgpt.training.session.plan.rates.steps = 20")
    page.evaluate("glgpt.training.session.start()")
    page.wait_for_function("glgpt.training.session.step === 20", SLOW)
    with LanguageModel.from_pretrained(unpacked(page, tmp_path / "later"), device="software") as model:
        wanted = model.logits(model.tokenizer.encode(PROMPT)).reshape(-1)
    np.testing.assert_allclose(logits(page), wanted, atol=2e-4, rtol=1e-4)  # the current parameters

    for view, ready in {
        "Attention": "document.querySelector('[data-view=attention] canvas')",
        "Blocks": "Number(document.querySelector('[data-view=blocks]').dataset.columns) > 3",
        "Textures": "document.querySelector('[data-view=textures] canvas')",
        "Passes": "document.querySelector('[data-view=passes]')",
        "Device": "document.querySelector('[data-view=device]').textContent.includes('not copied')",
    }.items():
        page.get_by_role("navigation").get_by_role("button", name=view, exact=True).click()
        page.wait_for_function(ready, SLOW)
        assert "train here" in page.locator(".band-about").inner_text()
    assert not page.get_by_role("button", name="Compare").count()  # the desktop has no results of this model
    page.evaluate("glgpt.intervene(['h.0.mlp'])")
    assert np.abs(logits(page) - wanted).max() < 2e-4  # `logits` ignores the intervention
    page.evaluate("glgpt.intervene([])")

    page.get_by_role("navigation").get_by_role("button", name="Text", exact=True).click()
    choose(page, "small")
    used(page, "own")
    page.wait_for_function("!glgpt.model.activations.player")
    page.evaluate("glgpt.borrow(async (m) => m.rest())")
    drawing = 3 * line  # bytes of textures of the opened views
    assert page.evaluate(BYTES) <= before + drawing  # the other model's memory is released


@pytest.mark.soak
def test_training_continues_while_its_model_is_looked_at(trainee: Any) -> None:
    page = trainee
    page.evaluate(FOLLOW, "prompt=To+be&tokens=6")
    page.evaluate("(o) => void glgpt.train({...o, steps: 100000}).catch(() => {})", BPE)
    page.wait_for_function("glgpt.training.session?.step > 2", SLOW)
    for view in ("Attention", "Textures", "Text"):
        page.get_by_role("navigation").get_by_role("button", name=view, exact=True).click()
        page.wait_for_function("document.querySelector('.models-chip')?.textContent.includes('loss')", SLOW)
    choose(page, "mine")
    used(page, "mine")
    page.wait_for_function("!document.querySelector('.models').textContent.includes('Compiling')", SLOW)
    at = page.evaluate("glgpt.training.session.step")
    assert page.evaluate("glgpt.generate({prompt: 'A', tokens: 12}).then((r) => r.ids.length)") == 12
    assert page.evaluate("glgpt.activation('h.0.attn.pattern').then((r) => r.shape[0])") == 2
    assert page.evaluate("glgpt.generate({ids: [999]}).catch((e) => e.message)").startswith(
        "Id 999"
    )  # a failed request does not affect the training run
    page.wait_for_function(f"glgpt.training.session.step > {at} + 3", SLOW)
    assert page.evaluate("glgpt.training.session.status") == "running"

    page.evaluate("glgpt.training.reset()")  # also removes the model in training
    page.wait_for_function("glgpt.used === 'own'", SLOW)
    assert page.evaluate("glgpt.generate({prompt: 'A', tokens: 2, eos: false}).then((r) => r.ids.length)") == 2
    page.wait_for_function("!document.querySelector('.models-chip')")


@pytest.mark.soak
def test_a_lost_context_is_found_again_by_the_model_in_training(trainee: Any) -> None:
    page = trainee
    page.evaluate(FOLLOW, "prompt=To+be&tokens=4")
    page.evaluate(TRAIN, [{**BPE, "steps": 6}, 0])
    choose(page, "mine")
    used(page, "mine")
    wanted = page.evaluate("glgpt.generate({prompt: 'My lord', tokens: 20, seed: 2}).then((r) => r.ids)")
    found = page.evaluate("""async () => {
      const lose = glgpt.own.device.gl.getExtension('WEBGL_lose_context');
      let heard = 0;
      const onToken = () => {
        if (++heard !== 5) return;
        lose.loseContext();
        setTimeout(() => lose.restoreContext(), 200);
      };
      const {ids} = await glgpt.generate({prompt: 'My lord', tokens: 20, seed: 2, onToken});
      return [ids, heard];
    }""")
    assert found == [wanted, 20]


def test_a_saved_model_is_opened_beside_the_pages_own(trainee: Any, tmp_path: Path) -> None:
    page = trainee
    page.evaluate(FOLLOW, "prompt=To+be&tokens=4")
    page.evaluate(TRAIN, [{**BPE, "steps": 6}, 0])
    folder = unpacked(page, tmp_path / "model")
    page.evaluate("glgpt.training.reset()")
    page.locator(".models input[type=file]").set_input_files(
        [str(p) for p in folder.iterdir() if p.name != "state.safetensors"]
    )
    used(page, "file")
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = model.logits(model.tokenizer.encode(PROMPT)).reshape(-1)
    np.testing.assert_allclose(logits(page), wanted, atol=2e-4, rtol=1e-4)
    (folder / "play.txt").write_text("a text")
    for names, said in (
        (["play.txt"], "play.txt holds no model: choose the .zip that Download saved"),
        (["config.json"], "config.json holds no model"),
        (["config.json", "model.safetensors"], "vocab.json is missing next to the weights: choose"),
    ):
        page.locator(".models input[type=file]").set_input_files([str(folder / name) for name in names])
        page.get_by_text(said).wait_for()
    page.get_by_role("button", name="Dismiss the message").click()
    assert not page.get_by_text(said).count()
    assert page.evaluate("glgpt.used") == "file"
    choose(page, "small")
    used(page, "own")
