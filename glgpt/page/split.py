"""Defines the options of a split page: a server runs some of the model's blocks, and the page runs the other ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import ArgumentError, written
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.models.views import ListedActivation, described
from glgpt.page.documents.manifest import SplitServer
from glgpt.page.reading import allow_connections
from glgpt.wire.client import checked_url
from glgpt.wire.hidden import FORMATS, Format


@dataclass(frozen=True)
class SplitPage:
    """A page with the embedding and the first `blocks` blocks; the server at `server` runs the rest of the model.

    If `blocks` is None, the page holds the whole model, and the visitor chooses how many blocks run in the page. With
    `head`, the page also has the head and samples the tokens. `wire` is the number format of hidden states, a name in
    `wire.hidden.FORMATS`. Raises ArgumentError for an invalid address or format, and for `head` without `blocks`.
    """

    blocks: int | None
    server: str
    wire: Format = "f32"
    head: bool = False

    def __post_init__(self) -> None:
        if self.head and self.blocks is None:
            raise ArgumentError("--head page needs --split K; without --split the page holds the whole model")
        if self.wire not in FORMATS:
            raise ArgumentError(f"the wire format {written(self.wire)} is not one of {', '.join(FORMATS)}")
        if not re.fullmatch(r"wss?://[A-Za-z0-9.\-\[\]:]+/?", checked_url(self.server)):
            raise ArgumentError(f"{self.server!r} is not a plain server address, such as ws://127.0.0.1:8043")

    def part(self, config: ModelConfig) -> Part:
        """Returns the part of the model that the page runs: the whole model if `blocks` is None.

        Otherwise, the part is the embedding and the first blocks; it does not contain the head, even if the page has
        the head. Raises ArgumentError if the page or the server would have no block.
        """
        if self.blocks is None:
            return Part.whole(config)
        if not 1 <= self.blocks < config.n_layer:
            raise ArgumentError(
                f"--split {self.blocks} is out of range: the page must have 1 to {config.n_layer - 1} of the "
                f"{config.n_layer} blocks"
            )
        return Part(0, self.blocks, True, False)

    def manifest(self, checkpoint: Checkpoint) -> SplitServer:
        """Returns the manifest's fields about the server."""
        config = checkpoint.config
        rest = None if self.blocks is None else Part(self.blocks, config.n_layer, False, not self.head)
        return {
            "server": self.server,
            "wire": self.wire,
            "digest": model_digest(checkpoint),
            "rest": str(rest) if rest else None,
            "head": "page" if self.head else "server",
            "stream": config.stream(),
            "activations": described(config, rest) if rest else [],
        }

    def activations(self, config: ModelConfig) -> list[ListedActivation]:
        """Returns the descriptions of the activations that the page computes, in order, for its manifest."""
        return described(config, self.part(config)) + (described(config, Part.head_of(config)) if self.head else [])

    def allow(self, index: Path) -> None:
        """Changes the page's Content-Security-Policy so that the page may connect to its origin and to the server."""
        allow_connections(index, [self.server.rstrip("/")])
