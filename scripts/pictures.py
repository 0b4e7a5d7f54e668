"""Makes the pictures in docs/images anew, of the embedded model and the page as they are now.

    python scripts/pictures.py                          all of them
    python scripts/pictures.py page-text head           these
    python scripts/pictures.py --out out/pictures       elsewhere, to compare

`attention` and `head` are what `glgpt dump` draws; a `page-…` is a shot of the exported page in Chromium (`make viewer`
builds it). `nano-loss.png` is of a run of 2,000 steps (docs/guide/train.md) and stays as it is.
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
from glgpt.system.files import written_whole  # noqa: E402

LINE = "To be, or not to be: that is the question."
HEAD = 1, 6  # of `LINE`: looks back at the latest comma or colon
WORD = "·father"  # of the page's own text: what else was weighed there are words, too
PAGE_HEAD = 3, 5  # of the same text: at the end of a line, looks back at the name of who speaks
WIDTH = 1180
STEPS = 320  # of training, before its picture is taken
TIMEOUT = 300_000  # ms

WRITTEN = "!document.querySelector('.caret') && /decode/.test(document.querySelector('.rate')?.textContent)"
STRONGEST = """async ([layer, head]) => {  // a look at an earlier token than the one before: [x, y]
  const {shape: [, n], data} = await glgpt.activation(`h.${layer}.attn.pattern`);
  const at = (i, j) => data[(head * n + i) * n + j];
  let best = [24, 0];
  for (let i = 24; i < 40; i++) for (let j = 1; j < i - 1; j++) if (at(i, j) > at(...best)) best = [i, j];
  const cell = document.querySelector(".square canvas").clientWidth / n;
  return [(best[1] + 0.5) * cell, (best[0] + 0.5) * cell];
}"""


class Studio:
    """Pages that the model was exported to, a Chromium to open them in, and the folder for the pictures."""

    def __init__(self, out: Path, stack: ExitStack) -> None:
        self.out, self.stack = out, stack

    @cached_property
    def work(self) -> Path:
        """A folder for what is made on the way."""
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory()))

    @cached_property
    def heads(self) -> Path:
        """The pictures that `glgpt dump` makes of `LINE`."""
        with GPT2.from_pretrained("shakespeare") as model:
            assert model.tokenizer
            dump(model, model.tokenizer.encode(LINE), self.work / "heads")
        return self.work / "heads/attention"

    @cached_property
    def chromium(self) -> Any:
        """Chromium, started."""
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
        """Address of the embedded model's page."""
        export(None, self.work / "plain", "f16")
        return self.stack.enter_context(served(self.work / "plain"))

    @cached_property
    def training(self) -> str:
        """Address of the page with a Train tab."""
        export(None, self.work / "training", "f16", train=("nano", "tiny"))
        return self.stack.enter_context(served(self.work / "training"))

    @contextmanager
    def page(self, link: str, height: int, view: str = "Text", site: str = "") -> Iterator[Any]:
        """The page behind `link`, its text written, showing a view."""
        chromium = self.chromium
        with chromium.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light") as page:
            wait_without_eval(page).set_default_timeout(TIMEOUT)
            page.goto((site or self.plain) + link)
            page.evaluate("glgpt.ready")
            page.wait_for_function(WRITTEN)
            page.get_by_role("navigation", name="Views").get_by_role("button", name=view, exact=True).click()
            page.wait_for_timeout(1500)  # a software driver draws for a while
            yield page

    def keep(self, name: str, png: bytes) -> None:
        """Writes a picture and says so."""
        self.out.mkdir(parents=True, exist_ok=True)
        with written_whole(self.out / f"{name}.png") as file:
            file.write(png)
        print(f"{self.out / name}.png: {len(png) / 1000:.0f} KB", flush=True)

    def shoot(self, name: str, page: Any, whole: bool = True) -> None:
        """Keeps the page as it looks, the whole or what the window shows."""
        page.wait_for_timeout(1000)
        self.keep(name, packed(page.screenshot(full_page=whole)))


def packed(png: bytes) -> bytes:
    """A picture as a smaller file, in 256 colours; the commonest stay as they are, and with them all plain areas."""
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
    """All heads."""
    studio.keep("attention", (studio.heads / "contact-sheet.png").read_bytes())


def head(studio: Studio) -> None:
    """One of them."""
    studio.keep("head", (studio.heads / "layer-{:02}-head-{:02}.png".format(*HEAD)).read_bytes())


def page_text(studio: Studio) -> None:
    """The page as it opens, and what else the model weighed at one token."""
    with studio.page("", 960) as page:
        token = page.locator(f".token[aria-label^='{WORD},']").first
        if not token.count():
            raise GlgptError(f"the text that the page opens with has no token {WORD} any more; name another in WORD")
        token.hover()
        studio.shoot("page-text", page)


