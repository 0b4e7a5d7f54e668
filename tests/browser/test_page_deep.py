"""Tests five views with a GPT-2 and a Llama of twelve blocks: the order of blocks, and numbers as on the desktop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import MEASURED, TEST_FLAGS, wait_without_eval
from deep_models import BLOCKS, CONFIGS, SPECIAL

from glgpt import Ablate, LanguageModel
from glgpt.models.spec import ModelConfig

pytestmark = pytest.mark.slow

TEXT = "a deep model"
PAINTED_CELL = """(label) => {
  const canvas = document.querySelector('.machine-cells canvas');
  const flat = new OffscreenCanvas(canvas.width, canvas.height)
    .getContext('2d', {willReadFrequently: true});
  flat.drawImage(canvas, 0, 0);
  const frame = document.querySelector('.machine-over').getBoundingClientRect();
  const box = document.querySelector(`.machine-stage[aria-label="${label}"]`).getBoundingClientRect();
  const [x, y] = [canvas.width / frame.width, canvas.height / frame.height];
  const at = [(box.x - frame.x) * x, (box.y - frame.y) * y, box.width * x, box.height * y].map(Math.round);
  const {data} = flat.getImageData(...at);
  return data.reduce((sum, value, i) => sum + (i % 4 === 3 && value > 8), 0) / (data.length / 4);
}"""
DONE = "!document.querySelector('.text-caret') && document.querySelectorAll('.text-token:not(.text-given)').length"


@dataclass
class Deep:
    """Holds the page of a model, ready for use, and the model's folder."""

    family: str
    page: Any
    folder: Path

    @property
    def config(self) -> ModelConfig:
        return CONFIGS[self.family]

    def desktop(self) -> LanguageModel:
        return LanguageModel.from_pretrained(self.folder, device="software")

    @property
    def ids(self) -> list[int]:
        return list(TEXT.encode())

    def show(self, view: str, **place: object) -> None:
        """Opens a view of the text that continues `TEXT`."""
        settings = {"view": view, "prompt": TEXT, "tokens": 2, "temperature": 0, **place}
        link = "&".join(f"{key}={value}" for key, value in settings.items())
        self.page.evaluate("(link) => { location.hash = link; }", link)
        self.page.wait_for_function(
            f"document.querySelector('main > [data-view={view}]') && !document.querySelector('.text-caret')"
        )


@pytest.fixture(scope="module", params=[pytest.param("gpt2", marks=pytest.mark.soak), "llama"])
def deep_page(
    request: pytest.FixtureRequest,
    deep: Callable[[str], tuple[Path, Path]],
    serve: Callable[..., str],
    browsers: Any,
) -> Iterator[Deep]:
    folder, site = deep(request.param)
    context = browsers.context(TEST_FLAGS, None, reduced_motion="reduce", viewport={"width": 1366, "height": 768})
    context.add_init_script(f"{{{MEASURED}}}")
    complaints: list[str] = []
    context.on("weberror", lambda event: complaints.append(str(event.error)))
    context.on("console", lambda m: complaints.append(m.text) if m.type in ("warning", "error", "assert") else None)
    page = wait_without_eval(context.new_page())
    page.set_default_timeout(90_000)
    page.goto(serve(site) + "#view=text&tokens=6&temperature=0")
    page.evaluate("glgpt.ready")
    page.wait_for_function(DONE)
    yield Deep(request.param, page, folder)
    context.close()
    assert [said for said in complaints if "loseContext" not in said] == []


def test_it_opens_with_its_own_prompts_under_its_name(deep_page: Deep) -> None:
    """Fails if a page lacks the model's name or chat format, or opens with Shakespeare's prompts."""
    page, instruct = deep_page.page, deep_page.family == "llama"
    about = page.locator(".band-about").inner_text()
    assert about.startswith(f"deep-{deep_page.family} is a language model of ")
    assert f"{deep_page.config.parameter_count / 1000:.0f},000 parameters" in about and "trained on" not in about
    prompt = "What is the capital of France?" if instruct else "The capital of France is"
    assert page.get_by_label("Prompt").input_value() == prompt
    assert page.locator(".text-examples button").all_inner_texts()[0] == prompt
    given = page.locator(".text-given").all_inner_texts()
    start, end = SPECIAL
    whole = f"{start}user\n{prompt}{end}{start}assistant\n" if instruct else prompt
    assert "".join(given).replace("⏎", "") == whole.replace("⏎", "")
    assert (given[0] == start) == instruct
    ids = page.evaluate(f"glgpt.model.promptIds('a{end}')")
    assert ids.count(SPECIAL[end]) == int(
        instruct
    )  # the chat format adds one; the token's name in the visitor's text stays plain text
    assert "Shakespeare" not in page.locator("body").inner_text() and "Romeo" not in page.locator("body").inner_text()


