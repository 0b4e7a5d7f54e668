"""GPT-2's forward pass (Radford et al. 2019) over recorded ops."""

from __future__ import annotations

from glgpt import ops
from glgpt.models.gpt2.config import GPT2Config
from glgpt.models.network import Network
from glgpt.models.spec import in_block
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

KEPT_PER_LAYER = 4 << 20  # bytes of hidden values that an f16 backward pass stores; larger ones are recomputed


class GPT2Network(Network):
    """GPT-2's blocks: attention and MLP, each after a layer norm and added to the residual stream."""

    config: GPT2Config

    def scale(self, i: int) -> float:
        """Returns the factor of the scores of layer i."""
        scale = self.config.d_head**-0.5 if self.config.scale_attn_weights else 1.0
        return scale / (i + 1) if self.config.scale_attn_by_inverse_layer_idx else scale

    def embed(self, t: int, out: Layout) -> Tensor:
        """Returns the embedding of t tokens of each sequence and of their positions."""
        ids, index = self.ids(t)
        wte, wpe = self.parameter("wte.weight"), self.parameter("wpe.weight")
        return ops.embed(self.rec, ids, wte, wpe, out, batch=self.batch.size, index=index)

    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """Returns the layer norm of every row."""
        return ops.norm(self.rec, x, *self.gain(name), self.config.layer_norm_epsilon, out, name)

    def gain(self, name: str) -> tuple[Tensor, Tensor]:
        """Returns gain and bias of a norm."""
        return self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")

    # -- prefill ------------------------------------------------------------------------------------------------

    def block(self, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
        """Records block i for t tokens of each sequence."""
        rec, n_head, n, h = self.rec, self.config.n_head, self.batch.size, in_block(i, "")
        a = self.keep(self.norm(x, h + "ln_1", normed))  # (t, C)
        qkv = self.matmul(a, h + "attn.c_attn", h + "attn.qkv")  # (t, 3 C)
        q, key, v = (self.heads_of(i, which, t) for which in "qkv")
        ops.split_qkv(rec, qkv, q, key, v, h + "attn.qkv")
        for heads in (q, key, v):
            self.keep(heads)
        p = self.drop(self.pattern(q, key, i, t, normed.tiles[0]), 3 * i + 1)  # (t n_head, keys)
        z = self.keep(ops.attend(rec, p, v, ops.AttentionRows(t, n_head, batch=n), h + "attn.z", self.dtype))  # (t, C)
        x = self.add_linear(x, z, h + "attn.c_proj", h + "attn.out", h + "resid_mid", 3 * i + 2)
        m = self.keep(self.norm(x, h + "ln_2", normed))
        m = self.hidden(m, h)  # (t, d_inner)
        return self.add_linear(x, m, h + "mlp.c_proj", h + "mlp.out", h + "resid_post", 3 * i + 3)

    def hidden(self, m: Tensor, h: str) -> Tensor:
        """Returns the MLP's hidden layer; the activation is fused into the product unless `mlp.pre` is captured."""
        kind = self.config.activation_function
        if not self.apart(h + "mlp.pre") and not self.rec.tape and not self.trains_packed:
            return self.keep(self.matmul(m, h + "mlp.c_fc", h + "mlp.act", kind))
        pre = self.keep(self.matmul(m, h + "mlp.c_fc", h + "mlp.pre"))
        y = ops.act(self.rec, pre, kind, pre.layout, h + "mlp.act")
        if self.format.packed and y.layout.nbytes > KEPT_PER_LAYER:  # half of what an f16 block would store
            self.rec.not_kept(y, lambda: ops.act(self.rec, pre, kind, pre.layout, h + "mlp.act"))
        return self.keep(y)

    # -- decode -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Folds every norm into the linear layer after it, for `decode`."""
        for i in self.part.blocks:
            for norm, linear in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc")):
                name = in_block(i, linear)
                ops.norm_fold(self.rec, *self.gain(in_block(i, norm)), *self.linear(name), name)
        if self.part.head:
            ops.norm_fold(self.rec, *self.gain("ln_f"), self.head, None, self.head.name)

    def embed_token(self) -> Tensor:
        """Returns the embedding of the one token in `token` and of position pos."""
        wte, wpe = self.parameter("wte.weight"), self.parameter("wpe.weight")
        return ops.embed(self.rec, self.token, wte, wpe, self.one(self.config.n_embd), batch=self.rows or 1)

    def decode_block(self, row: ops.NormedRow, i: int, following: str | None) -> ops.NormedRow:
        """Records block i for one row at position pos, or for one row of each text of `SideBySide`.

        Norms are applied after the products they feed (`prepare`): one pass cannot both write a row and know its mean,
        and every additional pass costs time.
        """
        rec, c, h = self.rec, self.config, in_block(i, "")
        q, k, v = (self.cache(i, which) for which in "qkv")
        sums, normed = self.scaled(row, h + "attn.c_attn")
        ops.split_qkv(rec, sums, q, k, v, h + "attn.qkv", normed, self.rows)
        s = self.scores_of(q, k, i, h + "attn.scores")
        z = ops.attend_row(rec, s, v, c.n_head, h + "attn.z", self.keys, rows=self.rows)
        row = self.row_sum(row.x, h + "ln_2", h + "resid_mid", z, h + "attn.c_proj")
        sums, normed = self.scaled(row, h + "mlp.c_fc")
        m = ops.combine(rec, sums, h + "mlp.act", act=c.activation_function, normed=normed)
        return self.row_sum(row.x, following, h + "resid_post", m, h + "mlp.c_proj")

    def row_sum(
        self, x: Tensor, norm: str | None, name: str, y: ops.Row | None = None, linear: str | None = None
    ) -> ops.NormedRow:
        """Returns x + linear(y) of one row, ready for the norm that follows."""
        gain, eps = self.parameter(f"{norm}.weight") if norm else None, self.config.layer_norm_epsilon
        if y is None or linear is None:
            return ops.row_sum(self.rec, x, gain, eps, name, row=None)
        w, b = self.linear(linear)
        return ops.row_sum(self.rec, x, gain, eps, name, self.matvec(y, w, linear), b, None)

    def scaled(
        self, row: ops.NormedRow, linear: str
    ) -> tuple[ops.PartialSums, tuple[ops.NormedRow, tuple[Tensor, Tensor]]]:
        """Returns partial sums of a row through a linear layer before its norm, and the tensors to finish them."""
        w, _ = self.linear(linear)
        sums = self.matvec(row.scaled, w, linear)
        return sums, (row, ops.folded_norm(self.rec, linear, w.cols))

    def last_logits(self, x: Tensor, row: str) -> None:
        """Records the logits of the row of x given by the scalar `row`, and its best token."""
        gain, eps = self.parameter("ln_f.weight"), self.config.layer_norm_epsilon
        self.choose(ops.row_sum(self.rec, x, gain, eps, "last", row=row))

    def choose(self, row: ops.NormedRow) -> None:
        """Records the logits of a row of the residual stream, and writes the best token to `token`."""
        sums = self.matvec(row.scaled, self.head, "logits.partial_sums")
        folded = ops.folded_norm(self.rec, self.head.name, self.head.cols)
        self.chosen(ops.combine(self.rec, sums, "logits", normed=(row, folded)))
