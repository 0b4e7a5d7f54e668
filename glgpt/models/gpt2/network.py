"""GPT-2 (Radford et al. 2019), its forward pass over recorded ops."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from functools import partial

from glgpt import ops
from glgpt.models.gpt2.config import GPT2Config, parameters
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout, fold, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor


@dataclass(frozen=True)
class Batch:
    """Sequences run side by side from position 0, without caches, so that they can be differentiated.

    A tensor's rows are then t * size + sequence. `dropout` is the share dropped where GPT-2 does (embedding, pattern,
    what each half of a block adds); `recompute` keeps only the blocks' inputs for the backward pass.
    """

    size: int
    dropout: float = 0.0
    recompute: bool = False


class Network:
    """GPT-2 recorded with one kernel and dtype; `names` are the intermediates to keep, which also stay unfused.

    f32: every tensor is cut into the kernel's tiles. f16: weights and the inputs of products are packed halves in
    8 x 2 tiles (4 x 2 with four draw buffers), the residual stream and attention stay f32.

    With a `batch`, `rows` runs one. `role` is that of the parameters' textures: "state" where training writes them.
    A kernel of contiguous columns gets weights in panels, and all keys of a row at once.
    """

    def __init__(
        self,
        rec: Recorder,
        config: GPT2Config,
        kernel: Kernel,
        dtype: str = "f32",
        names: Container[str] = (),
        batch: Batch | None = None,
        role: str = "weight",
    ) -> None:
        self.rec, self.config, self.dtype, self.names = rec, config, dtype, names
        self.batch, self.cached, self.role = batch or Batch(1), batch is None, role
        self.format = FORMATS[dtype]
        self.kernel = kernel.for_format(self.format, rec.limits)
        self.heads = config.n_head * texels(config.d_head)  # width of q, k, v and z, heads padded

    # -- tensors ------------------------------------------------------------------------------------------------

    def weight(self, name: str) -> Tensor:
        """The texture of a parameter."""
        c, rec = self.config, self.rec
        rows, cols = {
            "wte.weight": (c.n_embd, c.vocab_size),
            "lm_head.weight": (c.n_embd, c.vocab_size),
            "wpe.weight": (c.n_positions, c.n_embd),
            "attn.c_attn.weight": (c.n_embd, 3 * self.heads),
            "attn.c_proj.weight": (self.heads, c.n_embd),
            "mlp.c_fc.weight": (c.n_embd, c.d_inner),
            "mlp.c_proj.weight": (c.d_inner, c.n_embd),
        }[name if name.count(".") == 1 else name.split(".", 2)[2]]
        if name == "wpe.weight":
            return rec.fixed(name, fold(rows, cols, rec.limits.max_texture_size), self.role)
        if self.kernel.contiguous and self.role == "weight":  # training writes no panels
            return rec.fixed(name, ops.panels(rec, texels(rows), cols, self.dtype), self.role)
        layout = fold(texels(rows), cols, rec.limits.max_texture_size, dtype=self.dtype)
        return rec.fixed(name, layout, self.role)

    def vector(self, name: str, cols: int | None = None) -> Tensor:
        """The texture of a bias of `cols` values, or of a norm's gain or bias."""
        layout = fold(1, cols or self.config.n_embd, self.rec.limits.max_texture_size)
        return self.rec.fixed(name, layout, self.role)

    def parameter(self, name: str) -> Tensor:
        """The texture of any parameter, by its checkpoint name."""
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
            return self.vector(name)
        if name.endswith(".bias"):
            linear = name.removesuffix(".bias") + ".weight"
            return self.vector(name, None if ".ln_" in f".{name}" else self.weight(linear).cols)
        return self.weight(name)

    def linear(self, name: str) -> tuple[Tensor, Tensor]:
        """Weight and bias of a linear layer."""
        w = self.weight(f"{name}.weight")
        return w, self.vector(f"{name}.bias", w.cols)

    def cache(self, i: int, part: str) -> Tensor:
        """The state that holds q, k or v of layer i for every position; q is shared by all layers unless kept."""
        name = f"h.{i}.attn.{part}"
        if part == "q" and name not in self.names:
            name = "q"
        return self.rec.fixed(name, Layout(self.config.n_positions, self.heads), "state")

    @property
    def token(self) -> Tensor:
        """The state that holds the token chosen last: texel (id, logit, 0, 0)."""
        return self.rec.fixed("token", Layout(1, 4), "state")

    def scale(self, i: int) -> float:
        """What the scores of layer i are multiplied with."""
        scale = self.config.d_head**-0.5 if self.config.scale_attn_weights else 1.0
        return scale / (i + 1) if self.config.scale_attn_by_inverse_layer_idx else scale

    def keep(self, tensor: Tensor) -> Tensor:
        """Lists a tensor among the entry's outputs if it is wanted."""
        return self.rec.output(tensor) if tensor.name in self.names else tensor

    # -- many rows ----------------------------------------------------------------------------------------------

    def rows(self, t: int) -> Tensor:
        """The forward pass of t tokens at positions pos..: returns the residual stream after the last block, [t, C]."""
        c, k, n = self.config, self.kernel, self.batch.size
        tr = k.tile_rows if n == 1 and t > 1 else math.gcd(t, k.tile_rows)
        tr = ops.score_tiles(self.rec, t, n, c.n_head, tr)
        stream = Layout(t * n, c.n_embd, (tr, 1 if self.format.packed else k.tile_cols))
        normed = Layout(t * n, c.n_embd, (tr, k.tile_cols), self.dtype)
        x = self.drop(self.keep(self.embed(t, stream)), 0)
        for i in range(c.n_layer):
            block = partial(self.block, i=i, t=t, normed=normed)
            weights = [self.parameter(name) for name in parameters(c) if name.startswith(f"h.{i}.")]
            x = self.rec.recomputed(block, x, weights) if self.batch.recompute else block(x)
        return x

    def block(self, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
        """Block i for t tokens of each sequence."""
        rec, n_head, n, h = self.rec, self.config.n_head, self.batch.size, f"h.{i}."
        a = self.keep(self.norm(x, h + "ln_1", normed))
        qkv = self.matmul(a, h + "attn.c_attn", h + "attn.qkv")
        q, key, v = (self.heads_of(i, part, t) for part in "qkv")
        ops.split_qkv(rec, qkv, q, key, v, h + "attn.qkv")
        for part in (q, key, v):
            self.keep(part)
        tr = normed.tiles[0]
        s = self.keep(ops.scores(rec, q, key, t, tr, n_head, self.scale(i), h + "attn.scores", n))
        p = self.drop(self.keep(ops.softmax(rec, s, n * n_head, h + "attn.pattern")), 3 * i + 1)
        z = self.keep(ops.attend(rec, p, v, t, n_head, h + "attn.z", self.dtype, n))
        x = self.add_linear(x, z, h + "attn.c_proj", h + "attn.out", h + "resid_mid", 3 * i + 2)
        m = self.keep(self.norm(x, h + "ln_2", normed))
        m = self.hidden(m, h)
        return self.add_linear(x, m, h + "mlp.c_proj", h + "mlp.out", h + "resid_post", 3 * i + 3)

    def embed(self, t: int, out: Layout) -> Tensor:
        """The embedding of t tokens of each sequence; differentiated, it takes the index of their ids too."""
        rec, rows = self.rec, t * self.batch.size
        ids, index = rec.fixed(f"ids.{rows}", Layout(rows, 1), "input"), None
        if rec.tape:
            order, starts = ops.index_layouts(rows, self.config.vocab_size, rec.limits.max_texture_size)
            index = rec.fixed("order", order, "input"), rec.fixed("starts", starts, "input")
        wte, wpe = self.weight("wte.weight"), self.weight("wpe.weight")
        return ops.embed(rec, ids, wte, wpe, out, batch=self.batch.size, index=index)

    def heads_of(self, i: int, part: str, t: int) -> Tensor:
        """What holds q, k or v of layer i for t tokens: their place in the caches, or a tensor of their own."""
        if self.cached:
            return self.cache(i, part)
        return self.rec.scratch(f"h.{i}.attn.{part}", Layout(t * self.batch.size, self.heads))

    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """Layer norm `name` of every row."""
        return ops.norm(self.rec, x, *self.gain(name), self.config.layer_norm_epsilon, out, name)

    def gain(self, name: str) -> tuple[Tensor, Tensor]:
        """Gain and bias of a norm."""
        return self.vector(f"{name}.weight"), self.vector(f"{name}.bias")

    def matmul(
        self, x: Tensor, linear: str, name: str, act: str | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Every row through a linear layer."""
        w, b = self.linear(linear)
        rec, tc, split_k = self.rec, self.kernel.tile_cols, 1
        if self.cached and not self.format.packed:  # sums of packed products would take twice the layers
            split_k = ops.split_k_for(rec, x.layout.height, texels(x.cols) // 4, -(-texels(w.cols) // (4 * tc)))
        return ops.matmul(
            rec, x, w, b, name, act=act, residual=residual, dtype=self.dtype, tile_cols=tc, split_k=split_k
        )

    def hidden(self, m: Tensor, h: str) -> Tensor:
        """The MLP's hidden layer, the activation fused into the product unless `mlp.pre` is wanted."""
        kind = self.config.activation_function
        if h + "mlp.pre" not in self.names and not self.rec.tape:
            return self.keep(self.matmul(m, h + "mlp.c_fc", h + "mlp.act", kind))
        pre = self.keep(self.matmul(m, h + "mlp.c_fc", h + "mlp.pre"))
        return self.keep(ops.act(self.rec, pre, kind, pre.layout, h + "mlp.act"))

    def add_linear(self, x: Tensor, y: Tensor, linear: str, out: str, total: str, site: int) -> Tensor:
        """x + linear(y), in one pass unless the product `out` is wanted by itself, is packed, or dropped from."""
        if out not in self.names and not self.format.packed and not self.batch.dropout:
            return self.keep(self.matmul(y, linear, total, residual=x))
        product = self.drop(self.keep(self.matmul(y, linear, out)), site)
        return self.keep(ops.add(self.rec, x, product, x.layout, total))

    def drop(self, x: Tensor, site: int) -> Tensor:
        """x after dropout, where there is any."""
        rate = self.batch.dropout
        return ops.dropout(self.rec, x, rate, site, f"{x.name}.kept") if rate else x

    def logits_rows(self, x: Tensor, name: str = "logits") -> Tensor:
        """The final norm and the logits of every row, [t, vocab]."""
        tc = self.kernel.tile_cols
        y = self.keep(self.norm(x, "ln_f", Layout(x.rows, x.cols, (x.layout.tiles[0], tc), self.dtype)))
        return self.rec.output(ops.matmul(self.rec, y, self.head, None, name, tile_cols=tc))

    # -- one row ------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Tensor:
        """The weight that turns the last norm into logits, `[n_embd, vocab]`."""
        return self.weight("wte.weight" if self.config.tie_word_embeddings else "lm_head.weight")

    def prepare(self) -> None:
        """Folds every norm into the linear layer behind it, for `row`; to be played whenever weights have changed."""
        for i in range(self.config.n_layer):
            for norm, linear in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc")):
                name = f"h.{i}.{linear}"
                ops.norm_fold(self.rec, *self.gain(f"h.{i}.{norm}"), *self.linear(name), name)
        ops.norm_fold(self.rec, *self.gain("ln_f"), self.head, None, self.head.name)

    def row(self) -> None:
        """The forward pass of the one token in `token`, at position pos; ends with its successor in `token`.

        Norms are applied behind the products they feed (`prepare`), since one pass cannot both write a row and know
        its mean, and every pass counts.
        """
        rec, c = self.rec, self.config
        keys = c.n_positions if self.kernel.contiguous else ops.KEYS
        wte, wpe = self.weight("wte.weight"), self.weight("wpe.weight")
        x = ops.embed(rec, self.token, wte, wpe, Layout(1, c.n_embd))
        row = self.row_sum(x, "h.0.ln_1", "embed.row")
        for i in range(c.n_layer):
            h, following = f"h.{i}.", f"h.{i + 1}.ln_1" if i + 1 < c.n_layer else "ln_f"
            q, k, v = (self.cache(i, part) for part in "qkv")
            part, normed = self.scaled(row, h + "attn.c_attn")
            ops.split_qkv(rec, part, q, k, v, h + "attn.qkv", normed)
            s = ops.scores(rec, q, k, 1, 1, c.n_head, self.scale(i), h + "attn.scores")
            z = ops.attend_row(rec, s, v, c.n_head, h + "attn.z", keys)
            row = self.row_sum(row.x, h + "ln_2", h + "resid_mid", z, h + "attn.c_proj")
            part, normed = self.scaled(row, h + "mlp.c_fc")
            m = ops.combine(rec, part, h + "mlp.act", act=c.activation_function, normed=normed)
            row = self.row_sum(row.x, following, h + "resid_post", m, h + "mlp.c_proj")
        self.choose(row)

    def row_sum(
        self, x: Tensor, norm: str, name: str, y: ops.Row | None = None, linear: str | None = None
    ) -> ops.NormedRow:
        """x + linear(y) of one row, ready for the norm that follows."""
        gain, eps = self.vector(f"{norm}.weight"), self.config.layer_norm_epsilon
        if y is None or linear is None:
            return ops.row_sum(self.rec, x, gain, eps, name)
        w, b = self.linear(linear)
        return ops.row_sum(self.rec, x, gain, eps, name, self.matvec(y, w, linear), b)

    def matvec(self, x: ops.Row, w: Tensor, name: str) -> ops.PartialSums:
        """Partial sums of one row times a weight."""
        return ops.matvec(self.rec, x, w, name, contiguous=self.kernel.contiguous)

    def scaled(
        self, row: ops.NormedRow, linear: str
    ) -> tuple[ops.PartialSums, tuple[ops.NormedRow, tuple[Tensor, Tensor]]]:
        """Partial sums of a row through a linear layer before its norm, and what finishes them."""
        w, _ = self.linear(linear)
        part = self.matvec(row.scaled, w, linear)
        return part, (row, ops.folded_norm(self.rec, linear, w.cols))

    def last_row(self, x: Tensor, row: str) -> None:
        """The logits of the row of x that the scalar `row` names, and its best token."""
        gain, eps = self.vector("ln_f.weight"), self.config.layer_norm_epsilon
        self.choose(ops.row_sum(self.rec, x, gain, eps, "last", row=row))

    def choose(self, row: ops.NormedRow) -> None:
        """The logits of a row of the residual stream, and the best token into `token`."""
        part = self.matvec(row.scaled, self.head, "logits.parts")
        folded = ops.folded_norm(self.rec, self.head.name, self.head.cols)
        logits = self.rec.output(ops.combine(self.rec, part, "logits", normed=(row, folded)))
        ops.argmax(self.rec, logits, self.token)
