"""Records the second part of a block: the MLP, plain or gated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glgpt import ops
from glgpt.models.activations import ACT, GATE, MLP_OUT, PRE, RESID_MID, RESID_POST, SECOND_NORM, UP, in_block
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from glgpt.models.network import DecodedRow, Network
    from glgpt.models.spec import ModelConfig

KEPT_PER_LAYER = 4 << 20  # bytes of hidden values that an f16 backward pass stores; larger ones are recomputed


def inputs(config: ModelConfig) -> tuple[str, ...]:
    """Returns the roles of the linear layers that make the hidden layer."""
    return ("gate", "up") if config.gated else ("up",)


def prefill(net: Network, x: Tensor, i: int, normed: Layout, before: Tensor) -> Tensor:
    """Records the MLP of block i for every row of x; returns the residual stream after it.

    If attention and MLP are parallel, x is what attention adds to the residual stream `before` the block.
    """
    c = net.config
    own, out, total = before if c.parallel else x, in_block(i, MLP_OUT), in_block(i, RESID_POST)
    m = net.keep(net.norm(own, in_block(i, SECOND_NORM), normed)) if c.norm_before else own
    m = _gated(net, m, i) if c.gated else _plain(net, m, i)  # (t, d_inner)
    if c.parallel:
        x = ops.add(net.rec, before, x, before.layout, in_block(i, RESID_MID))
    return net.add_linear(x, m, c.tensor("down", i), out, total, 3 * i + 3)


def _fused(net: Network, i: int) -> bool:
    """True if the activation is computed in the product before it."""
    return not net.apart(in_block(i, PRE)) and not net.rec.tape and not net.trains_packed


def _plain(net: Network, m: Tensor, i: int) -> Tensor:
    """Returns the hidden layer, act(up); the activation is fused into the product unless `mlp.pre` is captured."""
    kind, up, name = net.config.activation_function, net.config.tensor("up", i), in_block(i, ACT)
    if _fused(net, i):
        return net.keep(net.matmul(m, up, name, kind))
    pre = net.keep(net.matmul(m, up, in_block(i, PRE)))
    y = ops.act(net.rec, pre, kind, pre.layout, name)
    if net.format.packed and y.layout.nbytes > KEPT_PER_LAYER:  # half of what an f16 block would store
        net.rec.not_kept(y, lambda: ops.act(net.rec, pre, kind, pre.layout, name))
    return net.keep(y)


def _gated(net: Network, m: Tensor, i: int) -> Tensor:
    """Returns the hidden layer, act(gate) * up; the activation is fused unless `mlp.pre` is captured."""
    c, kind = net.config, net.config.activation_function
    if _fused(net, i):
        gate = net.keep(net.matmul(m, c.tensor("gate", i), in_block(i, GATE), kind))
    else:
        pre = net.keep(net.matmul(m, c.tensor("gate", i), in_block(i, PRE)))
        gate = net.keep(ops.act(net.rec, pre, kind, pre.layout, in_block(i, GATE)))
    up = net.keep(net.matmul(m, c.tensor("up", i), in_block(i, UP)))
    return net.keep(ops.multiply(net.rec, gate, up, gate.layout, in_block(i, ACT)))


def decode(net: Network, row: DecodedRow, i: int, following: str | None, before: DecodedRow) -> DecodedRow:
    """Records the MLP of block i for one row, or for one row of each text; the norm `following` is next.

    If attention and MLP are parallel, the MLP reads the row `before` the block.
    """
    c, name = net.config, in_block(i, ACT)
    own = net.row_sum(before.x, in_block(i, SECOND_NORM), f"{in_block(i, SECOND_NORM)}.row") if c.parallel else row
    found = net.products(own, [c.tensor(role, i) for role in inputs(c)])
    first, normed = found[0]
    factor = found[1][0] if c.gated else None
    alike = factor is None or factor.defines == first.defines  # a file may store gate and up in different types
    m: ops.Row
    if alike and isinstance(own, ops.Stream):
        m = ops.Hidden(first, factor, normed, c.activation_function)
    else:
        times: ops.PartialSums | Tensor | None = factor
        if factor is not None and not alike:
            times = ops.combine(net.rec, factor, in_block(i, UP), normed=found[1][1])
        m = ops.combine(net.rec, first, name, act=c.activation_function, normed=normed, times=times)
    return net.added(row, following, in_block(i, RESID_POST), m, c.tensor("down", i), in_block(i, MLP_OUT))
