"""Writes the link preview of a published page: a picture and meta tags (Open Graph, ogp.me; X cards)."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.inference.model import LanguageModel
from glgpt.models.activations import EMBED, LOGITS
from glgpt.models.views import stages
from glgpt.page.prompts import Prompts
from glgpt.page.recorded import rows_of
from glgpt.plots.strip import HEIGHT, WIDTH, Word, strip_picture
from glgpt.system.network import is_web_address

PICTURE = "preview.png"
MAX_BLOCKS = 24  # maximum number of blocks that the picture shows: more would be too narrow
OTHERS = 5  # number of most likely tokens that the picture shows


def checked_site(site: str, no_folder: bool = False) -> str:
    """Returns the address at which a page will be published, with a slash at its end.

    Raises ArgumentError for an invalid address, and if the export is not a folder (`no_folder`).
    """
    if no_folder:
        raise ArgumentError("--site needs a folder; it cannot be combined with --single-file or --embed")
    if not is_web_address(site) or urlsplit(site).query or urlsplit(site).fragment:
        raise ArgumentError(f"--site {quoted(site)} is not a folder's address, such as https://example.org/page/")
    return site.removesuffix("index.html").rstrip("/") + "/"


def checked_source(source: str) -> str:
    """Returns the address of a page's source code. Raises ArgumentError for an invalid address."""
    if not is_web_address(source):
        raise ArgumentError(f"--source {quoted(source)} is not a web address, such as https://example.org/glgpt")
    return source


def write_preview(model: LanguageModel, folder: Path, site: str, name: str, prompts: Prompts) -> None:
    """Writes the preview picture to a page's folder, and the meta tags to the folder's index.html.

    The picture shows the model as it computes one token. `site` is the page's address: link previews need absolute
    addresses.
    """
    about = f"{name}, a language model of {count_in_words(model.config.parameter_count)} parameters"
    word = _picture(model, folder / PICTURE, about, prompts)
    index = folder / "index.html"
    graph = {
        "url": site,
        "site_name": "glgpt",
        "image": site + PICTURE,
        "image:type": "image/png",
        "image:width": WIDTH,
        "image:height": HEIGHT,
        "image:alt": f"Every stage of {about} as it computes one token: {word.label}, {100 * word.p:.0f}%",
    }
    card = {"card": "summary_large_image", "image": site + PICTURE}
    lines = [
        f'<link rel="canonical" href="{html.escape(site)}" />',
        *(f'<meta property="og:{name}" content="{html.escape(str(text))}" />' for name, text in graph.items()),
        *(f'<meta name="twitter:{name}" content="{html.escape(text)}" />' for name, text in card.items()),
    ]
    page, count = re.subn(
        "</title>", lambda m: "\n    ".join([m[0], *lines]), index.read_text(encoding="utf-8"), count=1
    )
    if not count:
        raise GlgptError("the built page has no title; rebuild it with: make viewer")
    index.write_text(page, encoding="utf-8")


def count_in_words(count: int) -> str:
    """Formats a number of parameters, rounded to three digits, as the page does: "135 million"."""
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if count >= 0.9995 * size:
            return f"{float(f'{count / size:.3g}'):,g} {name}"
    return f"{int(float(f'{count:.3g}')):,}"


def _picture(model: LanguageModel, path: Path, about: str, prompts: Prompts) -> Word:
    config, tokenizer = model.config, prompts.tokenizer
    shown = prompts.page.picture or (prompts.prompts[0].text if prompts.prompts else "")
    ids = prompts.ids(shown) if shown else list(range(min(8, config.vocab_size)))
    ids = ids[-config.n_positions :]
    text = f"“{shown.strip().split(chr(10))[-1]}” …" if shown else ""
    blocks = sorted({round(i) for i in np.linspace(0, config.n_layer - 1, min(config.n_layer, MAX_BLOCKS))})
    cells = [stages(config, i) for i in blocks]
    logits, found = model.run_with_cache(ids, [EMBED, *(n for block in cells for stage in block for n in stage.names)])
    last = len(ids) - 1
    stacks = [[rows_of(found, stage.names, last) for stage in block] for block in cells]
    row = logits[-1].astype(np.float64)
    p = np.exp(row - row.max())
    p /= p.sum()
    best = np.argsort(-p, kind="stable")[:OTHERS].tolist()
    named = [(tokenizer.label(i) if tokenizer else str(i), float(p[i])) for i in best]
    strip_picture(
        path,
        "a language model at work, in your browser",
        f"{about}. It runs as fragment shaders; every number is a texel.",
        text,
        [EMBED, *(f"block {i}" if len(blocks) < 10 else str(i) for i in blocks), LOGITS],
        [stage.title for stage in cells[0]],
        [[rows_of(found, [EMBED], last)], *stacks, [logits[-1:]]],
        word := Word(*named[0], named),
    )
    return word
