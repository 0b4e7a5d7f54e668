"""Tests that nothing moves while a page loads, controls fit a finger, and an invalid browser language does no harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]

MAX_SHIFT = 0.02  # maximum sum of a visit's layout shifts; web.dev/cls calls up to 0.1 good
FINGER = 40  # minimum height of a control on a phone, in pixels
LAPTOP: dict[str, Any] = {"viewport": {"width": 1366, "height": 768}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}

SHIFTS = """
globalThis.shifts = [];
new PerformanceObserver((list) => shifts.push(...list.getEntries().filter((e) => !e.hadRecentInput)))
  .observe({type: 'layout-shift', buffered: true});"""
MOVED = """[shifts.reduce((sum, e) => sum + e.value, 0), shifts.map((e) => [e.value, ...e.sources.map(
  ({node, previousRect: a, currentRect: b}) => [`${node?.nodeName}.${node?.className}`, a.x, a.y, b.x, b.y])])]"""

# Returns controls that are too low for a finger, except for links and tokens (as high as a line of text), the link that
# skips to the prompt, and the cells of the machine (a picture of the model).
SMALL = """(least) => [...document.querySelectorAll('button, select, summary, textarea, input, a')]
  .filter((e) => e.checkVisibility({visibilityProperty: true}))
  .filter((e) => !e.matches('.ui-link, p a, .machine-stage, .attention-arcs button, .shell-skip'))
  .map((e) => [(e.closest('label') ?? e).getBoundingClientRect().height, e.outerHTML.slice(0, 120)])
  .filter(([height]) => height < least)"""

DRAWN = {
    "text": "document.querySelector('.machine-cells')",
    "blocks": "document.querySelectorAll('.blocks-lens td button:not(:empty)').length >= 60",
    "textures": "document.querySelector('.plane-histogram rect')",
    "train": "document.querySelector('[data-view=train] textarea')?.value",
}


@pytest.mark.parametrize(
    ("view", "window"),
    [
        pytest.param("text", LAPTOP, marks=pytest.mark.soak),
        ("textures", LAPTOP),
        ("text", PHONE),
        ("blocks", PHONE),
        ("train", PHONE),
    ],
)
def test_nothing_moves_while_a_page_loads(
    site: Path, serve: Serve, browse: Browse, view: str, window: dict[str, Any]
) -> None:
    page = browse(serve(site) + f"#view={view}", init=SHIFTS, **window)
    page.evaluate("glgpt.ready")
    page.wait_for_function(f"Boolean({DRAWN[view]})")
    page.wait_for_timeout(500)
    total, found = page.evaluate(MOVED)
    assert total < MAX_SHIFT, found


@pytest.mark.soak
def test_the_bar_of_changes_moves_nothing(site: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(site) + "#view=blocks&tokens=8", **LAPTOP)
    page.evaluate("glgpt.ready")
    page.wait_for_function(f"Boolean({DRAWN['blocks']})")
    before = page.locator(".blocks-lens").bounding_box()
    page.locator("[data-ablate]").first.click()
    bar = page.locator("[data-interventions]")
    first = bar.bounding_box()
    bar.locator("[data-part=verdict]").wait_for()
    assert page.locator(".blocks-lens").bounding_box() == before
    assert bar.bounding_box() == first


def test_the_bar_of_changes_stays_low_in_a_low_window(site: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the bar with the interventions covers the view in a low window, such as one at a zoom of 200%."""
    changes = "interventions=h.0.mlp,h.1.mlp,h.2.mlp*2,h.3.attn"
    page = browse(serve(site) + f"#view=blocks&tokens=2&{changes}", viewport={"width": 640, "height": 400})
    page.evaluate("glgpt.ready")
    bar = page.locator("[data-interventions]")
    bar.get_by_role("button", name="Compare the texts").wait_for()
    assert bar.bounding_box()["height"] <= 0.15 * 400
    bar.get_by_role("button", name="Compare the texts").click()  # scrolls in the bar
    page.locator("[data-part=compared]").wait_for()


def test_a_finger_hits_every_control(site: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(site) + "#view=text", **PHONE)
    page.evaluate("glgpt.ready")
    for tab in page.get_by_role("navigation", name="Views").get_by_role("button").all():
        tab.click()
        assert tab.bounding_box()["x"] + tab.bounding_box()["width"] <= PHONE["viewport"]["width"]
        page.wait_for_timeout(300)
        assert page.evaluate(SMALL, FINGER) == [], tab.inner_text()


def test_a_browser_whose_language_is_no_tag(site: Path, serve: Serve, browse: Browse) -> None:
    init = "Object.defineProperty(Navigator.prototype, 'language', {get: () => 'en-US@posix', configurable: true});"
    page = browse(serve(site) + "#view=device", init=init)
    page.evaluate("glgpt.ready")
    page.get_by_text("1,024 tokens").wait_for()