def page_attention(studio: Studio) -> None:
    """One head, and a look of it."""
    layer, head = PAGE_HEAD
    with studio.page(f"#tokens=90&layer={layer}&head={head}", 950, "Attention") as page:
        x, y = page.evaluate(STRONGEST, [layer, head])
        page.locator(".square canvas").first.hover(position={"x": x, "y": y})
        studio.shoot("page-attention", page)


def page_blocks(studio: Studio) -> None:
    """What each block would say."""
    with studio.page("#tokens=90", 640, "Blocks") as page:
        page.wait_for_function("document.querySelectorAll('.lens td button:not(:empty)').length >= 60")
        page.locator(".lens tr").nth(7).locator("td button").nth(5).click()
        studio.shoot("page-blocks", page)


def page_textures(studio: Studio) -> None:
    """An intermediate as a matrix, and one of its values."""
    with studio.page("#tokens=90&texture=h.3.attn.q", 830, "Textures") as page:
        page.locator(".plane canvas").first.hover(position={"x": 301, "y": 20})
        studio.shoot("page-textures", page)


def page_passes(studio: Studio) -> None:
    """The passes of a token, timed, and one of them."""
    with studio.page("#tokens=90", 1026, "Passes") as page:
        page.get_by_role("button", name="Time them").click()
        page.wait_for_function("/slope over repeats|timer queries/.test(document.querySelector('.names').textContent)")
        page.locator(".passes ol li").nth(45).click()
        page.wait_for_timeout(1500)
        studio.shoot("page-passes", page, whole=False)


def page_device(studio: Studio) -> None:
    """The device, compared with the desktop."""
    with studio.page("#tokens=90", 760, "Device") as page:
        page.get_by_role("button", name="Compare").click()
        page.wait_for_function("/PASS|FAIL/.test(document.querySelector('.verdict').textContent)")
        studio.shoot("page-device", page)


def page_cut(studio: Studio) -> None:
    """A layer that looks at the token before alone: both texts, and what became of each word."""
    with studio.page("#tokens=60&layer=2&head=mean", 700, "Attention") as page:
        page.get_by_label("Looks at").select_option("previous")
        page.wait_for_function("document.querySelector('.cut-bar .parting')")
        page.get_by_role("button", name="Compare the texts").click()
        page.wait_for_function(f"{WRITTEN} && document.querySelector('.compared .verdict')")
        page.evaluate("scrollTo(0, 0)")
        studio.shoot("page-cut", page)


def page_data(studio: Studio) -> None:
    """A text of one's own choice, cleaned and cut in two."""
    with studio.page("#tokens=2&step=data", 860, "Train", studio.training) as page:
        page.wait_for_timeout(2000)
        studio.shoot("page-data", page)


def page_tokens(studio: Studio) -> None:
    """A text cut by two vocabularies."""
    with studio.page("#tokens=2&step=tokens", 860, "Train", studio.training) as page:
        page.wait_for_function("document.querySelectorAll('.vocabulary')[1]?.dataset.tokens > 0")
        studio.shoot("page-tokens", page, whole=False)


def page_train(studio: Studio) -> None:
    """A model that has learnt for `STEPS` steps; then what it writes, `page-write`, and its score, `page-score`."""
    with studio.page("#tokens=2&step=train", 1000, "Train", studio.training) as page:
        page.get_by_role("button", name="Start").click()
        for step in range(STEPS // 10, STEPS + 1, STEPS // 10):
            page.wait_for_function(f"glgpt.training.session?.step >= {step}")
            print(f"page-train: step {step} of {STEPS}", file=sys.stderr, flush=True)
        studio.shoot("page-train", page)
        page.get_by_role("button", name="Pause").click()
        page.locator(".stages").get_by_role("button", name="Write").click()
        page.get_by_label("Continue after").fill("KING RICHARD:")
        page.get_by_role("button", name="Write now").click()
        page.wait_for_function("/RICHARD:[^]{100}/.test(document.querySelector('.samples pre').textContent)")
        studio.shoot("page-write", page)
        page.locator(".stages").get_by_role("button", name="Score").click()
        page.get_by_role("button", name="Score it now").click()
        page.wait_for_function("document.querySelector('.score .reliability')")
        studio.shoot("page-score", page)


MAKERS: tuple[Callable[[Studio], None], ...] = (
    attention, head, page_text, page_attention, page_blocks, page_textures, page_passes, page_device,
    page_cut, page_data, page_tokens, page_train,
)  # fmt: skip
PICTURES = {maker.__name__.replace("_", "-"): maker for maker in MAKERS}


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the pictures that were asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PICTURES)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", metavar="DIR", help="default: docs/images")
    args = parser.parse_args(argv)
    try:
        if unknown := [name for name in args.names if name not in PICTURES]:
            raise GlgptError(f"no picture is called {unknown[0]!r}; take of {', '.join(PICTURES)}")
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
