"""Tests navigation: history, links, titles, the keyboard, limits of settings, and the size of controls."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from browser import FOLLOW, writing
from training_page import PLAY, QUIET

from glgpt import LanguageModel
from glgpt.system.files import data_path

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]

VIEWS = ("Text", "Attention", "Blocks", "Textures", "Passes", "Train", "Device")
DONE = "!document.querySelector('.text-caret') && document.querySelectorAll('.text-token:not(.text-given)').length"


def go(page: Any, title: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("button", name=title, exact=True).click()


def at(page: Any, title: str) -> bool:
    current = page.get_by_role("navigation", name="Views").locator("[aria-current=page]").inner_text()
    return bool(current == title and page.title().startswith(f"{title} · ") and f"view={title.lower()}" in page.url)


@pytest.fixture
def text(opened: Any) -> Iterator[Any]:
    """Yields the page with 12 tokens after `To be`."""
    with writing(opened, "prompt=To+be&tokens=12", 12) as page:
        yield page


def test_a_link_to_a_view_that_the_model_lacks_opens_the_first_that_it_has(text: Any) -> None:
    text.evaluate(FOLLOW, "view=chat&prompt=To+be&tokens=12")  # the model has no chat template
    text.get_by_role("region", name="Text").wait_for()
    assert at(text, "Text") and text.get_by_role("region", name="Chat").count() == 0


def test_back_and_forward_go_from_tab_to_tab(trainee: Any) -> None:
    page = trainee
    page.wait_for_function(DONE)
    page.evaluate("globalThis.mark = 1")
    for title in VIEWS[1:4]:
        go(page, title)
        assert at(page, title)
    page.get_by_role("button", name="ln_f", exact=True).click()  # a selection within a view adds no history entry
    for title in (*VIEWS[2:0:-1], "Text"):
        page.go_back()
        assert at(page, title)
    page.go_forward()
    assert at(page, "Attention")
    assert page.evaluate("globalThis.mark") == 1  # the page was never reloaded
    go(page, "Text")


@pytest.mark.soak
def test_a_pasted_link_is_applied_while_training_goes_on(trainee: Any) -> None:
    page = trainee
    page.wait_for_function(DONE)
    page.evaluate("globalThis.mark = 1")
    options = {"text": PLAY, "config": QUIET, "steps": 400, "seed": 1}
    page.evaluate("(options) => void glgpt.train(options).catch(() => {})", options)
    page.wait_for_function("glgpt.training.session?.step >= 1")
    before = page.evaluate("glgpt.training.session.step")
    page.evaluate("location.hash = '#prompt=Now&tokens=3&temperature=0&view=attention&layer=2&head=1&kind=scores'")
    page.get_by_role("heading", name="Layer 2, head 1").wait_for()
    assert page.get_by_label("Show").input_value() == "scores"
    page.wait_for_function(f"glgpt.training.session.step > {before} && glgpt.training.session.status === 'running'")
    go(page, "Text")
    page.wait_for_function(f"{DONE} === 3")
    assert page.get_by_label("Prompt").input_value() == "Now"
    assert page.evaluate("globalThis.mark") == 1
    page.evaluate("glgpt.pause()")


def test_copy_link_is_called_what_it_says(trainee: Any) -> None:
    page = trainee
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy link", exact=True)
    button.click()
    page.wait_for_function("/Copied/.test(document.querySelector('header').textContent)")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert button.inner_text() == "Copy link"  # also while "Copied" is shown


def test_a_choice_by_keyboard_keeps_the_focus_on_the_token(text: Any) -> None:
    page = text
    place = page.evaluate("document.querySelectorAll('.text-given').length") + 3
    for which in ("nth(1)", "last"):  # an alternative, and "Sample again from here"
        page.locator(".text-token").nth(place).focus()
        buttons = page.get_by_role("group", name="Alternatives to").get_by_role("button")
        chosen = buttons.nth(1) if which == "nth(1)" else buttons.last
        chosen.focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            f"[...document.querySelectorAll('.text-token')].indexOf(document.activeElement) === {place}"
        )
        page.wait_for_function(DONE)
        assert page.evaluate("[...document.querySelectorAll('.text-token')].indexOf(document.activeElement)") == place


def test_the_length_is_bounded_and_a_prompt_by_the_context(text: Any) -> None:
    page = text
    page.evaluate(FOLLOW, "prompt=To+be&tokens=100000&temperature=0&stop=e")
    context = page.evaluate("glgpt.info().config.n_positions")
    field = page.get_by_role("spinbutton", name="Length")
    assert int(field.input_value()) == 4096
    field.fill("100000")
    field.blur()
    assert int(field.input_value()) == 4096 == int(field.get_attribute("max"))
    assert (
        f"The context holds {context} tokens; the prompt takes 2. When the text outgrows the context, the model forgets"
        in page.locator(".text-room").inner_text()
    )
    page.get_by_label("Prompt").fill("To be or not " * 200)
    assert "shorten the prompt" in page.locator(".text-room").inner_text()


def test_a_text_goes_on_beyond_the_context_as_on_the_desktop(text: Any, desktop: LanguageModel) -> None:
    """Fails if a text longer than the context differs from the desktop's, or if Attention shows forgotten tokens.

    The page generates the text in one call, and its last ten tokens in a second call too. The prompt nearly fills the
    context, so that the test need not generate many tokens.
    """
    page, prompt, tokens = text, PLAY[:470], 60
    ids, context = desktop.encode(prompt), desktop.config.n_positions
    wanted = list(desktop.generate_ids(ids, tokens, temperature=0.8, seed=5, eos=False))
    whole = [*ids, *wanted]
    total, at = len(whole), len(whole) - 2
    assert len(ids) < context < total - 20 < context + context // 2
    row = desktop.logits(whole[context // 2 : at])[-1].astype(float)
    asked = {"prompt": prompt, "temperature": 0.8, "seed": 5, "eos": False}
    made = page.evaluate("(o) => glgpt.generate(o)", asked | {"tokens": tokens})
    assert (made["ids"], made["stopped"]) == (wanted, "tokens")
    further = {"ids": whole[:-10], "drawn": tokens - 10, "tokens": 10}
    assert page.evaluate("(o) => glgpt.generate(o).then((r) => r.ids)", asked | further) == wanted[-10:]
    assert "shorten it" in page.evaluate("glgpt.generate({ids: Array(257).fill(1)}).catch((error) => error.message)")
    page.evaluate(FOLLOW, urlencode({"prompt": prompt, "tokens": 1, "temperature": 0.8, "p": 1, "seed": 5}))
    page.wait_for_function(f"{DONE} === 1")
    page.get_by_role("spinbutton", name="Length").fill(str(tokens))
    page.get_by_role("button", name="Generate").click()
    page.wait_for_function(f"{DONE} > 1")
    read = page.evaluate("(total) => glgpt.model.context.read(Array(total).fill(0)).length", total)
    said = f"the model reads the last {read} tokens. It has forgotten the first {total - read}"
    assert said in page.locator("[data-part=slid]").inner_text() and page.locator(".text-past").count() == total - read
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Attention").click()
    page.wait_for_function("document.querySelectorAll('.attention-arcs button').length")
    assert page.locator(".attention-arcs button").count() == read
    script = "([ids, at]) => glgpt.borrow((model) => glgpt.probabilities(model, ids, at, 1))"
    top = page.evaluate(script, [whole, at])["top"][0]
    assert top["id"] == row.argmax() and abs(top["p"] - math.exp(row.max()) / np.exp(row).sum()) < 1e-3


SMALL = """() => [...document.querySelectorAll('button, a, input, select, textarea, summary, [tabindex]')].map((e) => {
  const target = e.matches('label input[type=checkbox], label input[type=file]') ? e.closest('label') : e;
  const box = target.getBoundingClientRect();
  return [e.outerHTML.slice(0, 80), box.width, box.height];
}).filter(([html, width, height]) => width && !/class="text-token/.test(html) && (width < 24 || height < 24))"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def test_targets_can_be_hit_and_axe_finds_nothing(site: Path, serve: Serve, browse: Browse) -> None:
    """Fails if axe finds a fault, or a control has less than 24 by 24 CSS pixels (WCAG 2.5.8), except tokens in a text.

    The page opens at a phone's width. Each view is checked at this width and at a desktop's width.
    """
    axe = data_path("viewer/node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    page = browse(serve(site) + "#prompt=To+be&tokens=12", viewport={"width": 390, "height": 800})
    page.evaluate("glgpt.ready")
    page.wait_for_function(DONE)
    page.evaluate(f"{axe}; 0")
    page.locator(".text-token").last.click()
    page.wait_for_function("document.querySelector('.text-alternatives')")
    waits = {
        "Attention": "document.querySelector('.attention-arcs button')",
        "Blocks": "document.querySelector('.blocks-lens td button:not(:empty)')",
        "Textures": "document.querySelector('.textures-list button')",
        "Passes": "document.querySelector('.passes-source .passes-word')",
        "Train": "document.querySelector('[data-view=train] textarea')?.value",
    }
    found: dict[str, Any] = {}
    for title in VIEWS:
        if title != "Text":
            go(page, title)
        page.wait_for_function(f"Boolean({waits.get(title, 'true')})")
        for width in (1366, 390):
            page.set_viewport_size({"width": width, "height": 800})
            violations = page.evaluate(f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((r) => r.violations)")
            named = [(v["id"], v["nodes"][0]["html"][:80]) for v in violations]
            if wrong := [*page.evaluate(SMALL), *named]:
                found[f"{title}, {width}"] = wrong
    assert not found


def test_few_tab_stops_lead_to_the_prompt_and_arrow_keys_move_in_the_machine(
    exported: Path, serve: Serve, browse: Browse
) -> None:
    """Fails if every cell of the machine is a tab stop: with 30 blocks, it would have 182."""
    page = browse(serve(exported) + "#tokens=1")
    page.evaluate("glgpt.ready")
    page.wait_for_function(f"{DONE} && document.querySelector('.machine-cells').dataset.drawn > 0")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the prompt"
    reached: list[str] = []
    while len(reached) < 25 and "TEXTAREA" not in reached:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText || document.activeElement.tagName"))
    assert reached[-1] == "TEXTAREA", reached
    page.locator(".machine-stage[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.ariaLabel") == "scores of block 0: open in Attention"
    page.locator(".shell-skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('.ui-prompt textarea')")


def test_a_link_names_what_the_page_does_not_know(text: Any) -> None:
    page = text
    page.evaluate(FOLLOW, "prompt=Now&tokens=1&colour=red&view=blocks")
    bar = page.locator(".shell-unknown")
    assert "The link sets colour, which this page does not support." in bar.inner_text()
    bar.get_by_role("button", name="Dismiss").click()
    assert not bar.count()
    # The page computes the last column first, since the details below the table are about this column. The page
    # shows how many columns are left to compute.
    page.evaluate("""() => {
      window.counted = false;
      const observer = new MutationObserver(() => {
        counted ||= /computing \\d+ of/.test(document.querySelector('[data-part=waiting]')?.textContent);
        if (counted) observer.disconnect();
      });
      observer.observe(document.body, {subtree: true, childList: true, characterData: true});
      location.hash = '#prompt=To be, or not to be, that is the question&tokens=8&view=blocks';
    }""")
    page.wait_for_function("window.counted")
    page.wait_for_function("document.querySelector('.blocks-lens td button[title]:not([title=\"\"])')")
    assert page.locator(".blocks-lens tbody tr").first.locator("td button").last.get_attribute("title")
    page.wait_for_function("!document.querySelector('[data-part=waiting]').textContent")
