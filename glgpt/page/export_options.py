"""Defines the options of an export, which are checked before any work begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glgpt.errors import GlgptError, is_utf8
from glgpt.page.output.preview import checked_site, checked_source
from glgpt.page.reading import Reading
from glgpt.page.split import SplitPage
from glgpt.page.training import Size, check_sizes
from glgpt.program.formats import DTYPES

SHARD_SIZE = 24 << 20  # bytes
MIN_SHARD_SIZE, MAX_SHARD_SIZE = 1 << 16, 100_000_000  # bytes; plain static hosts refuse files above the maximum


@dataclass(frozen=True)
class ExportOptions:
    """Defines what an exported page contains.

    Raises GlgptError for values out of range and options that exclude each other.

    With `single_file`, the page is one HTML file that opens from disk. With `embed`, the export is not a page but the
    module `glgpt.js` for other pages, with an example of its use.

    `dtype` is the format of the weights (default: "stored" for GGUF files, else "f32").

    `name` is the model's name in the page (default: `Checkpoint.name`). The page opens with the first of `prompts` and
    offers all of them (default: those of the model's `page.json`, else neutral ones); for an instruct model, prompts
    are put into its chat format. `trained_on` describes the training text in a few words (default: that of
    `page.json`).

    `train` lists the models that the page can train: names of presets, which are trained in `precision`, or objects of
    `Size`, which have their own precision. `reading` has the sources of texts for training (default: the books of
    `data.books`).

    With `split`, a server runs some of the model's blocks. The page holds the remaining blocks, or all blocks.

    `site` is the address at which the page will be published, for the preview picture of links. `source` is the
    address of the page's source code, to which the page links.

    `context` is the page's context length in tokens (default: the model's, at most 2,048). The caches hold keys,
    values and queries of each position, so a shorter context takes less memory.

    `adapter` is the folder of a LoRA adapter, which is added to the weights.
    """

    dtype: str | None = None
    shard_size: int = SHARD_SIZE  # maximum bytes of a file of weights
    single_file: bool = False
    embed: bool = False
    name: str | None = None
    prompts: Sequence[str] = ()
    train: Sequence[str | Size] = ()
    precision: str = "f32"
    trained_on: str | None = None
    reading: Reading | None = None
    split: SplitPage | None = None
    site: str | None = None
    source: str | None = None
    context: int | None = None
    adapter: str | Path | None = None

    def __post_init__(self) -> None:
        """Checks the options and normalizes addresses."""
        texts = {"--name": (self.name,), "--trained-on": (self.trained_on,), "--prompt": self.prompts}
        for option, given in texts.items():
            if not all(is_utf8(text or "") for text in given):
                raise GlgptError(f"{option} is not UTF-8 text; a page is written in UTF-8")
        if self.single_file and self.embed:
            raise GlgptError("--single-file and --embed cannot be combined: --embed writes a folder")
        if self.split and self.adapter is not None:
            raise GlgptError("--adapter cannot be combined with --server, which runs the model without it")
        if self.split and (self.single_file or self.embed or self.train):
            what = "--split" if self.split.blocks else "--server"
            raise GlgptError(f"{what} cannot be combined with --single-file, --embed or --train")
        if self.site is not None:
            object.__setattr__(self, "site", checked_site(self.site, self.single_file or self.embed))
        if self.source is not None:
            object.__setattr__(self, "source", checked_source(self.source))
        if self.dtype is not None and self.dtype not in DTYPES:
            raise GlgptError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if not MIN_SHARD_SIZE <= self.shard_size <= MAX_SHARD_SIZE:
            raise GlgptError(f"shard size is {self.shard_size}; it must be between 64 KiB and 100 MB")
        check_sizes(self.train)
