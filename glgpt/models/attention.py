"""Records the first part of a block: queries, keys and values, their attention, and its output."""

from __future__ import annotations

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
    from glgpt.models.network import Network
    from glgpt.models.spec import ModelConfig

PARTS = {"q": Q, "k": K, "v": V}


def inputs(config: ModelConfig) -> tuple[str, ...]:
    """Returns the roles of the linear layers that make queries, keys and values."""
    return ("qkv",) if "qkv" in config.tensors else ("q", "k", "v")


def prefill(net: Network, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
    """Records the attention of block i for t tokens of each sequence; returns the residual stream after it."""
    c, n = net.config, net.batch.size
    a = net.keep(net.norm(x, in_block(i, FIRST_NORM), normed))  # (t, C)
    q, k, v = _heads(net, a, i, t)
    p = net.drop(_pattern(net, q, k, i, t, normed.tiles[0]), 3 * i + 1)  # (t n_head, keys)
    z = net.keep(ops.attend(net.rec, p, v, t, c.n_head, in_block(i, Z), net.dtype, n, group=c.group))  # (t, C)
    out, total = in_block(i, ATTN_OUT), in_block(i, RESID_MID)
    return net.add_linear(x, z, c.tensor("o", i), out, total, 3 * i + 2)


def _heads(net: Network, a: Tensor, i: int, t: int) -> list[Tensor]:
    """Returns queries, keys and values of block i for the normed rows a."""
    c, rec = net.config, net.rec
    if "qkv" in c.tensors:
        name = in_block(i, QKV)
        qkv = net.matmul(a, c.tensor("qkv", i), name)  # (t, 3 C)
        q, k, v = (net.heads_of(i, part, t) for part in PARTS)
        ops.split_qkv(rec, qkv, q, k, v, name)
        return [net.keep(part) for part in (q, k, v)]
    heads = [net.heads_of(i, part, t) for part in PARTS]
    for part, out in zip(PARTS, heads, strict=True):
        name = in_block(i, PARTS[part])
        y = net.matmul(a, c.tensor(part, i), f"{name}.product")  # (t, heads d_head)
        ops.rotary(rec, y, out, c.d_head, _frequencies(net, i, part), name, net.batch.size)
        net.keep(out)
    return heads


def _frequencies(net: Network, i: int, part: str) -> tuple[float, ...]:
    return () if part == "v" else net.config.rotation(i).frequencies


def _pattern(net: Network, q: Tensor, k: Tensor, i: int, t: int, tile_rows: int) -> Tensor:
    """Returns the pattern of block i for t tokens of each sequence, `[t n_head, keys]`."""
    n, n_head, scores, pattern = net.batch.size, net.config.n_head, in_block(i, SCORES), in_block(i, PATTERN)
    ends = _ends_at_position(net, scores)
    s = ops.scores(net.rec, q, k, t, tile_rows, n_head, net.config.scale(i), scores, n, to_position=ends)
    ends = _ends_at_position(net, pattern)
    return net.keep(ops.softmax(net.rec, net.keep(s), n * n_head, pattern, net.heads, to_position=ends))


def _ends_at_position(net: Network, name: str) -> bool:
    """True if values of an attention activation past the row's own position are never read."""
    return net.cached and net.edits is None and name not in net.names


def decode(net: Network, row: ops.NormedRow, i: int) -> ops.NormedRow:
    """Records the attention of block i for one row at position pos, or for one row of each text."""
    c, rec = net.config, net.rec
    q, k, v = caches = [net.cache(i, part) for part in PARTS]
    if "qkv" in c.tensors:
        sums, normed = net.product(row, c.tensor("qkv", i))
        ops.split_qkv(rec, sums, q, k, v, in_block(i, QKV), normed, net.rows)
    else:
        for part, cache in zip(PARTS, caches, strict=True):
            sums, normed = net.product(row, c.tensor(part, i))
            frequencies, name = _frequencies(net, i, part), in_block(i, PARTS[part])
            ops.rotary(rec, sums, cache, c.d_head, frequencies, name, net.rows or 1, normed)
    z = ops.attend_row(rec, _scores_of(net, q, k, i), v, c.n_head, in_block(i, Z), net.keys, c.group, net.rows)
    return net.row_sum(row.x, in_block(i, SECOND_NORM), in_block(i, RESID_MID), z, c.tensor("o", i))


def _scores_of(net: Network, q: Tensor, k: Tensor, i: int) -> Tensor:
    """Returns the scores of block i of the one query, or of one query of each text."""
    n_head, scale, name = net.config.n_head, net.config.scale(i), in_block(i, SCORES)
    if net.rows:
        return ops.scores_rows(net.rec, q, k, n_head, scale, name, net.rows)
    return ops.scores(net.rec, q, k, 1, 1, n_head, scale, name)
