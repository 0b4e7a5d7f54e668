"""Tests the dark and the light scheme: all texts have enough contrast, and drawings change with the scheme."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]

MIN_CONTRAST = 4.5  # minimum contrast of text with its background, except in disabled controls (WCAG 2.2, 1.4.3)
VIEWS = ("text", "attention", "blocks", "textures", "passes", "train", "device")

# Returns [contrast, text, element] for text nodes and values of fields. The background of a text is that at its middle.
# The script paints the background colours of all elements there onto a canvas, one over the other, since a canvas
# parses every notation of a colour. It paints all colours of a gradient. Relative luminance is WCAG's, for sRGB.
CONTRASTS = r"""() => {
  const flat = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const luminance = () => {
    const [r, g, b] = Array.from(flat.getImageData(0, 0, 1, 1).data, (x) => x / 255)
      .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const lay = (color, alpha = 1) => {
    flat.globalAlpha = alpha;
    flat.fillStyle = color;
    flat.fillRect(0, 0, 1, 1);
  };
  const opacity = (e) => e ? Number(getComputedStyle(e).opacity) * opacity(e.parentElement) : 1;
  const ancestors = (e) => e ? [e, ...ancestors(e.parentElement)] : [];
  const found = [];
  const measure = (element, text, middle) => {
    const style = getComputedStyle(element);
    const disabled = element.closest(':disabled, [aria-disabled=true], label:has(:disabled)');
    if (disabled || style.visibility !== 'visible') return;
    element.scrollIntoView({block: 'center', inline: 'center'});
    const box = middle();
    if (box.width < 2 || box.height < 2) return;
    const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const layers = (under.includes(element) ? under : ancestors(element)).reverse();
    lay(getComputedStyle(document.documentElement).colorScheme.includes('dark')
      && matchMedia('(prefers-color-scheme: dark)').matches ? 'black' : 'white');
    for (const layer of layers) {
      const {backgroundColor, backgroundImage} = getComputedStyle(layer);
      const gradient = backgroundImage.match(/(?<!gradient)\b(rgba?|color|oklab)\([^()]*\)/g) ?? [];
      for (const color of [backgroundColor, ...gradient]) lay(color, opacity(layer));
    }
    const below = luminance();
    lay(style.color, opacity(element));
    const [low, high] = [below, luminance()].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), text.trim().slice(0, 40), `${element.tagName}.${element.className}`]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('script, style, select, textarea')) continue;
    measure(element, node.data, () => range.getClientRects()[0] ?? new DOMRect());
  }
  for (const field of document.querySelectorAll('input:not([type=checkbox], [type=range]), select, textarea')) {
    if (field.value) measure(field, field.value, () => field.getBoundingClientRect());
  }
  return found;
}"""


def open_view(page: Any, view: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("button", name=view.capitalize(), exact=True).click()
    waits = {
        "attention": "document.querySelector('.attention-arcs button')",
        "blocks": "document.querySelectorAll('.blocks-lens td button:not(:empty)').length >= 60",
        "textures": "document.querySelector('.plane canvas')",
        "passes": "document.querySelector('.passes-source .passes-word')",
        "train": "document.querySelector('[data-view=train] textarea')?.value",
    }
    if view in waits:
        page.wait_for_function(f"Boolean({waits[view]})")


def too_faint(page: Any, *includes: str, before: Callable[[], None] = lambda: None) -> list[Any]:
    """Returns texts with too little contrast in the light and in the dark scheme. The dark scheme stays active.

    Fails if a text of `includes` was not measured. In each scheme, calls `before` and then measures.
    """
    faint = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        before()
        found = page.evaluate(CONTRASTS)
        assert len(found) > 10
        assert set(includes) <= {text for _, text, _ in found}
        faint += [(scheme, *entry) for entry in found if entry[0] < MIN_CONTRAST]
    return faint


def test_every_text_can_be_read(site: Path, serve: Serve, browse: Browse) -> None:
    look = {"color_scheme": "dark", "reduced_motion": "no-preference"}
    page = browse(serve(site) + "#prompt=To+be&tokens=12&view=text", **look)
    page.evaluate("glgpt.ready")
    page.wait_for_function(
        "document.querySelector('.text-token:not(.text-given)') && !document.querySelector('.text-caret')"
    )
    faint = {}
    for view in VIEWS:
        open_view(page, view)
        legend = ("surprise", "0", "8+", "bits, on average") if view == "text" else ()
        faint[view] = too_faint(page, *legend)
        if view == "train":  # checks again with everything that a training run shows
            page.get_by_role("button", name="One step").click()
            page.wait_for_function("glgpt.training.session?.step === 1 && !document.querySelector('.machine-busy')")
            page.get_by_text("Schedule", exact=True).click()
            page.get_by_role("button", name="Reset").click()
            faint["training"] = too_faint(page)
            for stage, shown in {
                "Tokens": "[data-part=vocabulary]",
                "Write": ".train-write-stage",
                "Score": ".train-score",
            }.items():
                page.locator(".train-stages").get_by_role("button", name=stage).click()
                page.wait_for_function(f"Boolean(document.querySelector({shown!r}))")
                faint[stage] = too_faint(page)
            page.get_by_role("button", name="Reset").click()
            page.get_by_role("button", name="Delete the model?").click()
        if view == "device":
            page.get_by_role("button", name="Compare").click()
            page.wait_for_function("/PASS/.test(document.querySelector('.device-verdict').textContent)")
            faint["compared"] = too_faint(page)
    assert not any(faint.values()), faint


def test_the_status_in_the_header_can_be_read(site: Path, serve: Serve, browse: Browse) -> None:
    page = browse("about:blank#")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/weights-*", hold)
    page.goto(serve(site) + "#tokens=1&view=text")
    page.locator("header progress").wait_for()
    page.get_by_text("the text below is a recording").wait_for()
    assert too_faint(page, "Fetching the model", "· the text below is a recording") == []
    for route in held:
        route.continue_()
    page.unroute("**/weights-*")
    page.evaluate("glgpt.ready")
    open_view(page, "device")
    page.evaluate("navigator.clipboard.writeText = () => Promise.resolve()")

    def copy() -> None:
        page.get_by_role("button", name="Copy link").click()
        page.locator("header").get_by_text("Copied").wait_for()

    assert too_faint(page, "Copied", before=copy) == []


def brightness(page: Any, selector: str) -> float:
    """Returns the mean brightness of an element on the screen, from 0 to 1."""
    script = """async (data) => {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      const image = await createImageBitmap(new Blob([bytes], {type: 'image/png'}));
      const flat = new OffscreenCanvas(image.width, image.height).getContext('2d');
      flat.drawImage(image, 0, 0);
      const {data: all} = flat.getImageData(0, 0, image.width, image.height);
      return all.reduce((sum, x, i) => i % 4 === 3 ? sum : sum + x, 0) / (255 * 3 * all.length / 4);
    }"""
    shot = base64.b64encode(page.locator(selector).first.screenshot()).decode()
    return float(page.evaluate(script, shot))


@pytest.mark.soak
def test_drawings_follow_a_change_of_the_scheme(site: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a picture hides the page's background, or curves are not drawn again in the scheme's colours."""
    page = browse(serve(site) + "#prompt=To+be&tokens=12&view=text", color_scheme="light")
    page.evaluate("glgpt.ready")
    page.wait_for_function(
        "document.querySelector('.text-token:not(.text-given)') && !document.querySelector('.text-caret')"
    )
    # Most pixels of the curves belong to the grid, whose colour is close to the background in both schemes.
    ink = """() => {
      const canvas = document.querySelector('.curves canvas');
      const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let sum = 0, count = 0;
      for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] < 200) continue; // an empty pixel or an edge
        sum += (data[i] + data[i + 1] + data[i + 2]) / (3 * 255);
        count++;
      }
      return sum / count;
    }"""
    inside = (".train-inside [data-part=heads]", ".train-matrix")
    drawn = {"attention": (".attention-square", ".attention-squares"), "textures": (".plane",), "train": inside}
    for view, selectors in drawn.items():
        open_view(page, view)
        if view == "train":
            page.get_by_role("button", name="One step").click()
            page.wait_for_function("glgpt.training.session?.step === 1 && !document.querySelector('.machine-busy')")
        page.wait_for_timeout(1000)
        light = [brightness(page, s) for s in selectors]
        grid = page.evaluate(ink) if view == "train" else 0
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(300)
        for selector, before in zip(selectors, light, strict=True):
            assert brightness(page, selector) < before - 0.2, selector
        if view == "train":
            assert page.evaluate(ink) < grid - 0.3
        page.emulate_media(color_scheme="light")
