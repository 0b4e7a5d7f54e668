"""Tests training in the page: losses and files as on the desktop, reloads, lost contexts, and hidden tabs."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import FOLLOW
from training_page import CONFIG, PLAY, QUIET, SEED, STATE, STEPS, TRAIN, TWELVE, Browse, Serve, whole_run

from glgpt.inference.model import LanguageModel
from glgpt.system.files import data_path
from glgpt.text.dataset import batch, fixed_windows, windows
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import make_tokenizer
from glgpt.training.settings import settings_for
from glgpt.training.trainer import Trainer

pytestmark = pytest.mark.slow
HIDDEN = """
Object.defineProperty(document, 'hidden', {get: () => globalThis.unseen ?? false});
const later = globalThis.setTimeout;  // as a browser throttles timers of a hidden page
globalThis.setTimeout = (work, ms, ...rest) => later(work, globalThis.unseen ? Math.max(ms ?? 0, 1000) : ms, ...rest);
globalThis.requestAnimationFrame = new Proxy(requestAnimationFrame, {
  apply: (target, self, args) => globalThis.unseen ? 0 : Reflect.apply(target, self, args),
});"""


def desktop_run(
    text: str, steps: int, of: int, precision: str = "f32"
) -> tuple[list[tuple[float, float]], dict[int, float]]:
    """Trains on the desktop. Returns (loss, gradient norm) of each step, and the validation loss of each tenth step."""
    data = text.encode()
    train, validation = (
        np.frombuffer(x, np.uint8) for x in (data[: int(len(data) * 0.9)], data[int(len(data) * 0.9) :])
    )
    s = settings_for("mini", None, {"steps": of, "seed": SEED})
    results, judged = [], {}
    options: dict[str, Any] = {"betas": (s.beta1, s.beta2), "weight_decay": s.weight_decay, "clip": s.clip}
    options["precision"] = precision
    with Trainer(s.model_config(256), batch=s.batch, lr=s.lr, seed=SEED, device="software", **options) as trainer:
        for step in range(1, steps + 1):
            results += trainer.submit(*batch(train, SEED, step, s.batch, s.context), s.lr_at(step))
            if step % 10 == 0:
                first = fixed_windows(validation, s.context, 8192)
                judged[step] = trainer.evaluate(*windows(validation, first, s.context))
        results += trainer.drain()
    return [(r.loss, r.grad_norm) for r in results], judged


def test_losses_equal_the_desktops(trainee: Any) -> None:
    done, points = trainee.evaluate(TRAIN, [{"text": PLAY, "config": CONFIG, "steps": STEPS, "seed": SEED}, 0])
    expected, judged = desktop_run(PLAY, STEPS, STEPS)
    assert len(points) == done["step"] == STEPS
    np.testing.assert_allclose(points, expected, atol=1e-4)
    assert points[-1][0] < points[0][0] - 0.5  # the loss falls
    found = trainee.evaluate("glgpt.training.session.points.filter((p) => p.validation && p.step)")
    assert [p["step"] for p in found] == [10, 20]
    np.testing.assert_allclose([p["validation"] for p in found], list(judged.values()), atol=1e-4)
    np.testing.assert_allclose([p["bits"] for p in found], np.array(list(judged.values())) / np.log(2), atol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_what_is_saved_writes_the_same_text_on_the_desktop(trainee: Any, tmp_path: Path, tokenizer: str) -> None:
    page = trainee
    text = PLAY[:30_000] + "naïve – 漢字 🙂"
    config = CONFIG | {"tokenizer": tokenizer, "validation": 0}
    page.evaluate(TRAIN, [{"text": text, "config": config, "steps": 12, "seed": SEED}, 0])
    script = """async () => {
      const data = await glgpt.training.zip();
      let text = '';
      for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
      return btoa(text);
    }"""

    saved = base64.b64decode(page.evaluate(script))
    folder = tmp_path / "model"
    zipfile.ZipFile(io.BytesIO(saved)).extractall(folder)
    make_tokenizer(tokenizer, Text.of_string(text), tmp_path / "tokenizer")
    for name in ("vocab.json", "merges.txt"):
        assert (folder / name).read_bytes() == (tmp_path / "tokenizer" / name).read_bytes()

    written = """async () => {
      const {trainer, writer} = glgpt.training.session, ids = [];
      const settings = {temperature: 0, topK: null, topP: null, seed: 0};
      for await (const id of trainer.generate(writer.encode('First'), 20, settings)) ids.push(id);
      return ids;
    }"""
    with LanguageModel.from_pretrained(folder, device="software") as model:
        assert page.evaluate(written) == list(model.generate_ids("First", 20, temperature=0))
    # The desktop can resume the state.
    with Trainer.load(folder, device="software") as trainer:
        assert trainer.steps_done == 12
    # The page can load the files again.
    page.evaluate(
        """async ([text, packed]) => {
          const data = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
          globalThis.saved = await glgpt.training.current().checkpoint.state;
          location.hash = 'tokens=1&view=train&step=write';
          const file = new File([data], 'model.zip');
          while (!document.querySelector('.train-save input')) await new Promise((r) => setTimeout(r, 50));
          const input = document.querySelector('.train-save input'), list = new DataTransfer();
          list.items.add(file);
          input.files = list.files;
          input.dispatchEvent(new Event('change', {bubbles: true}));
        }""",
        [text, base64.b64encode(saved).decode()],
    )
    page.wait_for_function("glgpt.training.session?.checkpoint?.points.length === 0", polling=200)
    same = """async () => {
      const again = await glgpt.training.session.trainer.state(1);
      const weights = saved.slice(-100_000);  // without the header, whose learning rate differs
      return [glgpt.training.session.step, again.slice(-100_000).every((x, i) => x === weights[i])];
    }"""
    step, equal = page.evaluate(same)
    assert step == 12 and equal
    page.evaluate(FOLLOW, "tokens=1&view=text")


def test_a_reload_goes_on_to_the_same_bits(trainee: Any) -> None:
    whole = whole_run(trainee)
    step, points = trainee.evaluate(TRAIN, [TWELVE, 5])
    assert 5 <= step < 12
    trainee.evaluate("location.hash = 'tokens=1&view=train&step=write'")  # this view opens the saved run after a reload
    trainee.reload()
    trainee.evaluate("glgpt.ready")
    trainee.evaluate("glgpt.resume()")
    trainee.wait_for_function("glgpt.training.session.status === 'done'", polling=200)
    assert trainee.evaluate("glgpt.training.session.points.map((p) => p.step)") == list(range(1, 13))
    assert trainee.evaluate("glgpt.training.session.points.map((p) => p.loss)")[: len(points)] == [p[0] for p in points]
    assert trainee.evaluate(STATE) == whole
    trainee.evaluate("location.hash = 'tokens=1&view=text'")


def test_a_lost_context_goes_on_to_the_same_bits(trainee: Any) -> None:
    whole = whole_run(trainee)
    script = """async (options) => {
      const lose = glgpt.model.device.gl.getExtension('WEBGL_lose_context'), {contexts} = glgpt.info();
      let lost = false;
      await glgpt.train({...options, onStep: (p) => {
        if (p.step === 4) void glgpt.training.session.save();
        if (p.step === 7 && !lost) {
          lost = true;
          lose.loseContext();
          setTimeout(() => lose.restoreContext(), 200);
        }
      }});
      return glgpt.info().contexts - contexts;
    }"""
    assert trainee.evaluate(script, TWELVE) == 1
    assert trainee.evaluate("glgpt.training.session.points.map((p) => p.step)") == list(range(1, 13))
    assert trainee.evaluate(STATE) == whole
    # The page's own model was restored too.
    assert (
        trainee.evaluate("glgpt.generate({prompt: 'To be', tokens: 5, temperature: 0}).then((r) => r.ids.length)") == 5
    )


@pytest.mark.soak
def test_a_hidden_tab_goes_on_at_speed(site: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(site) + "#tokens=1", HIDDEN)
    page.evaluate("glgpt.ready")
    options = {"text": PLAY, "config": QUIET, "steps": 60, "seed": SEED}
    script = """async (options) => {
      globalThis.unseen = false;
      let start = 0;
      await glgpt.train({...options, onStep: (p) => {
        if (p.step === 10) { start = performance.now(); globalThis.unseen = true; }
      }});
      return performance.now() - start;
    }"""
    assert page.evaluate(script, options) < 30_000  # with a throttled timer per step, 50 steps would take 50 s


@pytest.mark.soak
@pytest.mark.parametrize(("init", "storage", "buffers"), [("no float", "uint", 8), ("four", "float", 4)])
def test_poorer_devices_train_the_same(
    site: Path, serve: Serve, browse: Browse, init: str, storage: str, buffers: int
) -> None:
    from test_page import FOUR_BUFFERS, NO_FLOAT

    page = browse(serve(site) + "#tokens=1", NO_FLOAT if init == "no float" else FOUR_BUFFERS)
    page.evaluate("glgpt.ready")
    info = page.evaluate("glgpt.info()")
    assert (info["storage"], info["limits"]["drawBuffers"]) == (storage, buffers)
    _, points = page.evaluate(TRAIN, [{"text": PLAY, "config": QUIET, "steps": 10, "seed": SEED}, 0])
    expected, _ = desktop_run(PLAY, 10, 10)
    np.testing.assert_allclose(points, expected, atol=1e-4)


PRESSABLE = """
globalThis.pressable = [];  // holds whether Start was enabled, after each change
new MutationObserver(() => {
  const start = document.querySelector('.train-run .ui-primary');
  if (start && pressable.at(-1) !== !start.disabled) pressable.push(!start.disabled);
}).observe(document, {subtree: true, childList: true, attributes: true});"""


def test_the_tab_trains_draws_and_fits_a_phone(site: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the tab does not train, draw or fit a phone, or if Start is enabled too early or several times."""
    from test_page_views import PAINTED

    page = browse(serve(site) + "#tokens=1&view=train", init=PRESSABLE, viewport={"width": 390, "height": 844})
    page.evaluate("glgpt.ready")
    page.get_by_text("Not started").wait_for()
    page.wait_for_function("pressable.at(-1)")
    page.wait_for_timeout(500)
    assert page.evaluate("pressable") == [False, True]
    page.get_by_role("button", name="Start").click()
    page.wait_for_function("document.querySelector('[data-part=progress]')?.dataset.step > 20", polling=200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for selector in (".train-inside [data-part=heads]", ".train-matrix"):
        page.wait_for_function(f"({PAINTED})({selector!r}) > 0.2", polling=200)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Continue").wait_for()
    width = page.evaluate("document.querySelector('.train-matrix').width")
    page.get_by_label("Parameter", exact=True).select_option("h.0.mlp.c_fc.weight")
    page.wait_for_function(f"document.querySelector('.train-matrix').width !== {width}")  # drawn again without a step
    step = page.evaluate("glgpt.training.session.step")
    page.get_by_role("button", name="One step").click()
    page.wait_for_function(f"glgpt.training.session.step === {step + 1}", polling=200)
    page.locator(".train-stages").get_by_role("button", name="Write").click()
    page.get_by_label("Prompt").fill("ROMEO:")
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function("glgpt.training.session.samples.at(-1).prompt === 'ROMEO:'", polling=200)
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Delete the model?").click()
    page.get_by_role("button", name="Start").wait_for()
    assert page.evaluate("glgpt.training.session") is None


def test_what_cannot_be_trained_is_said(trainee: Any) -> None:
    def said(options: dict[str, Any]) -> str:
        found: str = trainee.evaluate("(o) => glgpt.train(o).then(() => '', (e) => e.message)", options)
        return found

    assert "too few" in said({"text": "short"})
    assert "must be a string" in said({"text": 5})
    assert "outside the vocabulary" in said({"ids": [1, 999]})
    assert "steps is 0" in said({"text": PLAY, "steps": 0})
    assert "too large for this text" in said({"text": "ab" * 500, "config": {"tokenizer": "bpe:300"}})
    assert "mini with bytes" in said({"text": PLAY, "config": {"preset": "huge"}})
    assert "only one" in said({})
    for key, value in (("n_layer", 2), ("validation", 1), ("evalEvery", -1), ("sampleEvery", 0.5)):
        assert key in said({"text": PLAY, "config": {key: value}})


@pytest.mark.soak
def test_the_bpe_of_the_page_tests_is_the_desktops(tmp_path: Path) -> None:
    """Fails if the desktop disagrees with viewer/test/bpe.json, which Vitest compares with the page's tokenizer."""
    for i, case in enumerate(json.loads((data_path("viewer") / "test/bpe.json").read_text())):
        tokenizer = make_tokenizer(f"bpe:{case['size']}", Text.of_string(case["text"]), tmp_path / str(i))
        vocab = json.loads((tmp_path / str(i) / "vocab.json").read_text())
        assert list(vocab) == case["vocab"]
        assert (tmp_path / str(i) / "merges.txt").read_text().split("\n")[1:-1] == case["merges"]
        assert tokenizer.encode(case["text"]) == case["ids"]


def test_the_bundle_stays_small(site: Path) -> None:
    """Limits the page's size. The grammar worker has its own limit, since the page fetches it for constraints only."""
    files = [f for f in site.rglob("*") if f.suffix in (".js", ".css", ".html")]
    later = [f for f in files if f.name.startswith("grammar-worker")]
    size = {f: len(gzip.compress(f.read_bytes())) for f in files}
    assert len(later) == 1 and size[later[0]] <= 400 << 10
    assert sum(bytes_ for f, bytes_ in size.items() if f not in later) <= 300 << 10
