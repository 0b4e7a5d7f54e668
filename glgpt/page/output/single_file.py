"""Converts an exported page to one HTML file that opens from disk."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

from glgpt.errors import GlgptError
from glgpt.inference.programs import generation_program, weight_layouts
from glgpt.models.spec import ModelConfig
from glgpt.page.documents.manifest import Manifest
from glgpt.page.programs import page_recordings
from glgpt.program.spec import Limits
from glgpt.program.weight_formats import WeightFormats

MAX_WEIGHT_BYTES = 64 << 20  # maximum bytes of weights; with more bytes, a browser is slow to open the page


def check_size(config: ModelConfig, formats: WeightFormats) -> None:
    """Raises GlgptError if the weights are too large for a single file; the message lists formats that would fit."""

    def size(formats: WeightFormats) -> int:
        program = generation_program(config, Limits(), page_recordings(formats)[0].kernel, formats)
        return sum(layout.nbytes for layout in weight_layouts(program, config).values())

    if (total := size(formats)) > MAX_WEIGHT_BYTES:
        small = [dtype for dtype in ("f16", "q8", "q4") if size(dtype) <= MAX_WEIGHT_BYTES]
        raise GlgptError(
            f"the weights are {total / 2**20:.0f} MiB and a single file holds up to {MAX_WEIGHT_BYTES >> 20} MiB; "
            "export a folder" + (f", or use {' or '.join(small)}" if small else "")
        )


def single_page(folder: Path, manifest: Manifest) -> str:
    """Returns the folder as one HTML text: scripts and styles inline, data as gzipped base64 in script elements.

    The Content-Security-Policy of the text allows only those scripts and styles, by their SHA-256. It allows
    connections only to the servers that the folder's policy lists, such as those of books.
    """
    page = (folder / "index.html").read_text(encoding="utf-8")
    inline: dict[str, list[str]] = {"script": [], "style": []}

    def style(match: re.Match[str]) -> str:
        inline["style"].append((folder / match[1]).read_text(encoding="utf-8"))
        return f"<style>{inline['style'][-1]}</style>"

    def script(match: re.Match[str]) -> str:
        inline["script"].append((folder / match[1]).read_text(encoding="utf-8").replace("</script", "<\\/script"))
        return f'<script type="module">{inline["script"][-1]}</script>'

    page = re.sub(r'<link rel="stylesheet"[^>]*href="\./([^"]+)"[^>]*>', style, page)
    page = re.sub(r'<script type="module"[^>]*src="\./([^"]+)"[^>]*></script>', script, page)
    page = re.sub(r'<link rel="(?:modulepreload|manifest)"[^>]*>', "", page)
    if 'src="./' in page:
        raise GlgptError("the built page loads a file that a single file cannot hold")
    page, policies = re.subn(
        r'(http-equiv="Content-Security-Policy"\s+content=")([^"]*)"', lambda m: f'{m[1]}{_policy(m[2], inline)}"', page
    )
    if policies != 1:
        raise GlgptError("the built page has no Content-Security-Policy; rebuild it with: make viewer")
    levels = {"manifest.json": 6} | dict.fromkeys(manifest["files"], 6)
    # For weights, level 6 would take three times as long as level 3 and save 2% of the bytes.
    levels |= {shard["file"]: 3 for shard in manifest["shards"]}
    blocks = []
    for name, level in levels.items():
        data = base64.b64encode(gzip.compress((folder / name).read_bytes(), level, mtime=0)).decode()
        blocks.append(f'<script type="application/octet-stream" data-file="{name}">{data}</script>')
    return page.replace("</body>", "\n".join(blocks) + "\n</body>")


def _policy(folders: str, inline: dict[str, list[str]]) -> str:
    """Converts the policy of a folder's page: replaces 'self' by the hashes of the `inline` scripts and styles.

    A directive that would have no source gets the source 'none'.
    """
    directives = []
    for directive in folders.split(";"):
        name, *sources = directive.split()
        hashes = [hashlib.sha256(text.encode()).digest() for text in inline.get(name.removesuffix("-src"), [])]
        allowed = [source for source in sources if source != "'self'"]
        allowed += [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes]
        directives.append(" ".join([name, *(allowed or ["'none'"])]))
    return "; ".join(directives)
