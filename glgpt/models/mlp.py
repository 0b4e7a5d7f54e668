"""Records the second part of a block, the MLP: down(act(up)) if it is plain, down(act(gate) * up) if it is gated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glgpt import ops
from glgpt.models.activations import ACT, GATE, MLP_OUT, PRE, RESID_MID, RESID_POST, SECOND_NORM, UP, in_block
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from glgpt.models.network import DecodedRow, Network
    from glgpt.models.spec import ModelConfig

# Maximum bytes of a hidden layer that f16 training stores for the backward pass; a larger one is computed again.
KEPT_PER_LAYER = 4 << 20


def inputs(config: ModelConfig) -> tuple[str, ...]:
    """Returns the roles (keys of `ModelConfig.tensors`) of the linear layers that make the hidden layer."""
    return ("gate", "up") if config.gated else ("up",)


def prefill(net: Network, x: Tensor, i: int, normed: Layout, before: Tensor) -> Tensor:
    """Records the MLP of block i for every row; returns the residual stream after the MLP.

    x is the residual stream after attention, `before` is the stream before the block, and `normed` is the layout of the
    norm's output. If attention and MLP are parallel, x is only what attention adds to the stream.
    """
    c = net.config
    own, out, total = before if c.parallel else x, in_block(i, MLP_OUT), in_block(i, RESID_POST)
    m = net.keep(net.norm(own, in_block(i, SECOND_NORM), normed)) if c.norm_before else own
    m = _gated(net, m, i) if c.gated else _plain(net, m, i)  # (t, d_inner)
    if c.parallel:
        x = ops.add(net.rec, before, x, before.layout, in_block(i, RESID_MID))
    return net.add_linear(x, m, c.tensor("down", i), out, total, 3 * i + 3)


def _fused(net: Network, i: int) -> bool:
    """True if the pass of the product can also apply the activation function.

    It cannot if an output, an edit or the backward pass needs the values before the function, or if training stores the
    inputs of products in a packed format (`Network.trains_packed`).
    """
    return not net.apart(in_block(i, PRE)) and not net.rec.tape and not net.trains_packed


def _plain(net: Network, m: Tensor, i: int) -> Tensor:
    """Records and returns the hidden layer, act(up); fuses `act` into the product if `_fused`."""
    kind, up, name = net.config.activation_function, net.config.tensor("up", i), in_block(i, ACT)
    if _fused(net, i):
        return net.keep(net.matmul(m, up, name, kind))
    pre = net.keep(net.matmul(m, up, in_block(i, PRE)))
    y = ops.act(net.rec, pre, kind, pre.layout, name)
    if net.format.packed and y.layout.nbytes > KEPT_PER_LAYER:  # too large to store for the backward pass
        net.rec.not_kept(y, lambda: ops.act(net.rec, pre, kind, pre.layout, name))
    return net.keep(y)


def _gated(net: Network, m: Tensor, i: int) -> Tensor:
    """Records and returns the hidden layer, act(gate) * up; fuses `act` into the product if `_fused`."""
    c, kind = net.config, net.config.activation_function
    if _fused(net, i):
        gate = net.keep(net.matmul(m, c.tensor("gate", i), in_block(i, GATE), kind))
    else:
        pre = net.keep(net.matmul(m, c.tensor("gate", i), in_block(i, PRE)))
        gate = net.keep(ops.act(net.rec, pre, kind, pre.layout, in_block(i, GATE)))
    up = net.keep(net.matmul(m, c.tensor("up", i), in_block(i, UP)))
    return net.keep(ops.multiply(net.rec, gate, up, gate.layout, in_block(i, ACT)))


def decode(net: Network, row: DecodedRow, i: int, following: str | None, before: DecodedRow) -> DecodedRow:
    """Records the MLP of block i for one row, or for one row of each text; returns the row after the MLP.

    `row` is the residual stream after attention, and `before` is the stream before the block, which the MLP reads if
    attention and MLP are parallel. `following` is the activation that the next norm produces (None: no norm follows).
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
