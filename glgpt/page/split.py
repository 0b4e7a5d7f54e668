"""A page that holds the first blocks of a model and asks a server to run the others."""

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
from glgpt.page.reading import allow_connections
from glgpt.wire.client import checked_url
from glgpt.wire.hidden import FORMATS


@dataclass(frozen=True)
class SplitPage:
    """The page holds the embedding and `blocks` blocks; the server at `server` holds the rest, and the head.

    `wire` is how hidden states travel: a name of `wire.hidden.FORMATS`. Raises GlgptError for an address that is none.
    """

    blocks: int
    server: str
    wire: str = "f32"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"wss?://[A-Za-z0-9.\-\[\]:]+/?", checked_url(self.server)) or self.wire not in FORMATS:
            raise ArgumentError(f"{self.server!r} is no plain address of a server, such as ws://127.0.0.1:8043")

    def part(self, config: ModelConfig) -> Part:
        """What the page holds. Raises ArgumentError where that leaves no block for the server."""
        if not 1 <= self.blocks < config.n_layer:
            have = f"of {config.n_layer} blocks, the page has at least one and not all"
            raise ArgumentError(f"--split {self.blocks} is out of range: {have}")
        return Part(0, self.blocks, True, False)

    def manifest(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What the page must know of the server's side."""
        config = checkpoint.config
        rest = Part(self.blocks, config.n_layer, False, True)
        return {
            "server": self.server,
            "wire": self.wire,
            "digest": model_digest(checkpoint),
            "rest": str(rest),
            "stream": config.stream(),
            "activations": {
                name: {"kind": a.kind, "heads": a.heads, "width": a.width}
                for name, a in rest.activations(config).items()
            },
        }

    def allow(self, index: Path) -> None:
        """Lets the page connect to the server, and to nothing else: its Content-Security-Policy names it."""
        allow_connections(index, [self.server.rstrip("/")])