def test_the_logit_lens_has_the_blocks_in_their_order(deep_page: Deep) -> None:
    """Fails if blocks are sorted as text (0, 1, 10, 11, 2 …): block 10 would then be compared with block 1, not 9."""
    page, ids = deep_page.page, deep_page.ids
    blocks = page.evaluate("(ids) => glgpt.borrow((model) => glgpt.lens(model, ids, ids.length - 1))", ids)
    stream = deep_page.config.stream()
    assert [block["name"] for block in blocks] == stream and len(stream) == BLOCKS + 1
    with deep_page.desktop() as desktop:
        logits, found = desktop.run_with_cache(ids, stream)
    states = np.array([found[name][-1] for name in stream])
    np.testing.assert_allclose([b["norm"] for b in blocks], np.linalg.norm(states, axis=1), rtol=1e-4)
    changes = np.linalg.norm(np.diff(states, axis=0), axis=1)
    np.testing.assert_allclose([b["change"] for b in blocks][1:], changes, rtol=1e-3)
    assert [c["id"] for c in blocks[-1]["top"]] == np.argsort(-logits[-1], kind="stable")[:6].tolist()
    deep_page.show("blocks")
    page.wait_for_function("document.querySelectorAll('.blocks-lens tbody tr').length > 12")
    rows = page.locator(".blocks-lens tbody th").all_inner_texts()
    assert rows == ["embedding", *(f"block {i}" for i in range(BLOCKS)), "what actually came next"]


def test_textures_are_in_their_blocks_and_explained(deep_page: Deep) -> None:
    """Fails if the weights of a Llama are listed outside the blocks, or without an explanation."""
    page, config, names = deep_page.page, deep_page.config, deep_page.config.names
    for block in (None, 10):
        deep_page.show("textures", texture="embed" if block is None else f"h.{block}.attn.q")
        label = "Embedding and output" if block is None else "10"
        where = page.get_by_role("group", name="Block").get_by_role("button", name=label)
        assert where.get_attribute("aria-pressed") == "true"
        for group, wanted in (
            ("Activations", [a.name for a in config.activations.values() if a.layer == block]),
            ("Weights", [p.name for p in config.parameters.values() if p.layer == block]),
        ):
            shown = page.get_by_role("group", name=group).get_by_role("button")
            assert shown.count() == len(wanted), group
            templates = [name if block is None else name.replace(f".{block}.", ".{}.", 1) for name in wanted]
            assert shown.evaluate_all("(all) => all.map((b) => b.title)") == [names[t].about for t in templates]
            listed = shown.evaluate_all("(all) => all.map((b) => b.firstChild.textContent)")
            assert [t.split("{}.")[-1] for t in templates] == listed, "another order"
    deep_page.show("textures", texture=f"{config.block_prefix.format(3)}mlp")
    weight = next(p.name for p in config.parameters.values() if p.layer == 3 and p.product)
    deep_page.show("textures", texture=weight)
    assert page.locator(".ui-explained").first.inner_text() == names[weight.replace(".3.", ".{}.")].about
    page.get_by_role("group", name="Block").get_by_role("button", name="11").click()
    assert page.locator("[data-view=textures] h2 code").inner_text() == weight.replace(".3.", ".11.")


def test_passes_have_a_row_a_block_within_a_screen(deep_page: Deep) -> None:
    """Regression: each pass of a Llama was labelled "logits", on a page sixteen thousand pixels high."""
    page = deep_page.page
    deep_page.show("passes", entry="decode", **{"pass": 0})
    rows = page.locator(".passes-row:not(.passes-stage-heads) > span").all_inner_texts()
    assert rows == ["embed", *(f"block {i}" for i in range(BLOCKS)), "logits"]
    heads = page.locator(".passes-stage-heads small").all_inner_texts()
    own = {"QKV"} if deep_page.family == "gpt2" else {"to Q", "to K, to V", "Q, K", "to gate, to up"}
    assert own < set(heads)
    assert {"scores", "mix", "mix out", "residual", "MLP", "MLP out"} < set(heads)
    assert page.locator(".passes-row").nth(4).locator("canvas").count() == len(heads)
    assert page.evaluate("document.documentElement.scrollHeight") < 2500
    entries = page.locator("[data-view=passes] select").first.locator("option").all_inner_texts()
    sizes = [int(e.split()[0].split("_")[1]) for e in entries if e.startswith("prefill")]
    assert sizes == sorted(sizes)
    deep_page.show("passes", entry="lens", **{"pass": 0})
    assert page.evaluate(
        "document.querySelector('.passes-sheet').scrollWidth <= document.querySelector('.passes-sheet').clientWidth"
    )


