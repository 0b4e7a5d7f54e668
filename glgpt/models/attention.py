"""Records attention, the first part of a block: queries, keys, values, scores, pattern and output."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from glgpt import ops
from glgpt.models.activations import (
    ATTN_OUT,
    FIRST_NORM,
    PATTERN,
    QKV,
    RESID_MID,
    SCORES,
    SECOND_NORM,
    K,
    Q,
    V,
    Z,
    in_block,
)
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from glgpt.models.network import DecodedRow, Network
    from glgpt.models.spec import ModelConfig

PARTS = {"q": Q, "k": K, "v": V}


def inputs(config: ModelConfig) -> tuple[str, ...]:
    """Returns the roles (keys of `ModelConfig.tensors`) of the linear layers that make queries, keys and values."""
    return ("qkv",) if "qkv" in config.tensors else ("q", "k", "v")


def prefill(net: Network, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
    """Records the attention of block i for t tokens of each sequence; returns the residual stream after attention.

    x is the residual stream, and `normed` is the layout of the norm's output. If attention and MLP are parallel,
    returns only what attention adds to the stream.
    """
    c, n = net.config, net.batch.size
    a = net.keep(net.norm(x, in_block(i, FIRST_NORM), normed)) if c.norm_before else x  # (t, C)
    q, k, v = _heads(net, a, i, t)
    p = net.drop(_pattern(net, q, k, i, t, normed.tiles[0]), 3 * i + 1)  # (t n_head, keys)
    z = net.keep(
        ops.attend(net.rec, p, v, ops.AttentionRows(t, c.n_head, batch=n), in_block(i, Z), net.dtype, c.group)
    )  # (t, C)
    out, total = in_block(i, ATTN_OUT), in_block(i, RESID_MID)
    if c.parallel:  # `mlp.prefill` adds this to the stream
        return net.drop(net.keep(net.matmul(z, c.tensor("o", i), out)), 3 * i + 2)
    return net.add_linear(x, z, c.tensor("o", i), out, total, 3 * i + 2)


def _heads(net: Network, a: Tensor, i: int, t: int) -> list[Tensor]:
    """Records and returns the queries, keys and values of block i for all rows of `a`, the input of attention."""
    c, rec, outs = net.config, net.rec, [net.heads_of(i, part, t) for part in PARTS]
    if "qkv" in c.tensors:
        qkv = net.matmul(a, c.tensor("qkv", i), in_block(i, QKV))  # (t, 3 C)
        if _plain(c):
            q, k, v = outs
            ops.split_qkv(rec, qkv, q, k, v, in_block(i, QKV))
            return [net.keep(out) for out in outs]
    for part, out, first in zip(PARTS, outs, _firsts(c, outs), strict=True):
        name = in_block(i, PARTS[part])
        y = qkv if "qkv" in c.tensors else net.matmul(a, c.tensor(part, i), f"{name}.product")  # (t, heads d_head)
        heads = _normed(net, ops.HeadColumns(y, first), i, part, name)
        ops.rotary(rec, heads, out, _rotation(c, i, part), name, net.batch.size)
        net.keep(out)
    return outs


def _plain(config: ModelConfig) -> bool:
    """True if `split_qkv` can copy q, k and v from the product: no norm, no rotation, and no heads that share keys."""
    return config.positions == "absolute" and config.group == 1 and not config.qk_norm


def _firsts(config: ModelConfig, outs: Sequence[Tensor]) -> list[int]:
    """Returns the texel columns at which q, k and v begin in their common product; zeros for separate products."""
    if "qkv" not in config.tensors:
        return [0, 0, 0]
    widths = [out.cols // 4 for out in outs]
    return [0, widths[0], widths[0] + widths[1]]


def _rotation(config: ModelConfig, i: int, part: str) -> ops.Rotation:
    return ops.Rotation(config.d_head) if part == "v" else ops.Rotation(config.d_head, *config.rotation(i))


def _normed(net: Network, heads: ops.HeadColumns, i: int, part: str, name: str) -> ops.HeadColumns:
    """Returns the heads of queries or keys with their norm (QK norm); without such a norm, returns them unchanged."""
    c = net.config
    if not c.qk_norm or part == "v":
        return heads
    count = c.n_head if part == "q" else c.n_kv_head
    together = c.qk_norm == "width"
    scales = ops.head_scales(net.rec, heads, count, c.d_head, c.layer_norm_epsilon, f"{name}.scales", together)
    gain = net.parameter(f"{c.tensor(f'{part}_norm', i)}.weight")
    return replace(heads, norm=ops.HeadNorm(scales, gain, c.gain_offset))


def limits_of(config: ModelConfig, i: int) -> ops.ScoreLimits:
    """Returns the window and the soft cap of the scores of block i."""
    return ops.ScoreLimits(config.window_of(i), config.attn_softcap or 0.0)


def _pattern(net: Network, q: Tensor, k: Tensor, i: int, t: int, tile_rows: int) -> Tensor:
    """Records and returns the pattern of block i, with a row for each head of t tokens of each sequence."""
    c, n, scores, pattern = net.config, net.batch.size, in_block(i, SCORES), in_block(i, PATTERN)
    rows = ops.AttentionRows(t, c.n_head, c.scale(i), n, limits_of(c, i), _drawn_keys(net, scores, t))
    s = net.keep(ops.scores(net.rec, q, k, rows, tile_rows, scores, to_position=_ends_at_position(net, scores)))
    ends, keys = _ends_at_position(net, pattern), _drawn_keys(net, pattern, t)
    return net.keep(ops.softmax(net.rec, s, n * c.n_head, pattern, net.heads, to_position=ends, keys=keys))


def _ends_at_position(net: Network, name: str) -> bool:
    """True if nothing reads the values of scores or of a pattern for keys after the token of their row."""
    return net.cached and net.edits is None and name not in net.names


def _drawn_keys(net: Network, name: str, t: int) -> int:
    """Returns `keys` of `program.recorder.Window` for scores or a pattern of t positions; 0: draw all keys.

    On software OpenGL, values that are never read are not drawn, since shading them takes time. A GPU draws all values.
    """
    return t if net.kernel.suits_software and _ends_at_position(net, name) else 0


def decode(net: Network, row: DecodedRow, i: int) -> DecodedRow:
    """Records the attention of block i for one row at position pos, or for one row of each text.

    Returns the row of the residual stream after attention. If the MLP reads the norm of this row, the row is prepared
    for this norm (`Network.added`).
    """
    c, rec = net.config, net.rec
    q, k, v = caches = [net.cache(i, part) for part in PARTS]
    found = net.products(row, [c.tensor(role, i) for role in inputs(c)])
    if "qkv" in c.tensors and _plain(c):
        (sums, normed), *_ = found
        ops.split_qkv(rec, sums, q, k, v, in_block(i, QKV), normed, net.rows)
    else:
        heads = {}
        for n, (part, first) in enumerate(zip(PARTS, _firsts(c, caches), strict=True)):
            sums, normed = found[n % len(found)]
            columns = ops.HeadColumns(sums, first, normed=normed)
            heads[part] = _normed(net, columns, i, part, in_block(i, PARTS[part]))
        _place_heads(net, heads, caches, i)
    z = _attended(net, q, k, v, i)
    out, total, linear = in_block(i, ATTN_OUT), in_block(i, RESID_MID), c.tensor("o", i)
    following = None if c.parallel else net.norm_before(SECOND_NORM, i)
    return net.added(row, following, total, z, linear, out)


def _place_heads(net: Network, heads: Mapping[str, ops.HeadColumns], caches: Sequence[Tensor], i: int) -> None:
    """Records passes that rotate queries and keys and write q, k and v to the caches.

    `heads` has the heads of "q", "k" and "v", for one row or for one row of each text.
    """
    rec, rotations, batch = net.rec, {part: _rotation(net.config, i, part) for part in PARTS}, net.rows or 1
    (q, k, v), together = caches, ops.can_copy(heads["k"], heads["v"])
    one_pass = net.places_heads_together and not net.rows
    copied = (heads["v"], v) if together and not (one_pass and net.kernel.blends) else None
    with rec.together() if one_pass else contextlib.nullcontext():
        ops.rotary(rec, heads["q"], q, rotations["q"], in_block(i, Q), batch)
        ops.rotary(rec, heads["k"], k, rotations["k"], in_block(i, K), batch, copied)
        if not copied:
            ops.rotary(rec, heads["v"], v, rotations["v"], in_block(i, V), batch)


def _attended(net: Network, q: Tensor, k: Tensor, v: Tensor, i: int) -> ops.Row:
    """Records and returns the output of attention of block i for one row, or for one row of each text."""
    c, scores, name = net.config, _scores_of(net, q, k, i), in_block(i, Z)
    # In `attend_ranges`, the length of a range depends on the position; in `attend_row`, it is fixed. Texts that are
    # decoded side by side need a fixed length, so that a text's bits do not depend on the other texts.
    if net.kernel.blends and not net.rows:
        return ops.attend_ranges(net.rec, scores, v, c.n_head, name, c.group, c.window_of(i))
    return ops.attend_row(net.rec, scores, v, c.n_head, name, net.keys, c.group, net.rows)


def _scores_of(net: Network, q: Tensor, k: Tensor, i: int) -> Tensor:
    """Records and returns the scores of block i for the one query, or for one query of each text."""
    n_head, scale, name, limits = net.config.n_head, net.config.scale(i), in_block(i, SCORES), limits_of(net.config, i)
    if net.rows:
        return ops.scores_rows(net.rec, q, k, n_head, scale, name, net.rows, limits)
    rows = ops.AttentionRows(1, n_head, scale, limits=limits, keys=_drawn_keys(net, name, 1))
    return ops.scores(net.rec, q, k, rows, 1, name)
