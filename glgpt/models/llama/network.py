"""Llama's forward pass (Touvron et al. 2023) over recorded ops."""

from __future__ import annotations

from glgpt import ops
from glgpt.models.llama.config import LlamaConfig
from glgpt.models.network import Network
from glgpt.models.spec import in_block
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor


class LlamaNetwork(Network):
    """Llama's blocks: attention with rotary positions and a gated MLP, each after an RMS norm."""

    config: LlamaConfig

    @property
    def group(self) -> int:
        """Number of query heads that share a key and value head."""
        return self.config.n_head // self.config.n_kv_head

    def embed(self, t: int, out: Layout) -> Tensor:
        """Returns the embedding of t tokens of each sequence."""
        ids, index = self.ids(t)
        return ops.embed(
            self.rec, ids, self.parameter("embed_tokens.weight"), None, out, "embed", self.batch.size, index
        )

    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """Returns the RMS norm of every row."""
        return ops.rms_norm(self.rec, x, self.gain(name), self.config.layer_norm_epsilon, out, name)

    def gain(self, name: str) -> Tensor:
        """Returns the gain of the norm whose activation has this name."""
        if name == "ln_f":
            return self.parameter("norm.weight")
        _, layer, which = name.split(".")
        norm = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm"}[which]
        return self.parameter(f"layers.{layer}.{norm}.weight")

    # -- prefill ------------------------------------------------------------------------------------------------

    def block(self, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
        """Records block i for t tokens of each sequence."""
        rec, c, n, h, layer = self.rec, self.config, self.batch.size, in_block(i, ""), f"layers.{i}."
        a = self.keep(self.norm(x, h + "ln_1", normed))  # (t, C)
        q, k, v = (self.heads_of(i, name, t) for name in "qkv")
        for name, heads in (("q", q), ("k", k), ("v", v)):
            y = self.matmul(a, f"{layer}self_attn.{name}_proj", f"{h}attn.{name}.product")  # (t, heads d_head)
            frequencies = () if name == "v" else c.frequencies
            ops.rotary(rec, y, heads, c.d_head, frequencies, f"{h}attn.{name}", n)
            self.keep(heads)
        p = self.drop(self.pattern(q, k, i, t, normed.tiles[0]), 3 * i + 1)
        z = self.keep(
            ops.attend(rec, p, v, ops.AttentionRows(t, c.n_head, batch=n), h + "attn.z", self.dtype, self.group)
        )
        x = self.add_linear(x, z, layer + "self_attn.o_proj", h + "attn.out", h + "resid_mid", 3 * i + 2)
        m = self.gated(self.keep(self.norm(x, h + "ln_2", normed)), h, layer)  # (t, n_inner)
        return self.add_linear(x, m, layer + "mlp.down_proj", h + "mlp.out", h + "resid_post", 3 * i + 3)

    def gated(self, m: Tensor, h: str, layer: str) -> Tensor:
        """Returns the MLP's hidden layer, silu(gate) * up; silu is fused unless `mlp.pre` is captured."""
        if not self.apart(h + "mlp.pre") and not self.rec.tape and not self.trains_packed:
            gate = self.keep(self.matmul(m, layer + "mlp.gate_proj", h + "mlp.gate", "silu"))
        else:
            pre = self.keep(self.matmul(m, layer + "mlp.gate_proj", h + "mlp.pre"))
            gate = self.keep(ops.act(self.rec, pre, "silu", pre.layout, h + "mlp.gate"))
        up = self.keep(self.matmul(m, layer + "mlp.up_proj", h + "mlp.up"))
        return self.keep(ops.multiply(self.rec, gate, up, gate.layout, h + "mlp.act"))

    # -- decode -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Does nothing: an RMS norm has no bias, and its gain is applied before the product."""

    def embed_token(self) -> Tensor:
        """Returns the embedding of the one token in `token`."""
        tokens = self.parameter("embed_tokens.weight")
        return ops.embed(self.rec, self.token, tokens, None, self.one(self.config.n_embd), batch=self.rows or 1)

    def decode_block(self, row: ops.NormedRow, i: int, following: str | None) -> ops.NormedRow:
        """Records block i for one row at position pos, or for one row of each text of `SideBySide`.

        A norm's division is applied after the products it feeds: one pass cannot both write a row and know its mean
        square.
        """
        rec, c, h, layer = self.rec, self.config, in_block(i, ""), f"layers.{i}."
        q, k, v = (self.cache(i, name) for name in "qkv")
        for name, cache in (("q", q), ("k", k), ("v", v)):
            y = self.product(row.scaled, f"{layer}self_attn.{name}_proj")
            frequencies = () if name == "v" else c.frequencies
            ops.rotary(rec, y, cache, c.d_head, frequencies, f"{h}attn.{name}", self.rows or 1, (row, None))
        s = self.scores_of(q, k, i, h + "attn.scores")
        z = ops.attend_row(rec, s, v, c.n_head, h + "attn.z", self.keys, self.group, self.rows)
        row = self.row_sum(row.x, h + "ln_2", h + "resid_mid", z, layer + "self_attn.o_proj")
        gate, up = (self.product(row.scaled, f"{layer}mlp.{name}_proj") for name in ("gate", "up"))
        factor = ops.combine(rec, gate, h + "mlp.gate", act="silu", normed=(row, None))
        m = ops.combine(rec, up, h + "mlp.act", normed=(row, None), times=factor)
        return self.row_sum(row.x, following, h + "resid_post", m, layer + "mlp.down_proj")

    def product(self, x: ops.Row, linear: str) -> ops.PartialSums:
        """Returns partial sums of one row through a linear layer."""
        return self.matvec(x, self.parameter(f"{linear}.weight"), linear)

    def row_sum(
        self, x: Tensor, norm: str | None, name: str, y: ops.Row | None = None, linear: str | None = None
    ) -> ops.NormedRow:
        """Returns x + linear(y) of one row, ready for the norm that follows."""
        product = None if y is None or linear is None else self.product(y, linear)
        gain = self.gain(norm) if norm else None
        return ops.row_sum(self.rec, x, gain, self.config.layer_norm_epsilon, name, product, row=None)

    def last_logits(self, x: Tensor, row: str) -> None:
        """Records the logits of the row of x given by the scalar `row`, and its best token."""
        self.choose(ops.row_sum(self.rec, x, self.gain("ln_f"), self.config.layer_norm_epsilon, "last", row=row))

    def choose(self, row: ops.NormedRow) -> None:
        """Records the logits of a row of the residual stream, and writes the best token to `token`."""
        sums = self.matvec(row.scaled, self.head, "logits.partial_sums")
        self.chosen(ops.combine(self.rec, sums, "logits", normed=(row, None)))
