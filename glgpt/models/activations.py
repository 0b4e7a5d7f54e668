"""Names the activations of a model, with the same names for every family, and describes their matrices in textures.

The natural shape of an activation is the shape without padding that users see, such as `[heads, T, d_head]` for keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from glgpt.program.formats import Floats

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig

EMBED, FINAL_NORM, LOGITS = "embed", "ln_f", "logits"
FIRST_NORM, SECOND_NORM = "ln_1", "ln_2"  # in each block
Q, K, V, QKV, Z = "attn.q", "attn.k", "attn.v", "attn.qkv", "attn.z"
SCORES, PATTERN, ATTN_OUT = "attn.scores", "attn.pattern", "attn.out"
PRE, GATE, UP, ACT, MLP_OUT = "mlp.pre", "mlp.gate", "mlp.up", "mlp.act", "mlp.out"
# Outputs of attention and MLP before the norm that follows each of them (`ModelConfig.norm_after`).
PROJECTED, HIDDEN_OUT = "attn.projected", "mlp.projected"
RESID_MID, RESID_POST = "resid_mid", "resid_post"


def in_block(layer: int | str, name: str) -> str:
    """Returns the full name of an activation of one block: `h.0.attn.pattern` for layer 0 and `attn.pattern`."""
    return f"h.{layer}.{name}"


def part_of(name: str) -> str:
    """Reverses `in_block`: returns `attn.pattern` for `h.0.attn.pattern`, and other names unchanged."""
    return re.sub(r"^h\.\d+\.", "", name)


# Natural shapes by `Activation.kind`; other kinds have "T, width".
DIMS = {"scores": "head, T, T", "pattern": "head, T, T", "cache": "head, T, d_head"}
PER_HEAD = {Q: "cache", K: "cache", V: "cache", SCORES: "scores", PATTERN: "pattern"}


def dims_of(name: str) -> str:
    """Returns a description of an activation's natural shape, from its name alone."""
    return DIMS.get(PER_HEAD.get(part_of(name), ""), "T, width")


Kind = Literal["rows", "heads", "cache", "scores", "pattern"]


@dataclass(frozen=True)
class Activation:
    """One named activation and the shape of the matrix that holds it in a texture.

    `kind` describes the rows of the matrix. `rows`: one for each token. `heads`: one for each token, with all heads,
    each padded to whole texels. `cache`: the same, but one for each position of the context. `scores` and `pattern`:
    row token * heads + head is for this token and this head, and has a column for each key. `width` is the number of
    values in a row, or in a head if `kind` is `heads` or `cache`.
    """

    name: str
    kind: Kind
    width: int
    heads: int = 1
    window: int = 0  # a token attends to at most this many latest keys; 0: no limit

    @property
    def layer(self) -> int | None:
        """Returns the number of the block that computes the activation; None for an activation outside the blocks."""
        block = re.match(r"h\.(\d+)\.", self.name)
        return int(block[1]) if block else None

    @property
    def added(self) -> bool:
        """True if a block adds the activation to the residual stream; the names of such activations end in `.out`."""
        return self.layer is not None and self.name.endswith(".out")

    @property
    def row_width(self) -> int:
        """Returns the number of values in a row without padding; a row of `heads` or `cache` holds all heads."""
        return self.width * (self.heads if self.kind in ("heads", "cache") else 1)

    @property
    def square(self) -> bool:
        """True if the columns of the matrix are tokens (the keys), as in scores and patterns."""
        return self.kind in ("scores", "pattern")

    @property
    def per_head(self) -> bool:
        """True if the first axis of the natural shape is the heads."""
        return self.square or self.kind == "cache"

    @property
    def dims(self) -> str:
        """Returns a description of the natural shape: `head, T, T`, `head, T, d_head` or `T, width`."""
        return DIMS.get(self.kind, "T, width")

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Returns the natural shape for a text of this many tokens."""
        if self.square:
            return self.heads, tokens, tokens
        return (self.heads, tokens, self.width) if self.kind == "cache" else (tokens, self.row_width)

    def attended(self, start: int, valid: int, total: int) -> NDArray[np.bool_]:
        """Returns booleans `[valid, total]`: whether token `start` + row attends to the key of the column.

        The activation must be scores or a pattern.
        """
        keys, at = np.arange(total), start + np.arange(valid)[:, None]
        return (keys <= at) & (keys > at - (self.window or total))

    def natural(self, matrix: Floats, start: int, valid: int, total: int) -> Floats:
        """Returns the values of `valid` tokens from `start` on, in the natural shape without padding.

        `matrix` is the matrix in the texture. Its first row is for token `start`; in a cache, it is for position 0.
        `total` is the number of tokens of the text. Scores and patterns become `[heads, valid, total]`, with -inf for
        scores of keys to which a token does not attend; caches become `[heads, valid, d_head]`, and others
        `[valid, width]`.
        """
        cube: Floats
        if self.square:
            cube = matrix.reshape(-1, self.heads, matrix.shape[1])[:valid, :, :total].transpose(1, 0, 2).copy()
            if self.kind == "scores":
                cube[:, ~self.attended(start, valid, total)] = -np.inf
            return cube
        if self.kind == "cache":
            rows = matrix[start : start + valid]
            cube = rows.reshape(len(rows), self.heads, -1)[:, :, : self.width].transpose(1, 0, 2)
            return cube
        rows = matrix[:valid]
        if self.kind == "heads":
            rows = rows.reshape(len(rows), self.heads, -1)[:, :, : self.width].reshape(len(rows), -1)
        return rows


def activation_table(config: ModelConfig) -> dict[str, Activation]:
    """Returns every activation by its name, in order of computation."""
    c, row = config, ("rows", config.n_embd)
    heads, kv = (c.d_head, c.n_head), (c.d_head, c.n_kv_head)
    square, inner = (c.n_positions, c.n_head), ("rows", c.d_inner)
    hidden = (PRE, GATE, UP, ACT) if c.gated else (PRE, ACT)
    block: dict[str, tuple[Any, ...] | None] = {
        FIRST_NORM: row if c.norm_before else None,
        Q: ("cache", *heads),
        K: ("cache", *kv),
        V: ("cache", *kv),
        SCORES: ("scores", *square),
        PATTERN: ("pattern", *square),
        Z: ("heads", *heads),
        PROJECTED: row if c.norm_after else None,
        ATTN_OUT: row,
        RESID_MID: None if c.parallel else row,
        SECOND_NORM: row if c.norm_before else None,
        **dict.fromkeys(hidden, inner),
        HIDDEN_OUT: row if c.norm_after else None,
        MLP_OUT: row,
        RESID_POST: row,
    }
    table: dict[str, tuple[Any, ...]] = {EMBED: row}
    for i in range(c.n_layer):
        table |= {in_block(i, name): about for name, about in block.items() if about}
        table[in_block(i, SCORES)] = ("scores", *square, c.window_of(i))
    table |= {FINAL_NORM: row, LOGITS: ("rows", c.vocab_size)}
    return {name: Activation(name, *about) for name, about in table.items()}
