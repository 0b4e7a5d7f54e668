"""Tests the page before the model can run: the recorded generation and the loading progress."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import PACK
from test_page_says import SLOW_SHADERS

from glgpt import LanguageModel
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.sampling import Sampler
from glgpt.models.views import stages
from glgpt.page.prompts import TEXT_SAMPLING, Prompts
from glgpt.page.recorded import recorded_machine

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]


def unpacked(data: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(data), np.uint8).astype(int)


def test_a_recorded_run_is_there_while_shaders_compile(embedded: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the recorded text, alternatives, attention or picture of the blocks differ from the desktop's."""
    with LanguageModel.from_pretrained() as desktop:
        prompts = Prompts.load(desktop.path, desktop.config, ())
        given, opening = prompts.opening(), prompts.continuation()
        assert given
        ids = [*given, *desktop.generate_ids(given, opening.tokens, seed=opening.seed, **TEXT_SAMPLING)]
        logits, found = desktop.run_with_cache(ids, ["h.3.attn.pattern"])
        assert desktop.tokenizer
        text = desktop.tokenizer.decode(ids)
        label = desktop.tokenizer.label
        machine = recorded_machine(desktop, ids, len(given), logits)
        names = [stage.title for stage in stages(desktop.config, 0)]
    page = browse(serve(embedded) + "#tokens=3", SLOW_SHADERS.replace("MS", "200"))
    page.wait_for_function("document.querySelector('.text-recorded .text-token')")
    assert page.evaluate("glgpt.model === undefined || !glgpt.model.times.readyMs")
    assert "the text below is a recording" in page.locator(".shell-loading").inner_text()
    shown = page.evaluate("[...document.querySelectorAll('.text-token')].map((t) => t.textContent).join('')")
    assert shown == text
    assert page.locator(".machine-stage-names span").all_inner_texts() == names
    seen = page.evaluate(
        """() => {
      const pack = PACK;
      const {width, height} = document.querySelector('.machine canvas');
      const {data} = document.querySelector('.machine canvas').getContext('2d').getImageData(0, 0, width, height);
      return [width, pack(data.filter((_, i) => i % 4 === 3)), pack(data.filter((_, i) => i % 4 === 2))];
    }""".replace("PACK", PACK)
    )
    last = unpacked(machine["pictures"][-1])
    cell, labels = machine["cell"][0], seen[0] - 8 * machine["cell"][0]
    assert labels > 0 and machine["at"][-1] == len(ids) - 1
    # The columns between the embedding and the first block hold the rows' labels.
    pictures = [unpacked(bytes_).reshape(-1, seen[0]) for bytes_ in seen[1:]]
    alpha, hue = (np.delete(picture, np.s_[cell : cell + labels], 1).ravel() for picture in pictures)
    np.testing.assert_array_equal(alpha, 2 * abs(last - 127))
    blue = hue[abs(last - 127) > 60]  # in more transparent pixels, a canvas stores the hue inexactly
    np.testing.assert_array_equal(blue > 139, last[abs(last - 127) > 60] > 127)
    at = len(given) + 5
    page.locator(".text-token").nth(at).hover()
    rows = page.get_by_role("group", name="Alternatives to").locator("button.text-cut, button:not(.text-cut)")
    best = np.argsort(-logits[at - 1], kind="stable")[:8]
    assert rows.locator("code").all_inner_texts() == [label(int(i)) for i in best]
    drawn = Sampler(SamplingOptions(**TEXT_SAMPLING, seed=opening.seed)).probabilities(logits[at - 1])[best]
    texts = page.locator(".text-alternatives button .text-sampled").all_inner_texts()
    np.testing.assert_allclose([0 if t == "–" else float(t.rstrip("%")) for t in texts], 100 * drawn, atol=0.51)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Attention").click()
    opacity = page.evaluate(
        """() => {
      const canvas = document.querySelector('.attention-still canvas'), {width} = canvas;
      const {data} = canvas.getContext('2d').getImageData(0, 0, width, canvas.height);
      return [width, (PACK)(data.filter((_, i) => i % 4 === 3))];
    }""".replace("PACK", PACK)
    )
    width, values = opacity
    n = width // 8
    seen = unpacked(values).reshape(6, n, 8, n)[3, :, 5, :] / 255
    np.testing.assert_allclose(seen, found["h.3.attn.pattern"][5, :n, :n] ** 0.4, atol=0.003)
    page.evaluate("glgpt.ready")
    page.wait_for_function("!document.querySelector('.attention-still') && !document.querySelector('.shell-loading')")


