"""Tests how the page explains a model: with the machine (a picture of all stages), bars, the tour, interventions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from browser import writing

from glgpt import Ablate, Attend, LanguageModel, Patch, Scale, Steer
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.sampling import Sampler

pytestmark = pytest.mark.slow

DONE = "!document.querySelector('.text-caret') && document.querySelectorAll('.text-token:not(.text-given)').length"
PART = "h.3.attn.5"
WRITTEN = 12  # tokens that a test compares with the desktop's


def go(page: Any, title: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("button", name=title, exact=True).click()


@pytest.fixture
def page(opened: Any) -> Iterator[Any]:
    """Yields the page with 12 tokens after `To be`."""
    with writing(opened, "prompt=To+be&tokens=12&temperature=0.8&k=5&p=0.9&seed=3", 12) as page:
        yield page


def test_the_machine_draws_every_stage_and_each_leads_to_its_view(page: Any) -> None:
    layers = page.evaluate("glgpt.info().config.n_layer")
    page.wait_for_function("document.querySelector('.machine-cells')?.dataset.drawn > 0")
    assert page.locator(".machine-stage").count() == 6 * layers + 2
    painted = """() => {
      const canvas = document.querySelector('.machine-cells canvas');
      const flat = new OffscreenCanvas(canvas.width, canvas.height)
        .getContext('2d', {willReadFrequently: true}); // many reads: Chromium warns otherwise
      flat.drawImage(canvas, 0, 0);
      const frame = document.querySelector('.machine-over').getBoundingClientRect();
      const [x, y] = [canvas.width / frame.width, canvas.height / frame.height];
      return [...document.querySelectorAll('.machine-stage')].map((cell) => {
        const box = cell.getBoundingClientRect();
        const at = [(box.x - frame.x) * x, (box.y - frame.y) * y, box.width * x, box.height * y].map(Math.round);
        const {data} = flat.getImageData(...at);
        return data.some((value, i) => i % 4 === 3 && value > 8);
      });
    }"""
    assert all(page.evaluate(painted))
    word = page.locator(".machine-word-out b").inner_text()
    assert word == page.locator(".text-token").last.get_attribute("aria-label").rsplit(",", 1)[0]
    page.get_by_role("button", name="MLP of block 2: open in Textures").focus()
    described = page.get_by_role("tooltip").inner_text()
    assert "MLP of block 2" in described and "h.2.mlp.act" in described and "4 × 64" in described
    page.get_by_role("button", name="scores of block 3: open in Attention").hover()
    assert "scores of block 3" in page.get_by_role("tooltip").inner_text()
    for stage, shown in {
        "MLP of block 2: open in Textures": "[data-view=textures] h2 code:text-is('h.2.mlp.act')",
        "scores of block 3: open in Attention": "[data-view=attention] h2:has-text('Layer 3, head')",
        "residual of block 4: open in Blocks": "[data-view=blocks] h2:has-text('After block 4')",
    }.items():
        page.get_by_role("button", name=stage).first.click()
        page.locator(shown).first.wait_for()
        page.go_back()
    page.get_by_role("button", name="Hide the machine").click()
    page.wait_for_function("!document.querySelector('.machine-stage') && glgpt.model.cache.watcher === null")
    page.get_by_role("button", name="Show the machine").click()
    page.wait_for_function("document.querySelector('.machine-stage')")


def test_the_bars_are_what_the_sampler_draws_from(page: Any, desktop: LanguageModel) -> None:
    """Fails if the bars (chances of the next tokens) do not follow a slider at once, or do not mark excluded tokens."""
    ids = page.evaluate("glgpt.generate({prompt: 'To be', tokens: 12, temperature: 0.8, topK: 5, topP: 0.9, seed: 3})")
    text = [*desktop.encode("To be"), *ids["ids"]]
    logits = desktop.logits(text[:-1])[-1]
    best = np.argsort(-logits, kind="stable")[:10]
    page.wait_for_function(
        "/less likely tokens not shown/.test(document.querySelector('.sampling-key-line')?.textContent)"
    )
    page.get_by_label("Temperature").fill("1.5")
    page.get_by_label("Top-k").fill("6")
    page.get_by_label("Top-p").fill("0.8")
    drawn = Sampler(SamplingOptions(temperature=1.5, top_k=6, top_p=0.8)).probabilities(logits)[best]
    shown = page.locator(".sampling-chances li > span:last-child").all_inner_texts()[:10]
    np.testing.assert_allclose([0 if s == "–" else float(s.rstrip("%")) for s in shown], 100 * drawn, atol=0.51)
    assert page.locator(".sampling-cut").count() >= 4
    page.get_by_label("Repetition").fill("1.5")
    settings = Sampler(SamplingOptions(temperature=1.5, top_k=6, top_p=0.8, repetition_penalty=1.5))
    drawn = settings.probabilities(settings.adjusted(logits, text[:-1]))[best]
    shown = page.locator(".sampling-chances li > span:last-child").all_inner_texts()[:10]
    np.testing.assert_allclose([0 if s == "–" else float(s.rstrip("%")) for s in shown], 100 * drawn, atol=0.51)
    assert page.locator(".sampling-taken code").inner_text() == page.locator(".machine-word-out b").inner_text()


def test_a_cut_head_writes_what_the_desktop_writes_without_it(opened: Any, desktop: LanguageModel) -> None:
    asked = {"prompt": "To be", "tokens": WRITTEN, "temperature": 0}
    script = "(o) => glgpt.generate(o).then((r) => r.ids)"
    ids = desktop.encode("To be")
    whole = list(desktop.generate_ids(ids, WRITTEN, temperature=0))
    for parts, cut in {
        (PART,): [Ablate("h.3.attn", head=5)],
        ("h.0.mlp", "h.2"): [Ablate("h.0.mlp"), Ablate("h.2")],
    }.items():
        opened.evaluate("(parts) => glgpt.intervene(parts)", list(parts))
        wanted = list(desktop.generate_ids(ids, WRITTEN, temperature=0, interventions=cut))
        assert opened.evaluate(script, asked) == wanted
    opened.evaluate("glgpt.intervene([])")
    assert opened.evaluate(script, asked) == whole
    assert "not a part of this model" in opened.evaluate(
        "glgpt.intervene(['h.3.attn.99']).catch((error) => error.message)"
    )


def test_a_scaled_and_a_steered_model_write_what_they_write_on_the_desktop(opened: Any, desktop: LanguageModel) -> None:
    asked = {"prompt": "To be", "tokens": WRITTEN, "temperature": 0}
    script = "(o) => glgpt.generate(o).then((r) => r.ids)"
    love, hate, stream = "I love thee", "I hate thee, dog", "h.2.resid_post"
    ends = [desktop.run_with_cache(desktop.encode(text), [stream])[1][stream][-1] for text in (love, hate)]
    ids = desktop.encode("To be")
    whole = list(desktop.generate_ids(ids, WRITTEN, temperature=0))
    for word, changes in {
        "h.1.mlp*-0.5": [Scale("h.1.mlp", -0.5)],
        "h.3.attn.5*4": [Scale("h.3.attn", 4, head=5)],
        "h.2~I%20love%20thee~I%20hate%20thee%2C%20dog~2": [Steer(stream, ends[0] - ends[1], 2)],
        "h.2~I%20love%20thee~~1.5": [Steer(stream, ends[0], 1.5)],
    }.items():
        opened.evaluate("(word) => glgpt.intervene([word])", word)
        wanted = list(desktop.generate_ids(ids, WRITTEN, temperature=0, interventions=changes))
        assert opened.evaluate(script, asked) == wanted != whole, word
    failing = "(word) => glgpt.intervene([word]).catch((error) => error.message)"
    for wrong, said in {
        "h.3*x": "is not a change of a part",
        "h.3@1@": "The other text is empty",
        f"h.3~{'a' * 3000}~~1": "The text to steer towards has",
        f"h.3~a~{'a' * 3000}~1": "The text to steer away from has",
    }.items():
        assert said in opened.evaluate(failing, wrong)


def test_steering_is_asked_for_in_blocks_and_kept_in_the_link(page: Any) -> None:
    go(page, "Blocks")
    page.wait_for_function("document.querySelector('[data-part=steer]')")
    page.locator("[data-part=steer] summary").click()
    page.get_by_label("Towards").fill("love, and love")
    page.get_by_role("button", name="Steer", exact=True).click()
    page.wait_for_function("glgpt.model.interventions.parts.length === 1")
    assert "block 5 towards “love, and love” × 2" in page.locator(".interventions-change").inner_text()
    page.get_by_label("Strength of block 5").select_option("8")
    page.wait_for_function("glgpt.model.interventions.parts[0]?.endsWith('~8')")
    word = page.evaluate("glgpt.model.interventions.parts[0]")
    page.wait_for_function("location.hash.includes('interventions=')")
    assert (
        page.evaluate("new URLSearchParams(location.hash.slice(1)).get('interventions')")
        == word
        == "h.5~love%2C%20and%20love~~8"
    )


@pytest.mark.soak
def test_a_patched_model_and_one_that_looks_elsewhere_say_what_they_say_on_the_desktop(
    opened: Any, desktop: LanguageModel
) -> None:
    """Fails if, with a patch or a changed attention, a text or its probabilities differ from the desktop's."""
    other, script = "So we", "(o) => glgpt.generate(o).then((r) => r.ids)"
    ids, given = desktop.encode("To be"), desktop.encode(other)
    text = desktop.encode("To be, or not to be: that is the question")
    z, names = "h.3.attn.z", ["h.2.resid_post", "h.3.mlp.out", "h.3.attn.z"]
    own, theirs = (desktop.run_with_cache(of, names)[1] for of in (ids, given))
    assert len(ids) == len(given) == 2 != len(text)
    head = own[z][1:].copy()
    d_head = desktop.config.d_head
    head[:, 5 * d_head : 6 * d_head] = theirs[z][1:, 5 * d_head : 6 * d_head]
    for word, changes in {
        "h.1.attn:uniform": [Attend("h.1.attn", "uniform")],
        "h.0.attn.3:previous": [Attend("h.0.attn", "previous", head=3)],
        "h.4.attn:first": [Attend("h.4.attn", "first")],
        f"h.2@1@{other}": [Patch("h.2.resid_post", theirs["h.2.resid_post"][1:], first=1)],
        f"h.3.mlp@1@{other}": [Patch("h.3.mlp.out", theirs["h.3.mlp.out"][1:], first=1)],
        f"h.3.attn.5@1@{other}": [Patch(z, head, first=1)],
    }.items():
        opened.evaluate("(word) => glgpt.intervene([word])", word.replace(" ", "%20"))
        wanted = list(desktop.generate_ids(ids, WRITTEN, temperature=0, interventions=changes))
        assert opened.evaluate(script, {"prompt": "To be", "tokens": WRITTEN, "temperature": 0}) == wanted, word
        logits = desktop.run_with_cache(ids + wanted, [], interventions=changes)[0].astype(np.float64)
        found = opened.evaluate("(ids) => glgpt.logProbabilities(ids, 2).then((a) => [...a])", ids + wanted)
        rows = logits[1:-1] - np.log(np.exp(logits[1:-1]).sum(1, keepdims=True))
        np.testing.assert_allclose(found, rows[np.arange(WRITTEN), wanted], atol=1e-4, err_msg=word)
        plain = desktop.logits(ids + wanted).astype(np.float64)[1:-1]
        plain -= np.log(np.exp(plain).sum(1, keepdims=True))
        assert np.abs(found - plain[np.arange(WRITTEN), wanted]).max() > 1e-3, word
    opened.evaluate("glgpt.intervene([])")
    for wrong, said in {
        "h.3.mlp:previous": "not a part of this model",
        "h.3.attn:sideways": "not an attention pattern",
        "h.3@x@a": "is not a change",
    }.items():
        assert said in opened.evaluate("(word) => glgpt.intervene([word]).catch((error) => error.message)", wrong)
    twice = opened.evaluate("glgpt.intervene(['h.3@1@a', 'h.3@2@a']).catch((error) => error.message)")
    assert "a part can be patched at only one" in twice


