"""Tests that the page shows true scales, probabilities and progress, and that the copied text is the page's text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import writing

from glgpt import LanguageModel
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.sampling import Sampler
from glgpt.system.files import data_path

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]

SETTINGS = {"temperature": 0.7, "k": 5, "p": 0.9, "seed": 3}


@pytest.fixture(scope="module")
def model_and_page(embedded: Path) -> tuple[Path, Path]:
    """Returns the folders of the embedded model, whose texts have line breaks, and of its page."""
    return data_path("weights/shakespeare"), embedded


@pytest.fixture
def page(opened: Any) -> Iterator[Any]:
    """Yields the page with 20 tokens after `To be`, sampled with settings that exclude tokens."""
    settings = "&".join(f"{name}={value}" for name, value in SETTINGS.items())
    with writing(opened, f"prompt=To+be&tokens=20&{settings}", 20) as page:
        yield page


def written(page: Any, prompt: str = "To be") -> list[int]:
    """Returns the ids of `prompt` and of the text after it, which the page generates again with the same seed."""
    options = {"prompt": prompt, "tokens": 20, "temperature": 0.7, "topK": 5, "topP": 0.9, "seed": 3}
    script = "(o) => glgpt.generate(o).then((r) => [...glgpt.encode(o.prompt), ...r.ids])"
    return list(page.evaluate(script, options))


def go(page: Any, title: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("button", name=title).click()


@pytest.mark.soak
def test_the_legend_has_the_scale_of_the_picture(page: Any) -> None:
    """Fails if a tick's position in the legend differs from the picture's opacity at the tick's value."""
    go(page, "Attention")
    page.wait_for_function("document.querySelector('.attention-arcs button')")
    places = """() => Object.fromEntries([...document.querySelectorAll('.attention-ramp small')].map((tick) => {
      const bar = document.querySelector('.attention-ramp i').getBoundingClientRect();
      const box = tick.getBoundingClientRect();
      return [tick.textContent, ((box.left + box.right) / 2 - bar.left) / bar.width];
    }))"""
    opacity = """([ids, layer, kind]) => glgpt.borrow(async (model) => {
      const {attention} = await glgpt.drawing(model), canvas = document.createElement('canvas');
      await model.cache.fill(ids);
      attention.drawHead(canvas, layer, 0, ids.length, kind);
      const flat = new OffscreenCanvas(ids.length, ids.length).getContext('2d');
      flat.drawImage(canvas, 0, 0);
      const {data} = flat.getImageData(0, 0, ids.length, ids.length), t = ids.length - 1;
      const row = await attention.row(layer, t, kind);
      return Array.from(row[0], (value, s) => [value, data[4 * (t * ids.length + s) + 3] / 255]);
    })"""
    ids = written(page)
    ticks = page.evaluate(places)
    assert {"1%", "10%"} < set(ticks)
    at = [(float(name.rstrip("%")) / 100, place) for name, place in ticks.items()]
    drawn = np.array(page.evaluate(opacity, [ids, 3, "pattern"]))
    for value, place in drawn:  # the value's opacity must be between the places of the two ticks next to the value
        below, above = max(x for x in at if x[0] <= value + 1e-6), min(x for x in at if x[0] >= value - 1e-6)
        assert below[1] - 0.02 <= place <= above[1] + 0.02, (value, place)
    for weight, place in at:
        assert place == pytest.approx(weight**0.4, abs=0.02)
    page.get_by_label("Show").select_option("scores")
    page.wait_for_function("document.querySelector('.attention-ramp.attention-signed')")
    signed = {float(name.replace("−", "-")): place for name, place in page.evaluate(places).items()}
    scores = np.array(page.evaluate(opacity, [ids, 3, "scores"]))
    for value, place in scores:
        expected = np.interp(
            abs(value), [v for v in sorted(signed) if v >= 0], [2 * signed[v] - 1 for v in sorted(signed) if v >= 0]
        )
        # `expected` is inexact, since ticks are far apart. A linear scale would differ from it by 0.3.
        assert place == pytest.approx(expected, abs=0.12), value


