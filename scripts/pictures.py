"""Makes the pictures in docs/images from the current embedded model and page.

    python scripts/pictures.py                          make all pictures
    python scripts/pictures.py page-text head           make only these
    python scripts/pictures.py --out out/pictures       write to another folder, to compare

`glgpt dump` draws `attention` and `head`. Each `page-…` is a screenshot of the exported page in Chromium (build the
page with `make viewer`). This script does not make `nano-loss.png`: it is from a run of 2,000 training steps
(docs/guide/train.md).
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

import numpy as np  # noqa: E402
from browser import FLAGS, find_chromium, served, wait_without_eval  # noqa: E402
from PIL import Image  # noqa: E402

from glgpt import GPT2  # noqa: E402
from glgpt.errors import GlgptError  # noqa: E402
from glgpt.inspection.dump import dump  # noqa: E402
from glgpt.page.export import export  # noqa: E402
from glgpt.page.export_options import ExportOptions  # noqa: E402
from glgpt.system.files import written_whole  # noqa: E402

LINE = "To be, or not to be: that is the question."
HEAD = 1, 6  # layer and head that, in `LINE`, attend to the latest comma or colon
WORD = "·tell"  # a token of the page's first text; its alternatives are whole words too
PAGE_HEAD = 3, 5  # layer and head that, in the page's first text, attend from a line's end to the speaker's name
WIDTH = 1180
STEPS = 320  # training steps before the picture is taken
TIMEOUT = 300_000  # ms

WRITTEN = "!document.querySelector('.text-caret') && /decode/.test(document.querySelector('.text-rate')?.textContent)"
# True once the page shows a recorded text, which is not generated
SHOWN = "!document.querySelector('.text-caret') && document.querySelector('.text-token')"
# Returns the position [x, y] of a head's greatest attention weight in the picture of the head, in pixels. Skips the
# weights of the first, the previous and the current token, since many heads attend to them.
STRONGEST = """async ([layer, head]) => {
  const {shape: [, n], data} = await glgpt.activation(`h.${layer}.attn.pattern`);
  const at = (i, j) => data[(head * n + i) * n + j];
  let best = [24, 0];
  for (let i = 24; i < 40; i++) for (let j = 1; j < i - 1; j++) if (at(i, j) > at(...best)) best = [i, j];
  const cell = document.querySelector(".attention-square canvas").clientWidth / n;
  return [(best[1] + 0.5) * cell, (best[0] + 0.5) * cell];
}"""


class Studio:
    """Exports pages, opens them in Chromium, and writes pictures to a folder."""

    def __init__(self, out: Path, stack: ExitStack) -> None:
        self.out, self.stack = out, stack

    @cached_property
    def work(self) -> Path:
        """Returns a temporary folder."""
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory()))

    @cached_property
    def heads(self) -> Path:
        """Returns the folder with the pictures that `glgpt dump` makes of `LINE`."""
        with GPT2.from_pretrained("shakespeare") as model:
            assert model.tokenizer
            dump(model, model.tokenizer.encode(LINE), self.work / "heads")
        return self.work / "heads/attention"

    @cached_property
    def chromium(self) -> Any:
        """Returns a running Chromium."""
        try:
            from playwright.sync_api import sync_playwright  # noqa: PLC0415
        except ModuleNotFoundError:
            raise GlgptError("pictures of the page need `pip install -r requirements-page.txt`") from None
        path = find_chromium()
        playwright = self.stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        self.stack.callback(browser.close)
        return browser

    @cached_property
    def plain(self) -> str:
        """Returns the address of the embedded model's page."""
        export(None, self.work / "plain", ExportOptions("f16"))
        return self.stack.enter_context(served(self.work / "plain"))

    @cached_property
    def training(self) -> str:
        """Returns the address of the page with a Train tab."""
        export(None, self.work / "training", ExportOptions("f16", train=("nano", "tiny")))
        return self.stack.enter_context(served(self.work / "training"))

    @contextmanager
    def page(self, link: str, height: int, view: str = "Text", site: str = "") -> Iterator[Any]:
        """Opens `site` (default: `plain`) at the fragment `link`, waits for the whole text, and shows a view."""
        chromium = self.chromium
        with chromium.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light") as page:
            wait_without_eval(page).set_default_timeout(TIMEOUT)
            page.goto((site or self.plain) + link)
            page.evaluate("glgpt.ready")
            page.wait_for_function(WRITTEN if "tokens=" in link else SHOWN)
            page.get_by_role("navigation", name="Views").get_by_role("button", name=view, exact=True).click()
            page.wait_for_timeout(1500)  # a software driver takes a while to draw
            yield page

    def keep(self, name: str, png: bytes) -> None:
        """Writes a picture and prints its path and size."""
        self.out.mkdir(parents=True, exist_ok=True)
        with written_whole(self.out / f"{name}.png") as file:
            file.write(png)
        print(f"{self.out / name}.png: {len(png) / 1000:.0f} KB", flush=True)

    def shoot(self, name: str, page: Any, whole: bool = True) -> None:
        """Takes a screenshot of the whole page, or of the window only."""
        page.wait_for_timeout(1000)
        self.keep(name, packed(page.screenshot(full_page=whole)))