def test_attention_is_that_of_each_layer(deep_page: Deep) -> None:
    page, ids = deep_page.page, deep_page.ids
    deep_page.show("attention", layer=10, head=1)
    page.get_by_role("heading", name="Layer 10, head 1").wait_for()
    assert page.locator(".attention-grid .attention-lines span").all_inner_texts() == [
        "layer 0",
        *map(str, range(1, BLOCKS)),
    ]
    script = """([ids, layers]) => glgpt.borrow(async (model) => {
      const {attention} = await glgpt.drawing(model), rows = [];
      await model.cache.fill(ids);
      for (const layer of layers) rows.push(await attention.row(layer, ids.length - 1, 'pattern'));
      return rows.map((heads) => heads.map((row) => Array.from(row)));
    })"""
    layers = [2, 10, 11]
    names = [deep_page.config.patterns()[i] for i in layers]
    with deep_page.desktop() as desktop:
        _, found = desktop.run_with_cache(ids, names)
    for name, row in zip(names, page.evaluate(script, [ids, layers]), strict=True):
        np.testing.assert_allclose(row, found[name][:, -1], atol=1e-5, err_msg=name)


def test_the_machine_has_every_block_and_leads_to_its_texture(deep_page: Deep) -> None:
    page = deep_page.page
    deep_page.show("text")
    page.wait_for_function("document.querySelector('.machine-cells')?.dataset.drawn > 0")
    assert page.locator(".machine-stage").count() == 6 * BLOCKS + 2
    for stage, view in (("QKV", "Textures"), ("scores", "Attention")):  # cells are not blank after the text
        assert page.evaluate(PAINTED_CELL, f"{stage} of block 11: open in {view}") > 0.6, stage
    for stage, name in (("QKV", "attn.q"), ("MLP", "mlp.act")):
        page.get_by_role("button", name=f"{stage} of block 11: open in Textures").click()
        assert page.locator("[data-view=textures] h2 code").first.inner_text() == f"h.11.{name}"
        page.go_back()


def test_the_tour_speaks_of_this_model(deep_page: Deep) -> None:
    """Fails if cards mention position vectors for a Llama, which has none, or parts of the Shakespeare model."""
    page, texts = deep_page.page, {}
    deep_page.show("text", tour=1)
    for number in range(1, 11):
        if number > 1:
            page.locator(".tour").get_by_role("button", name="Next card").click()
        page.wait_for_function(f"document.querySelector('.tour')?.innerText.startsWith('{number} of 10')")
        page.locator(".tour summary").click()
        texts[number] = page.locator(".tour").inner_text()
    assert ("a vector for its position is added" in texts[2]) == (deep_page.config.positions == "absolute")
    assert ("rotates queries and keys" in texts[2]) == (deep_page.config.positions == "rotary")
    whole = "".join(texts.values())
    assert "Romeo" not in whole and "speaker" not in whole and "comes with the page" not in whole
    assert "You can do it here" not in whole
    page.locator(".tour").get_by_role("button", name="Done").click()


def test_a_head_of_the_last_block_can_be_cut(deep_page: Deep) -> None:
    page, ids = deep_page.page, deep_page.ids
    deep_page.show("attention", layer=11, head=1)
    page.get_by_role("button", name="Ablate head 1 of block 11").click()
    page.wait_for_function("glgpt.model.interventions.parts.join() === 'h.11.attn.1'")
    asked = {"ids": ids, "tokens": 12, "temperature": 0}
    found = page.evaluate("(o) => glgpt.generate(o).then((r) => r.ids)", asked)
    cut = [Ablate("h.11.attn", head=1)]
    with deep_page.desktop() as desktop:
        assert found == list(desktop.generate_ids(ids, 12, temperature=0, interventions=cut))
    assert "head 1 of block 11" in page.locator(".interventions-change").inner_text()
    page.evaluate("glgpt.intervene([])")


def test_the_device_agrees_with_the_desktop(deep_page: Deep) -> None:
    result = deep_page.page.evaluate("glgpt.parity()")
    assert result["pass"] and result["names"] == len(deep_page.config.activations) - 1, result