def test_alternatives_say_what_the_model_said_and_what_was_drawn_from(page: Any, desktop: LanguageModel) -> None:
    at = page.evaluate("document.querySelectorAll('.text-given').length") + 7
    page.locator(".text-token").nth(at).hover()
    group = page.get_by_role("group", name="Alternatives to")
    group.get_by_role("button").nth(8).wait_for()
    ids = written(page)
    logits = desktop.logits(ids[:at])[-1]
    plain = np.exp(logits.astype(np.float64) - logits.max())
    plain /= plain.sum()
    drawn = Sampler(SamplingOptions(temperature=0.7, top_k=5, top_p=0.9)).probabilities(logits)
    best = np.argsort(-plain, kind="stable")[:8]
    assert 1 < np.count_nonzero(drawn) < 8  # the settings exclude some of the eight tokens

    def shown(column: str) -> list[float]:
        texts = group.locator(f"button .text-{column}").all_inner_texts()
        return [0.0 if text == "–" else float(text.rstrip("%")) for text in texts]

    np.testing.assert_allclose(shown("percent"), 100 * plain[best], atol=0.51)
    np.testing.assert_allclose(shown("sampled"), 100 * drawn[best], atol=0.51)
    cut = group.locator("button.text-cut code").count()
    assert cut == np.count_nonzero(drawn[best] == 0)
    faint, normal = (
        page.evaluate("(s) => getComputedStyle(document.querySelector(s)).color", f".text-alternatives {s} code")
        for s in ("button.text-cut", "button:not(.text-cut)")
    )
    assert faint != normal
    page.locator(".text-given").last.hover()  # tokens of the prompt were not sampled
    page.wait_for_function("document.querySelector('.text-alternatives') && !document.querySelector('.text-sampled')")


def test_passes_end_with_the_word(page: Any, desktop: LanguageModel) -> None:
    go(page, "Passes")
    page.locator("[data-view=passes] ol li button").last.click()
    said = page.locator(".passes-outcome")
    said.locator("b").wait_for()
    ids = written(page)
    assert desktop.tokenizer
    logits = desktop.logits(ids)[-1]
    label = desktop.tokenizer.label(int(logits.argmax()))
    p = 100 / np.exp(logits.astype(np.float64) - logits.max()).sum()
    assert said.locator("code").first.inner_text() == label
    assert float(said.locator("b").inner_text().rstrip("%")) == pytest.approx(p, abs=0.51)
    assert page.locator(".passes-sheet button").last.inner_text() == label  # the pass's thumbnail has the same label


def test_copied_text_is_the_text(page: Any) -> None:
    page.get_by_label("Prompt").fill("JULIET:\nO Romeo")
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function(
        "!document.querySelector('.text-caret') && document.querySelectorAll('.text-token:not(.text-given)').length"
    )
    text = page.evaluate("(ids) => glgpt.decode(ids)", written(page, "JULIET:\nO Romeo"))
    assert "\n" in text.removeprefix("JULIET:\nO Romeo")
    copied = """() => {
      const range = document.createRange();
      range.selectNodeContents(document.querySelector('.text-stream'));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return getSelection().toString();
    }"""
    assert page.evaluate(copied).rstrip("\n") == text.rstrip("\n")
    mark = page.evaluate(
        "getComputedStyle(document.querySelector('.text-newline:not(.text-given)'), '::before').content"
    )
    assert "⏎" in mark  # the line break stays visible


HEARD = """
globalThis.heard = [];
new MutationObserver(() => {
  const said = document.querySelector('.shell-loading')?.textContent;
  if (said && said !== heard.at(-1)) heard.push(said);
}).observe(document, {subtree: true, childList: true, characterData: true});
"""
SLOW_SHADERS = """
const status = WebGL2RenderingContext.prototype.getProgramParameter, since = new Map();
WebGL2RenderingContext.prototype.getProgramParameter = function (program, name) {
  if (name !== 0x91B1) return status.call(this, program, name);
  if (!since.has(program)) since.set(program, performance.now());
  return performance.now() - since.get(program) > MS && status.call(this, program, name);
};"""
BLOCKING_COMPILER = (
    HEARD
    + """
const get = WebGL2RenderingContext.prototype.getExtension, link = WebGL2RenderingContext.prototype.linkProgram;
WebGL2RenderingContext.prototype.getExtension = function (name) {
  return name === 'KHR_parallel_shader_compile' ? null : get.call(this, name);
};
WebGL2RenderingContext.prototype.linkProgram = function (program) {
  for (const start = performance.now(); performance.now() < start + 50;);
  link.call(this, program);
};"""
)


@pytest.mark.parametrize(
    "compiler", [HEARD + SLOW_SHADERS.replace("MS", "80"), BLOCKING_COMPILER], ids=["parallel", "blocking"]
)
def test_loading_says_how_many_shaders_are_compiled_and_no_stale_speed(
    exported: Path, serve: Serve, browse: Browse, compiler: str
) -> None:
    page = browse(serve(exported) + "#tokens=1", compiler)
    page.evaluate("glgpt.ready")
    heard: list[str] = page.evaluate("heard")
    waiting = [said for said in heard if "ompiling shaders" in said and "Fetching" not in said]
    counts = [tuple(map(int, re.findall(r"compiling shaders (\d+) of (\d+)", said)[0])) for said in waiting]
    numbers, totals = zip(*counts, strict=True)  # from the first count after the weights were fetched
    assert len(set(totals)) == 1 and totals[0] > 5 and numbers[-1] >= totals[0] - 1
    assert len(set(numbers)) > 2 and all(0 <= later - number <= 2 for number, later in itertools.pairwise(numbers))
    assert not [said for said in waiting if "MiB/s" in said]
