"""A page that asks a server to run some blocks of its model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import ArgumentError
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.models.views import described
from glgpt.page.reading import allow_connections
from glgpt.wire.client import checked_url
from glgpt.wire.hidden import FORMATS


@dataclass(frozen=True)
class SplitPage:
    """The page holds the embedding and `blocks` blocks; the server at `server` runs the rest, and the head.

    `blocks` None: the page holds all of the model, and whoever looks at it says how many blocks run in the page.
    `head`: the page keeps the head, too, and draws the tokens. `wire` is how hidden states travel: a name of
    `wire.hidden.FORMATS`. Raises ArgumentError for an address that is none, or a head that is in the page anyway.
    """

    blocks: int | None
    server: str
    wire: str = "f32"
    head: bool = False

    def __post_init__(self) -> None:
        if self.head and self.blocks is None:
            raise ArgumentError("--head page goes with --split K; without it the page holds all of the model")
        if not re.fullmatch(r"wss?://[A-Za-z0-9.\-\[\]:]+/?", checked_url(self.server)) or self.wire not in FORMATS:
            raise ArgumentError(f"{self.server!r} is no plain address of a server, such as ws://127.0.0.1:8043")

    def part(self, config: ModelConfig) -> Part:
        """What the page holds, but for the head. Raises ArgumentError where that leaves no block for the server."""
        if self.blocks is None:
            return Part.whole(config)
        if not 1 <= self.blocks < config.n_layer:
            have = f"of {config.n_layer} blocks, the page has at least one and not all"
            raise ArgumentError(f"--split {self.blocks} is out of range: {have}")
        return Part(0, self.blocks, True, False)

    def manifest(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What the page must know of the server's side."""
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

    def activations(self, config: ModelConfig) -> list[dict[str, Any]]:
        """The activations of the page's own parts, in their order, as its manifest describes them."""
        return described(config, self.part(config)) + (described(config, Part.head_of(config)) if self.head else [])

    def allow(self, index: Path) -> None:
        """Lets the page connect to the server, and to nothing else: its Content-Security-Policy names it."""
        allow_connections(index, [self.server.rstrip("/")])