def packed(png: bytes) -> bytes:
    """Reduces a picture to 256 colours. The 64 most common colours are exact, so areas of one colour do not change."""
    with Image.open(io.BytesIO(png)) as file:
        image = file.convert("RGB")
    pixels = np.asarray(image).reshape(-1, 3)
    colours, place, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    spread = image.quantize(192, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.concatenate([colours[np.argsort(-counts)[:64]], np.reshape(spread, (-1, 3))]).astype(np.int64)
    nearest = ((colours[:, None].astype(np.int64) - palette) ** 2).sum(2).argmin(1).astype(np.uint8)
    few = Image.fromarray(nearest[place.reshape(image.height, image.width)], "P")
    few.putpalette(palette.astype(np.uint8).tobytes())
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def attention(studio: Studio) -> None:
    """Makes the picture of all heads."""
    studio.keep("attention", (studio.heads / "contact-sheet.png").read_bytes())


def head(studio: Studio) -> None:
    """Makes the picture of one head."""
    studio.keep("head", (studio.heads / "layer-{:02}-head-{:02}.png".format(*HEAD)).read_bytes())


def page_text(studio: Studio) -> None:
    """Shows the page as it opens, with the alternatives of one token."""
    with studio.page("", 960) as page:
        token = page.locator(f".text-token[aria-label^='{WORD},']").first
        if not token.count():
            raise GlgptError(f"the page's first text no longer has the token {WORD}; change WORD")
        token.hover()
        studio.shoot("page-text", page)


def page_attention(studio: Studio) -> None:
    """Shows one head and one of its attention weights."""
    layer, head = PAGE_HEAD
    with studio.page(f"#tokens=90&layer={layer}&head={head}", 950, "Attention") as page:
        x, y = page.evaluate(STRONGEST, [layer, head])
        page.locator(".attention-square canvas").first.hover(position={"x": x, "y": y})
        studio.shoot("page-attention", page)


def page_blocks(studio: Studio) -> None:
    """Shows each block's predictions."""
    with studio.page("#tokens=90", 640, "Blocks") as page:
        page.wait_for_function("document.querySelectorAll('.blocks-lens td button:not(:empty)').length >= 60")
        page.locator(".blocks-lens tr").nth(7).locator("td button").nth(5).click()
        studio.shoot("page-blocks", page)


def page_textures(studio: Studio) -> None:
    """Shows an activation as a matrix, and one of its values."""
    with studio.page("#tokens=90&texture=h.3.attn.q", 830, "Textures") as page:
        page.locator(".plane canvas").first.hover(position={"x": 301, "y": 20})
        studio.shoot("page-textures", page)


def page_passes(studio: Studio) -> None:
    """Shows a token's passes with their times, and the details of one pass."""
    with studio.page("#tokens=90", 1026, "Passes") as page:
        page.get_by_role("button", name="Measure times").click()
        page.wait_for_function(
            "/slope over repeats|timer queries/.test(document.querySelector('[data-view=passes]').textContent)"
        )
        page.locator("[data-view=passes] ol li").nth(45).click()
        page.wait_for_timeout(1500)
        studio.shoot("page-passes", page, whole=False)


def page_device(studio: Studio) -> None:
    """Shows the device and its comparison with the desktop."""
    with studio.page("#tokens=90", 760, "Device") as page:
        page.get_by_role("button", name="Compare").click()
        page.wait_for_function("/PASS|FAIL/.test(document.querySelector('.device-verdict').textContent)")
        studio.shoot("page-device", page)


def page_cut(studio: Studio) -> None:
    """Makes a layer attend only to the previous token, and shows how the text then differs from the original text."""
    with studio.page("#tokens=60&layer=2&head=mean", 860, "Attention") as page:
        page.get_by_label("Attends to").select_option("previous")
        page.wait_for_function("document.querySelector('.interventions-parting')")
        page.get_by_role("button", name="Compare the texts").click()
        page.wait_for_function(f"{WRITTEN} && document.querySelector('[data-part=compared] [data-part=verdict]')")
        studio.shoot("page-cut", page, whole=False)  # with the bar at the bottom of the window


def page_data(studio: Studio) -> None:
    """Shows a chosen text that is cleaned up and split into training and validation text."""
    with studio.page("#tokens=2&step=data", 860, "Train", studio.training) as page:
        page.wait_for_timeout(2000)
        studio.shoot("page-data", page)


def page_tokens(studio: Studio) -> None:
    """Shows a text tokenized by two vocabularies."""
    with studio.page("#tokens=2&step=tokens", 860, "Train", studio.training) as page:
        page.wait_for_function("document.querySelectorAll('[data-part=vocabulary]')[1]?.dataset.tokens > 0")
        studio.shoot("page-tokens", page, whole=False)


def page_train(studio: Studio) -> None:
    """Shows a model after `STEPS` steps of training, its text (`page-write`) and its score (`page-score`)."""
    with studio.page("#tokens=2&step=train", 1000, "Train", studio.training) as page:
        page.get_by_role("button", name="Start").click()
        for step in range(STEPS // 10, STEPS + 1, STEPS // 10):
            page.wait_for_function(f"glgpt.training.session?.step >= {step}")
            print(f"page-train: step {step} of {STEPS}", file=sys.stderr, flush=True)
        studio.shoot("page-train", page)
        page.get_by_role("button", name="Pause").click()
        page.locator(".train-stages").get_by_role("button", name="Write").click()
        page.get_by_label("Prompt").fill("KING RICHARD:")
        page.get_by_role("button", name="Generate", exact=True).click()
        page.wait_for_function("/RICHARD:[^]{100}/.test(document.querySelector('[data-part=samples] pre').textContent)")
        studio.shoot("page-write", page)
        page.locator(".train-stages").get_by_role("button", name="Score").click()
        page.get_by_role("button", name="Score the model").click()
        page.wait_for_function("document.querySelector('.train-reliability')")
        studio.shoot("page-score", page)


MAKERS: tuple[Callable[[Studio], None], ...] = (
    attention, head, page_text, page_attention, page_blocks, page_textures, page_passes, page_device,
    page_cut, page_data, page_tokens, page_train,
)  # fmt: skip
PICTURES = {maker.__name__.replace("_", "-"): maker for maker in MAKERS}


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the requested pictures and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(PICTURES)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", metavar="DIR", help="default: docs/images")
    args = parser.parse_args(argv)
    try:
        if unknown := [name for name in args.names if name not in PICTURES]:
            raise GlgptError(f"unknown picture {unknown[0]!r}; expected any of {', '.join(PICTURES)}")
        with ExitStack() as stack:
            studio = Studio(args.out, stack)
            for name in args.names or PICTURES:
                print(f"{name} …", file=sys.stderr, flush=True)
                PICTURES[name](studio)
    except GlgptError as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