def test_where_a_head_looks_and_a_patch_are_chosen_and_kept_in_the_link(page: Any) -> None:
    go(page, "Attention")
    page.get_by_role("combobox", name="Layer").select_option("1")
    page.get_by_role("combobox", name="Head").select_option("2")
    page.get_by_label("Attends to").select_option("previous")
    page.wait_for_function("glgpt.model.interventions.parts.join() === 'h.1.attn.2:previous'")
    assert "head 2 of block 1 attends to the previous token" in page.locator(".interventions-change").inner_text()
    go(page, "Blocks")
    page.wait_for_function("document.querySelector('[data-part=patch]')")
    page.locator("[data-part=patch] summary").click()
    page.get_by_label("Other text").fill("So we")
    page.get_by_label("What to patch").select_option("mlp")
    page.get_by_role("button", name="Patch", exact=True).click()
    page.wait_for_function("glgpt.model.interventions.parts.length === 2")
    part, at, text = page.evaluate("glgpt.model.interventions.parts[1]").split("@")
    assert (part, text) == ("h.5.mlp", "So%20we") and int(at) > 0
    page.wait_for_function("/interventions=.*%40/.test(location.hash)")
    page.get_by_role("button", name="Compare the texts").click()
    page.wait_for_function(f"{DONE} && document.querySelector('[data-part=compared] [data-part=verdict]')")
    assert (
        page.locator(".interventions-still .interventions-less, .interventions-still .interventions-more").count() > 0
    )