def test_the_first_seconds(embedded: Path, serve: Serve, browse: Browse) -> None:
    """Fails if, at 10 Mbit/s, the first paint takes more than 1 s or the recorded run is not interactive within 2 s.

    Both limits are extended by the time that this machine takes to fetch the page's script. Also fails if the page
    replaces the recorded text when the model is ready, or cannot continue this text. (A page that is opened with
    settings replaces it.)
    """
    page = browse("about:blank#")
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    rate = {"latency": 20, "downloadThroughput": 10e6 / 8, "uploadThroughput": 10e6 / 8, "offline": False}
    session.send("Network.emulateNetworkConditions", rate)
    page.add_init_script("""
      new MutationObserver(() => {
        if (document.querySelector('.text-recorded .text-token')) globalThis.interactive ??= performance.now();
      }).observe(document, {subtree: true, childList: true});""")
    page.goto(serve(embedded))
    page.wait_for_function("globalThis.interactive && performance.getEntriesByName('first-contentful-paint').length")
    paint, interactive, script = json.loads(
        page.evaluate("""JSON.stringify([
          performance.getEntriesByName('first-contentful-paint')[0].startTime, interactive,
          performance.getEntriesByType('resource').find((r) => r.name.endsWith('.js')).responseEnd])""")
    )
    assert paint < 1000 + script and interactive < 2000 + script, (paint, interactive, script)
    text = "[...document.querySelectorAll('.text-token')].map((t) => t.textContent).join('')"
    before = page.evaluate(text)
    assert before.startswith("JULIET:") and before.endswith(".")
    session.send("Network.emulateNetworkConditions", rate | {"downloadThroughput": -1})  # the weights at full speed
    page.evaluate("glgpt.ready")
    page.get_by_role("button", name="Generate", exact=True).wait_for()
    page.wait_for_function("document.querySelector('.machine-cells')?.dataset.drawn > 0")
    assert page.evaluate(text) == before
    page.get_by_role("button", name="Draw the next token").click()
    page.wait_for_function(f"({text}).length > {len(before)}")
    assert page.evaluate(text).startswith(before)


@pytest.mark.soak
def test_the_recorded_text_stays_until_the_model_has_written_as_much(
    embedded: Path, serve: Serve, browse: Browse
) -> None:
    """Fails if, when the model is ready, anything moves, or text that a visitor may be reading disappears."""
    page = browse("about:blank#", SLOW_SHADERS.replace("MS", "80"))
    page.add_init_script("""
      globalThis.counts = [];
      new MutationObserver(() => {
        const count = document.querySelectorAll('.text-token').length;
        if (count !== counts.at(-1)) counts.push(count);
      }).observe(document, {subtree: true, childList: true});""")
    recorded = json.loads((embedded / "recorded.json").read_text())
    more = len(recorded["tokens"]) - recorded["given"] + 10
    page.goto(serve(embedded) + f"#tokens={more}&seed={recorded['seed']}")
    page.wait_for_function("document.querySelector('.text-recorded .text-token')")
    tops = (
        "['.shell-tabs', '.machine canvas', '.text-stream'].map((q) => "
        "document.querySelector(q).getBoundingClientRect().top)"
    )
    before = page.evaluate(tops)
    page.evaluate("glgpt.ready")
    page.wait_for_function("!document.querySelector('.text-recorded')")
    assert page.evaluate(tops) == before
    page.wait_for_function(f"document.querySelectorAll('.text-token').length === {recorded['given'] + more}")
    counts = page.evaluate("counts.filter(Boolean)")
    assert counts == sorted(counts)
