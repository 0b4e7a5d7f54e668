"""Describes a part of a model that a program runs alone: some blocks, and possibly the embedding and the head.

The parts of a model can run on different machines, one after the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from glgpt.errors import ArgumentError, written
from glgpt.models.activations import EMBED, FINAL_NORM, LOGITS, Activation
from glgpt.models.parameters import Parameter
from glgpt.models.spec import ModelConfig

# Name of the output of a part without the head. The input of a part without the embedding is `hidden.<number of rows>`.
HIDDEN = "hidden"
_PART = re.compile(r"(embed)?,?(?:(\d{1,4})(?:-(\d{1,4}))?)?,?(head)?")


@dataclass(frozen=True)
class Part:
    """Blocks `first` .. `end` - 1, with the embedding if `embed`, and with the final norm and the logits if `head`.

    Without the embedding, the input is a hidden state: the residual stream before block `first`. Without the head, the
    output is a hidden state: the stream after block `end` - 1. Raises ArgumentError for an empty part, or if `first` is
    negative or greater than `end`.
    """

    first: int
    end: int
    embed: bool
    head: bool

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.end or (self.first == self.end and not self.embed and not self.head):
            raise ArgumentError(f"blocks {self.first} to {self.end - 1} are not a part of a model")

    @classmethod
    def whole(cls, config: ModelConfig) -> Part:
        """Returns the whole model as a part."""
        return cls(0, config.n_layer, True, True)

    @classmethod
    def head_of(cls, config: ModelConfig) -> Part:
        """Returns the final norm and the logits alone."""
        return cls(config.n_layer, config.n_layer, False, True)

    @classmethod
    def of_blocks(cls, first: int, end: int, config: ModelConfig) -> Part:
        """Returns the part that consists of blocks `first` .. `end` - 1.

        The part also has the embedding if it has block 0, and the head if it has the last block. Raises ArgumentError
        for blocks that the model does not have.
        """
        if not 0 <= first < end <= config.n_layer:
            have = f"the model has blocks 0 to {config.n_layer - 1}"
            raise ArgumentError(f"blocks {first}-{end - 1} are out of range: {have}")
        return cls(first, end, first == 0, end == config.n_layer)

    @classmethod
    def parse(cls, text: str, config: ModelConfig) -> Part:
        """Parses `4-11`, `4`, `embed`, `head`, or a full description such as `embed,0-3` or `8-11,head`.

        If only blocks are given, the part has the embedding if it has the first block, and the head if it has the last
        block; a leading `+` (`+0-3`) excludes both embedding and head. Raises ArgumentError for any other text.
        """
        bare = text.removeprefix("+")
        found = _PART.fullmatch(bare)
        if not found or not bare or bare[-1] == "," or bare[0] == ",":
            raise ArgumentError(
                f"{written(text)} is not a part of a model; write blocks such as 4-11, or embed, or head"
            )
        embed, head = found[1] is not None, found[4] is not None
        if found[2] is None:
            if embed and head:
                raise ArgumentError(f"{written(text)} leaves a gap; give the embedding and the head as two parts")
            at = config.n_layer if head else 0
            return cls(at, at, embed, head)
        first = int(found[2])
        blocks = cls.of_blocks(first, int(found[3] or first) + 1, config)
        if (embed and first) or (head and blocks.end != config.n_layer):
            raise ArgumentError(
                f"{written(text)} leaves a gap; the embedding is before block 0, the head after the last"
            )
        if bare != text or embed or head:
            return cls(blocks.first, blocks.end, embed, head)
        return blocks

    def __str__(self) -> str:
        """Returns the full description of the part, which `parse` reads."""
        blocks = [f"{self.first}-{self.end - 1}"] if self.end - self.first > 1 else [str(self.first)]
        names = ["embed"] * self.embed + blocks * (self.end > self.first) + ["head"] * self.head
        return ("" if self.embed or self.head else "+") + ",".join(names)

    @property
    def blocks(self) -> range:
        """Returns the numbers of the blocks."""
        return range(self.first, self.end)

    def contains(self, other: Part) -> bool:
        """True if the other part is equal to this part or a subset of it."""
        inside = self.first <= other.first and other.end <= self.end
        return inside and self.embed >= other.embed and self.head >= other.head

    def precedes(self, other: Part) -> bool:
        """True if the other part begins where this part ends."""
        return not self.head and not other.embed and self.end == other.first

    def before(self) -> Part | None:
        """Returns everything before this part as a part; None if this part has the embedding."""
        return None if self.embed else Part(0, self.first, True, False)

    def after(self, config: ModelConfig) -> Part | None:
        """Returns everything after this part as a part; None if this part has the head."""
        return None if self.head else Part(self.end, config.n_layer, False, True)

    def parameters(self, config: ModelConfig) -> dict[str, Parameter]:
        """Returns the parameters of this part by name, in order of use. A tied embedding belongs to the head too."""
        found, past_blocks = {}, False
        for name, parameter in config.parameters.items():
            past_blocks = past_blocks or parameter.layer is not None
            if parameter.layer is not None:
                wanted = parameter.layer in self.blocks
            else:
                wanted = self.head if past_blocks else self.embed
            if wanted or (self.head and name == config.output):
                found[name] = parameter
        return found

    def activations(self, config: ModelConfig) -> dict[str, Activation]:
        """Returns the activations of this part by name, in order of computation."""
        ends = {EMBED: self.embed, FINAL_NORM: self.head, LOGITS: self.head}
        return {name: a for name, a in config.activations.items() if ends.get(name, a.layer in self.blocks)}


def checked_chain(parts: list[Part], config: ModelConfig) -> None:
    """Raises ArgumentError unless the parts, in the given order, are the whole model without gaps."""
    if not parts or not parts[0].embed or not parts[-1].head or parts[-1].end != config.n_layer:
        missing = "the embedding" if not parts or not parts[0].embed else "the head"
        raise ArgumentError(f"the plan lacks {missing}; its parts must be the whole model in order")
    for left, right in pairwise(parts):
        if not left.precedes(right):
            raise ArgumentError(f"the plan has {left} and then {right}; its parts must be the whole model in order")