def test_one_click_cuts_a_head_and_the_texts_stand_side_by_side(page: Any) -> None:
    whole = page.evaluate("document.querySelector('.text-stream').textContent")
    go(page, "Attention")
    page.get_by_role("combobox", name="Layer").select_option("2")  # a head with little effect
    page.get_by_role("combobox", name="Head").select_option("3")
    page.get_by_role("button", name="Ablate head 3 of block 2").click()
    page.wait_for_function("glgpt.model.interventions.parts.length === 1")
    assert "interventions=h.2.attn.3" in page.url
    page.wait_for_function(
        "/the text (was “|is the same)/.test(document.querySelector('.interventions-bar').textContent)"
    )
    page.wait_for_function(
        "/Almost no effect: .* as likely/.test(document.querySelector('.interventions-bar "
        "[data-part=verdict]')?.textContent)"
    )
    page.get_by_role("button", name="Compare the texts").click()
    page.wait_for_function(f"{DONE} && document.querySelector('.interventions-compared')")
    assert page.locator(".interventions-still").inner_text().strip() == whole.strip()
    assert page.locator(".machine-cut").count() == 1
    first, second = (
        page.locator(f".interventions-sides > div:nth-child({n}) .interventions-bars li").all_inner_texts()
        for n in (1, 2)
    )
    assert first and second and first != second
    page.locator(".interventions-bar button").first.click()
    page.wait_for_function("!glgpt.model.interventions.parts.length && !document.querySelector('.interventions-bar')")
    page.wait_for_function(DONE)
    assert (
        page.evaluate("document.querySelector('.text-stream').textContent") == whole
        and "interventions=" not in page.url
    )


