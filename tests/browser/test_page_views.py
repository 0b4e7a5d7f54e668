"""Tests that each view shows the model's values, fits a phone, works by keyboard, and opens from a link."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import FOLLOW, PACK, writing

from glgpt.checkpoint.opening import Checkpoint
from glgpt.inference.model import LanguageModel
from glgpt.system.files import data_path

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]

WRITTEN = (
    "!document.querySelector('.text-caret') && document.querySelectorAll('.text-token:not(.text-given)').length === 30"
)
PAINTED = """(selector) => {
  const canvas = document.querySelector(selector), copy = new OffscreenCanvas(canvas.width, canvas.height);
  const flat = copy.getContext('2d');
  flat.drawImage(canvas, 0, 0);
  const {data} = flat.getImageData(0, 0, copy.width, copy.height);
  let some = 0;
  for (let i = 3; i < data.length; i += 4) some += data[i] > 8;
  return some / (data.length / 4);
}"""


@pytest.fixture(scope="module")
def model_and_page(embedded: Path) -> tuple[Path, Path]:
    """Returns the folders of the Shakespeare model, whose heads attend mostly to few tokens, and of its page."""
    return data_path("weights/shakespeare"), embedded


@pytest.fixture
def page(opened: Any) -> Iterator[Any]:
    """Yields the page at phone width, with a text of 30 tokens after `To be`."""
    opened.set_viewport_size({"width": 390, "height": 844})
    with writing(opened, "prompt=To+be&tokens=30&temperature=0", 30) as page:
        yield page


def go(page: Any, title: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("button", name=title).click()


def painted(page: Any, selector: str, least: float) -> None:
    """Waits until more than the share `least` of a canvas is painted (not transparent)."""
    page.wait_for_function(f"({PAINTED})({selector!r}) > {least}")


def test_every_view_draws_and_fits_a_phone(page: Any) -> None:
    drawn = {
        "Attention": ((".attention-squares canvas", 0.3), (".attention-square canvas", 0.4)),
        "Blocks": (),
        "Textures": ((".plane canvas", 0.5),),
        "Passes": ((".plane canvas", 0.5), (".passes-sheet canvas", 0.5)),
        "Device": (),
    }
    for title, canvases in drawn.items():
        go(page, title)
        if title == "Passes":  # the view opens with the last pass
            page.wait_for_function("/The output token is/.test(document.querySelector('.passes-outcome').innerText)")
            page.get_by_role("button", name="First").click()
        for selector, least in canvases:
            painted(page, selector, least)
        if title == "Blocks":
            page.wait_for_function("document.querySelectorAll('.blocks-lens td button:not(:empty)').length >= 60")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, title
        assert f"view={title.lower()}" in page.url
    page.set_viewport_size({"width": 320, "height": 568})  # a page at a zoom of 400%
    for view in ("text", *drawn):
        page.evaluate("(view) => location.hash = `view=${view}`", view.lower())
        page.locator(f"[data-view={view.lower()}]").wait_for()
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, view
    page.get_by_role("button", name="Compare").click()
    page.wait_for_function("/PASS/.test(document.querySelector('.device-verdict').textContent)")


def test_raw_scores_are_those_of_every_pair(opened: Any, desktop: LanguageModel) -> None:
    ids = opened.evaluate("glgpt.encode('First Citizen: hear me')")
    _, found = desktop.run_with_cache(ids, ["h.2.attn.q", "h.2.attn.k", "h.2.attn.pattern"])
    expected = found["h.2.attn.q"] @ found["h.2.attn.k"].transpose(0, 2, 1) / np.sqrt(found["h.2.attn.q"].shape[-1])
    script = """([ids, s]) => glgpt.borrow(async (model) => {
      const {attention} = await glgpt.drawing(model);
      await model.cache.fillWithQueries(ids);
      const raw = [await attention.row(2, s, 'raw'), await attention.ahead(2, s)];
      return [...raw, await attention.row(2, s, 'pattern')].map((heads) => heads.map((x) => Array.from(x)));
    })"""
    for s in (0, 3, len(ids) - 1):
        row, ahead, pattern = (np.array(x) for x in opened.evaluate(script, [ids, s]))
        np.testing.assert_allclose(row, expected[:, s, : s + 1], atol=1e-4)
        np.testing.assert_allclose(ahead, expected[:, : s + 1, s], atol=1e-4)
        np.testing.assert_allclose(pattern, found["h.2.attn.pattern"][:, s, : s + 1], atol=1e-5)


def test_queries_have_textures_only_while_a_view_shows_them(page: Any) -> None:
    """Fails if queries of all layers take memory while no view needs them, or are missing while a view shows them."""
    state = "glgpt.info().textureBytes.state"
    page.evaluate("glgpt.generate({prompt: 'To be', tokens: 2})")
    before = page.evaluate(state)
    go(page, "Attention")
    painted(page, ".attention-squares canvas", 0.3)
    kept = page.evaluate(state)
    config = page.evaluate("glgpt.info().config")
    assert kept - before == (config["n_layer"] - 1) * config["n_positions"] * config["n_embd"] * 4
    page.evaluate("glgpt.generate({prompt: 'To be', tokens: 2})")
    assert page.evaluate(state) == kept
    assert page.evaluate("glgpt.borrow(async (model) => model.cache.hasQueries(3))")
    go(page, "Device")
    # The page loads the code of the Device view when this view first opens, and shows Attention until then.
    page.wait_for_function("!document.querySelector('.attention-squares') && !glgpt.model.cache.shown")
    page.evaluate("glgpt.generate({prompt: 'To be', tokens: 2})")
    assert page.evaluate(state) == before
    assert not page.evaluate("glgpt.borrow(async (model) => model.cache.hasQueries(1))")


def test_the_rows_of_memory_sum_to_the_total(page: Any) -> None:
    """Fails if a kind of textures is missing in the list, or is counted twice."""
    kinds = "Object.entries(glgpt.info().textureBytes).filter(([, bytes]) => bytes).map(([kind]) => kind)"

    def rows() -> tuple[float, dict[str, str]]:
        go(page, "Device")
        panel = page.locator(".ui-panel").filter(has=page.get_by_role("heading", name="Memory"))
        total = float(panel.get_by_text("of textures").inner_text().split()[0])
        titles, values = (panel.locator(tag).all_inner_texts() for tag in ("th", "td"))
        return total, dict(zip(titles, values, strict=True))

    def mib(value: str) -> float:
        return float(value.removesuffix(" of the total").removesuffix(" MiB").rpartition(" ")[2])

    own = ("Weights", "Caches", "Scratch")
    page.evaluate("glgpt.continuations({prompt: 'To be', tokens: 2})")
    page.evaluate("glgpt.generate({prompt: 'To be', tokens: 2, constraint: {regex: '[a-z ]+'}})")
    page.evaluate("glgpt.activation('h.0.attn.out', [1, 2, 3])")
    page.evaluate("glgpt.intervene(['h.0.mlp'])")
    assert {"capture", "several", "masked", "interventions"} <= set(page.evaluate(kinds))
    total, found = rows()
    further = [name for name, value in found.items() if name.startswith("For ") and value.endswith("of the total")]
    further = [name for name in further if name != "For Attention and Passes"]  # a part of the caches
    assert len(further) == 4
    assert total == pytest.approx(sum(mib(found[name]) for name in (*own, *further)), abs=0.41)
    page.evaluate("glgpt.intervene([])")


def test_the_heading_of_attention_fits_its_line_while_a_text_is_written(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    # A call from here for each poll may come only when the text is complete, so the page watches its heading itself.
    watch = """(link) => new Promise((fits) => {
      const watcher = new MutationObserver(() => {
        const heading = document.querySelector(".attention-takes h2");
        if (!heading?.textContent.includes("when the text is complete")) return;
        watcher.disconnect();
        fits(heading.scrollWidth <= heading.clientWidth);
      });
      watcher.observe(document.body, {subtree: true, childList: true, characterData: true});
      location.hash = link;
    })"""
    assert page.evaluate(watch, "view=attention&prompt=To+be&tokens=200&temperature=0")


def test_attention_opens_on_the_sharpest_head_and_keeps_heads_beside(page: Any, desktop: LanguageModel) -> None:
    ids = page.evaluate("glgpt.encode('To be')")
    ids += list(desktop.generate_ids(ids, 30, temperature=0))
    names = [f"h.{i}.attn.pattern" for i in range(6)]
    _, found = desktop.run_with_cache(ids, names)
    total = len(ids)
    rows = [int((total - 1) * (0.5 + 0.5 * i / 5)) for i in range(6)]
    sharp = np.array([[np.mean([h[t, 1 : t - 1].max() for t in rows]) for h in found[name]] for name in names])
    layer, head = np.unravel_index(sharp.argmax(), sharp.shape)
    go(page, "Attention")
    page.wait_for_function(f"/layer={layer}&head={head}/.test(location.hash)")
    page.get_by_role("button", name="Pin for comparison").click()
    page.locator("[data-part=one] select").nth(1).select_option("-1")
    pattern = found[f"h.{layer}.attn.pattern"]
    hardest = max(rows, key=lambda t: pattern[head, t, 1 : t - 1].max())  # the view opens with this row
    look = pattern.mean(axis=0)[hardest].max()
    page.wait_for_function("/mean of its heads/.test(document.querySelector('[data-part=one] h2').textContent)")
    page.wait_for_function(f"document.querySelector('.ui-reading b').textContent === '{100 * look:.2f}%'")
    painted(page, ".attention-square canvas", 0.4)
    painted(page, ".attention-beside canvas", 0.3)
    assert f"head=mean&beside={layer}.{head}" in page.url
    page.get_by_role("button", name=f"Enlarge layer {layer}, head {head}").click()
    assert page.locator("[data-part=one] select").nth(1).input_value() == str(head)
    page.get_by_role("button", name=f"Remove layer {layer}, head {head}").click()
    assert not page.locator(".attention-beside").count()


def test_the_lens_ends_with_the_models_own_answer(opened: Any, desktop: LanguageModel) -> None:
    ids = opened.evaluate("glgpt.encode('First Citizen: hear me')")
    blocks = opened.evaluate("(ids) => glgpt.borrow((model) => glgpt.lens(model, ids, ids.length - 1))", ids)
    logits, found = desktop.run_with_cache(ids, ["embed", *(f"h.{i}.resid_post" for i in range(6))])
    likely = np.exp(logits[-1] - logits[-1].max())
    best = np.argsort(-likely)[:6]
    assert [c["id"] for c in blocks[-1]["top"]] == best.tolist()
    np.testing.assert_allclose([c["p"] for c in blocks[-1]["top"]], (likely / likely.sum())[best], rtol=1e-3)
    states = np.array([found[block["name"]][-1] for block in blocks])
    np.testing.assert_allclose([b["norm"] for b in blocks], np.linalg.norm(states, axis=1), rtol=1e-4)
    changes = np.linalg.norm(np.diff(states, axis=0), axis=1)
    np.testing.assert_allclose([b["change"] for b in blocks][1:], changes, rtol=1e-4)
    # The lens must not change a later text.
    asked = {"ids": ids, "tokens": 20, "temperature": 0}
    expected = list(desktop.generate_ids(ids, 20, temperature=0))
    assert opened.evaluate("(o) => glgpt.generate(o).then((r) => r.ids)", asked) == expected


def test_passes_are_played_timed_and_linked(page: Any) -> None:
    go(page, "Passes")
    count = page.evaluate("document.querySelectorAll('.passes-sheet canvas').length")
    assert count == page.evaluate("document.querySelectorAll('[data-view=passes] ol li').length") > 60
    page.get_by_label("Speed").select_option("fast")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("/pass [2-9]\\d of/.test(document.querySelector('[data-part=transport]').textContent)")
    page.get_by_role("button", name="Pause").click()
    stages = ["to QKV", "QKV", "scores", "mix", "mix out", "residual", "MLP in", "MLP", "MLP out", "residual"]
    assert page.locator(".passes-stage-heads small").all_inner_texts() == stages
    painted(page, ".passes-row:nth-child(3) canvas", 0.5)
    page.get_by_role("button", name="Measure times").click()
    page.wait_for_function(
        "/slope over repeats|timer queries/.test(document.querySelector('[data-view=passes]').textContent)"
    )
    page.get_by_role("button", name="Step").click()
    link = page.locator(".passes-facts dd").first.get_by_role("button").first
    name = link.inner_text()
    link.click()
    assert page.get_by_role("heading", name=name).is_visible()
    painted(page, ".plane canvas", 0.3)


@pytest.mark.soak
def test_timer_queries_are_taken_where_they_can_be_trusted(page: Any) -> None:
    """Fails if a GPU's passes are timed without queries, or by queries that the driver reports as invalid (disjoint).

    The driver under test has queries. The page distrusts them only because of the driver's name, so the test changes
    the name.
    """
    go(page, "Passes")
    page.wait_for_function("document.querySelector('.passes-sheet canvas')")
    script = """(disjoint) => {
      const {device} = glgpt.model, {gl} = device;
      globalThis.known ??= device.renderer;
      device.renderer = 'a GPU';
      delete gl.getParameter;
      const ask = gl.getParameter.bind(gl);
      gl.getParameter = (name) => name === 0x8FBB ? disjoint : ask(name);
      return gl.getExtension('EXT_disjoint_timer_query_webgl2') !== null;
    }"""
    for disjoint, how in ((False, "timer queries"), (True, "the slope over repeats")):
        assert page.evaluate(script, disjoint)
        page.get_by_role("button", name="Measure times").click()
        said = "document.querySelector('[data-view=passes]').textContent"
        page.wait_for_function(f"/, measured by {how}: /.test({said})")
    page.evaluate("() => { glgpt.model.device.renderer = known; delete glgpt.model.device.gl.getParameter; }")


def test_textures_say_the_value_under_the_cursor(page: Any, desktop: LanguageModel) -> None:
    ids = page.evaluate("glgpt.encode('To be')")
    text = [*ids, *desktop.generate_ids(ids, 30, temperature=0)]
    _, found = desktop.run_with_cache(text, ["h.1.mlp.act"])
    go(page, "Textures")
    page.get_by_role("group", name="Block").get_by_role("button", name="1").click()
    page.get_by_role("button", name="mlp.act", exact=True).click()
    painted(page, ".plane canvas", 0.5)
    page.wait_for_function("/tokens|Matrix of/.test(document.body.textContent)")
    first = int(
        page.evaluate(
            "document.querySelector('[data-view=textures] select')?.selectedOptions[0].text.split(' ')[0] ?? 0"
        )
    )
    page.locator(".plane canvas").hover(position={"x": 2, "y": 2})
    page.wait_for_function("/row 0.*column \\d+/.test(document.querySelector('.ui-reading').textContent)")
    said = page.evaluate("document.querySelector('.ui-reading').textContent")
    column = int(said.split("column ")[1].split(":")[0])
    assert float(said.split(": ")[-1]) == pytest.approx(found["h.1.mlp.act"][first, column], rel=2e-3, abs=1e-4)
    assert not page.locator(
        ".plane-across"
    ).count()  # no labels of tokens, though `mlp.act` has as many columns as the vocabulary has tokens
    labels = page.evaluate("document.querySelectorAll('.plane-down span')[0].textContent")
    assert labels == page.evaluate("(id) => glgpt.model.tokenizer.label(id)", text[first])
    usual = page.get_by_label("Colours").input_value()
    page.get_by_label("memory layout").check()
    page.wait_for_function("!document.querySelector('.plane-axis')")
    page.get_by_label("Colours").select_option("embers")
    painted(page, ".plane canvas", 0.99)
    page.get_by_label("memory layout").uncheck()
    page.get_by_label("Colours").select_option(usual)


def test_textures_name_the_tokens_heads_and_words_of_rows_and_columns(page: Any) -> None:
    def axis(which: str) -> list[str]:
        found: list[str] = page.locator(f".plane-{which} span").all_inner_texts()
        return found

    tokens = page.evaluate(
        """() => [...document.querySelectorAll('.text-token')].map((t) => t.ariaLabel.replace(/, [\\d.]+%$/, ''))"""
    )
    for name, down, across in (
        ("h.1.attn.pattern", lambda label: ", head " in label, lambda label: label in tokens),
        ("h.1.attn.q", lambda label: label in tokens, lambda label: label.startswith("head ")),
        ("logits", lambda label: label in tokens, lambda label: label),
        ("wte.weight", None, lambda label: label),
    ):
        page.evaluate(f"location.hash = '#prompt=To+be&tokens=30&temperature=0&view=textures&texture={name}'")
        page.wait_for_function(f"document.querySelector('.plane canvas')?.ariaLabel === 'Values of {name}'")
        page.wait_for_function("document.querySelectorAll('.plane-across span').length > 2")
        for which, known in (("down", down), ("across", across)):
            assert bool(axis(which)) == bool(known) and (not known or all(map(known, axis(which)))), (name, which)


def test_weights_are_shown_as_the_checkpoint_has_them(page: Any, model_and_page: tuple[Path, Path]) -> None:
    """Fails if a weight in panels is read or drawn as if its panels were side by side; a layer stacks them."""
    name = "h.0.attn.c_attn.weight"
    page.evaluate(FOLLOW, f"view=textures&texture={name}&prompt=To+be&tokens=30&temperature=0")
    stack = page.evaluate("(name) => glgpt.model.programs.generate.views[name].stack", name)
    assert stack > 1 or page.evaluate("glgpt.info().rows") == "strided"
    with Checkpoint.open(model_and_page[0]) as checkpoint:
        shows(page, name, checkpoint.config.parameters[name].arrange(checkpoint.read(name)))


def shows(page: Any, name: str, matrix: np.ndarray) -> None:
    """Checks that the Textures view of a weight reports and draws this matrix."""
    page.locator(".textures h2 code", has_text=name).wait_for()
    painted(page, ".plane canvas", 0.5)
    canvas = page.locator(".plane canvas")
    for x, y in ((0.02, 0.02), (0.4, 0.7), (0.98, 0.97)):
        box = canvas.bounding_box()  # another texture may change the size
        canvas.hover(position={"x": x * box["width"], "y": y * box["height"]})
        page.wait_for_function("/row \\d+.*column \\d+/.test(document.querySelector('.ui-reading').textContent)")
        said = page.evaluate("document.querySelector('.ui-reading').textContent")
        row, column = (int(said.split(f"{what} ")[1].split()[0].strip(",:")) for what in ("row", "column"))
        assert abs(row / matrix.shape[0] - y) < 0.05 and abs(column / matrix.shape[1] - x) < 0.05
        assert float(said.split(": ")[-1]) == pytest.approx(matrix[row, column], rel=2e-3, abs=1e-4)
    script = """async ([name, rows, cols]) => glgpt.borrow(async (model) => {
      const {painter} = await glgpt.drawing(model);
      const view = model.programs.generate.views[name], target = document.createElement('canvas');
      const palette = {signed: true, colors: new Float32Array(24)};
      const shown = {rows, first: 0, height: rows, range: [-1, 1], palette};
      painter.matrix(target, model.player.texture(name), view, shown, cols, rows);
      const flat = document.createElement('canvas');
      Object.assign(flat, {width: cols, height: rows});
      const context = flat.getContext('2d');
      context.drawImage(target, 0, 0);
      return (PACK)(context.getImageData(0, 0, cols, rows).data.filter((_, i) => i % 4 === 3));
    })""".replace("PACK", PACK)
    data = base64.b64decode(page.evaluate(script, [name, *matrix.shape]))
    drawn = np.frombuffer(data, np.uint8).reshape(matrix.shape) / 255
    np.testing.assert_allclose(drawn, np.minimum(np.abs(matrix), 1), atol=1.1 / 255)  # opacity has 8 bits


def test_alternatives_by_keyboard_and_going_on_from_one(page: Any) -> None:
    page.locator(".text-token").first.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    group = page.get_by_role("group", name="Alternatives to")
    assert group.get_by_role("button").count() == 10  # on a phone, one of them closes the sheet
    token = group.locator("code").nth(1).inner_text()
    group.get_by_role("button").nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_function("!document.querySelector('.text-caret')")
    place = (
        page.evaluate("document.querySelectorAll('.text-given').length")
        + 6
        - len(page.evaluate("glgpt.encode('To be')"))
    )
    assert page.locator(".text-token").nth(place).get_attribute("aria-label").startswith(f"{token}, ")


def test_the_prompts_tokens_show_what_was_weighed_there_too(page: Any) -> None:
    at = page.evaluate("document.querySelectorAll('.text-given').length") - 1
    page.locator(".text-token").nth(at).click()
    group = page.get_by_role("group", name="Alternatives to")
    group.get_by_role("button").nth(8).wait_for()
    script = """async (at) => {
      const ids = glgpt.encode('To be'), vocab = glgpt.info().config.vocab_size;
      const logits = await glgpt.logits(ids.slice(0, at)), row = logits.slice(-vocab);
      const total = row.reduce((sum, x) => sum + Math.exp(x), 0);
      const best = Array.from(row.keys()).sort((a, b) => row[b] - row[a]).slice(0, 8);
      const said = (id) => [glgpt.model.tokenizer.label(id), Math.exp(row[id]) / total];
      return [best.map(said), said(ids[at])];
    }"""
    best, taken = page.evaluate(script, at)
    assert group.locator("button code").all_inner_texts() == [label for label, _ in best]
    shown = [float(text.rstrip("%")) for text in group.locator("button .text-percent").all_inner_texts()]
    np.testing.assert_allclose(shown, [100 * p for _, p in best], atol=0.51)  # percentages from 10 on have no decimals
    aria = page.locator(".text-token").nth(at).get_attribute("aria-label")
    assert aria.startswith(f"{taken[0]}, ") and abs(float(aria.split(", ")[-1].rstrip("%")) - 100 * taken[1]) < 0.51
    words = "[...document.querySelectorAll('.text-token')].map((t) => t.textContent)"
    whole = page.evaluate(words)
    page.keyboard.press("Escape")  # on a phone the sheet of alternatives covers the buttons
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function("!document.querySelector('.text-caret')")
    assert page.evaluate(words) == whole  # inspecting alternatives does not change the text


def test_a_link_carries_the_view(exported: Path, serve: Serve, browse: Browse) -> None:
    settings = "prompt=Now&tokens=12&temperature=0.5&seed=9&k=40&p=0.9"
    page = browse(serve(exported) + f"#{settings}&view=attention&layer=4&head=2&kind=scores")
    page.evaluate("glgpt.ready")
    assert page.get_by_role("heading", name="Layer 4, head 2").is_visible()
    assert page.get_by_label("Show").input_value() == "scores"
    page.get_by_role("combobox", name="Head").select_option("5")
    for part in [*settings.split("&"), "view=attention", "layer=4", "head=5", "kind=scores"]:
        assert part in page.url


def test_without_settings_it_writes_as_documented(exported: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(exported) + "#prompt=To+be&tokens=30")
    page.evaluate("glgpt.ready")
    page.wait_for_function(WRITTEN)
    with LanguageModel.from_pretrained("shakespeare") as desktop:
        assert desktop.tokenizer
        ids = desktop.tokenizer.encode("To be")
        expected = list(desktop.generate_ids(ids, 30, temperature=0.8, top_p=0.9, seed=1))
        labels = [desktop.tokenizer.label(i) for i in expected]
    written = [token.get_attribute("aria-label") for token in page.locator(".text-token:not(.text-given)").all()]
    assert [label.rpartition(", ")[0] for label in written] == labels


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.soak), 390])
def test_nothing_jumps_while_text_comes(exported: Path, serve: Serve, browse: Browse, width: int) -> None:
    watch = """
    globalThis.shift = 0;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) globalThis.shift += entry.value;
    }).observe({type: 'layout-shift', buffered: true});"""
    view = {"viewport": {"width": width, "height": 720}, "reduced_motion": "no-preference"}
    page = browse(serve(exported) + "#tokens=60", watch, **view)
    page.evaluate("glgpt.ready")
    page.wait_for_function("document.querySelector('.text-token')")
    page.wait_for_timeout(300)
    before = page.evaluate("shift")
    page.wait_for_function("!document.querySelector('.text-caret')")
    page.wait_for_timeout(500)  # the browser reports a layout shift late
    assert page.evaluate("shift") - before < 0.01