def test_a_card_can_be_asked_for_by_itself(page: Any) -> None:
    """Fails if one card of the tour cannot be opened alone, or does not lead to the next suggestion."""
    card = page.get_by_role("complementary", name="Tour")
    page.get_by_role("button", name="See what it attends to").click()
    assert card.get_by_role("heading").inner_text() == "Attention"
    card.get_by_role("button", name="Next: switch off a head").click()
    assert card.get_by_role("heading").inner_text() == "Now break it"
    card.get_by_role("button", name="Done").click()
    assert card.count() == 0 and "tour=" not in page.url
    go(page, "Text")
    page.get_by_role("button", name="See what it attends to").click()
    card.get_by_role("button", name="The whole tour").click()
    assert card.get_by_role("heading").inner_text().split() == ["1", "of", "10", "Tokens"]


def test_the_tour_moves_the_views_and_can_be_linked(page: Any) -> None:
    page.get_by_role("button", name="Take the tour").click()
    titles = []
    for number in range(1, 11):
        assert f"tour={number}" in page.url
        card = page.get_by_role("complementary", name="Tour")
        titles.append(card.get_by_role("heading").inner_text())
        assert card.locator(".tour-question").inner_text().endswith("?")
        below = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom + scrollY")
        room = page.evaluate("parseFloat(getComputedStyle(document.querySelector('main')).paddingBottom)")
        assert card.bounding_box()["height"] <= room < below  # no part of the view stays under the card
        card.get_by_role("button", name="Done" if number == 10 else "Next card").click()
    assert len(set(titles)) == 10 and "tour=" not in page.url
    page.evaluate("location.hash = '#prompt=To+be&tokens=3&tour=6'")
    page.get_by_role("heading", name="The residual stream").wait_for()
    page.get_by_role("region", name="Blocks").wait_for()


def test_a_button_keeps_the_focus_while_the_text_is_written(page: Any) -> None:
    button = page.get_by_role("button", name="Continue", exact=True)
    button.focus()
    # One script clicks twice: with two scripts, the text could be complete before the second click. The second click
    # must do nothing, since the text is still being generated.
    writing = """async () => {
      const button = document.activeElement;
      button.click();
      while (!document.querySelector('.text-caret')) await new Promise((done) => setTimeout(done));
      button.click();
    }"""
    page.evaluate(writing)
    page.wait_for_function("!document.querySelector('.text-caret')")
    assert page.evaluate("document.activeElement.textContent") == "Continue"
    assert page.evaluate("document.querySelectorAll('.text-token:not(.text-given)').length") == 24
