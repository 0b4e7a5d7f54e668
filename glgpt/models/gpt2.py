"""GPT-2 (Radford et al. 2019), its forward pass over recorded ops."""

from __future__ import annotations

from collections.abc import Container

from glgpt import ops
from glgpt.models.config import GPT2Config, activation_names, arrange, parameters, texels
from glgpt.record import Kernel, Recorder, Tensor
from glgpt.tensor import Layout, fold

__all__ = ["GPT2Config", "Network", "activation_names", "arrange", "parameters"]


class Network:
    """GPT-2 recorded with one kernel and dtype; `names` are the intermediates to keep, which also stay unfused.

    f32: every tensor is cut into the kernel's tiles. f16: weights and the inputs of products are packed halves in
    8 x 2 tiles (4 x 2 with four draw buffers), the residual stream and attention stay f32.
    """

    def __init__(
        self, rec: Recorder, config: GPT2Config, kernel: Kernel, dtype: str = "f32", names: Container[str] = ()
    ) -> None:
        self.rec, self.config, self.dtype, self.names = rec, config, dtype, names
        if dtype == "f16":
            kernel = Kernel(8 if rec.limits.max_draw_buffers >= 8 else 4, 2)
        self.kernel = kernel
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
            return rec.fixed(name, Layout(rows, cols), "weight")
        layout = fold(texels(rows), cols, rec.limits.max_texture_size, self.kernel.tile_cols, self.dtype)
        return rec.fixed(name, layout, "weight")

    def vector(self, name: str, beside: Tensor | None = None) -> Tensor:
        """The texture of a bias, as wide as the tiles of the weight `beside` it, or of a gain."""
        cols = 4 * beside.layout.width * beside.layout.tiles[1] if beside else self.config.n_embd
        return self.rec.fixed(name, Layout(1, cols), "weight")

    def linear(self, name: str) -> tuple[Tensor, Tensor]:
        """Weight and bias of a linear layer."""
        w = self.weight(f"{name}.weight")
        return w, self.vector(f"{name}.bias", w)

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
        rec, c, k = self.rec, self.config, self.kernel
        tr = k.tile_rows if t > 1 else 1
        stream = Layout(t, c.n_embd, (tr, k.tile_cols if self.dtype == "f32" else 1))
        normed = Layout(t, c.n_embd, (tr, k.tile_cols), self.dtype)
        ids = rec.fixed(f"ids.{t}", Layout(t, 1), "input")
        x = self.keep(ops.embed(rec, ids, self.weight("wte.weight"), self.weight("wpe.weight"), stream))
        for i in range(c.n_layer):
            h = f"h.{i}."
            a = self.keep(self.norm(x, h + "ln_1", normed))
            qkv = ops.matmul(rec, a, *self.linear(h + "attn.c_attn"), h + "attn.qkv", dtype=self.dtype)
            q, key, v = (self.cache(i, part) for part in "qkv")
            ops.split_qkv(rec, qkv, q, key, v, h + "attn.qkv")
            for part in (q, key, v):
                self.keep(part)
            s = self.keep(ops.scores(rec, q, key, t, tr, c.n_head, self.scale(i), h + "attn.scores"))
            p = self.keep(ops.softmax(rec, s, c.n_head, h + "attn.pattern"))
            z = self.keep(ops.attend(rec, p, v, t, c.n_head, h + "attn.z", self.dtype))
            x = self.add_linear(x, z, h + "attn.c_proj", h + "attn.out", h + "resid_mid")
            m = self.keep(self.norm(x, h + "ln_2", normed))
            m = self.hidden(m, h)
            x = self.add_linear(x, m, h + "mlp.c_proj", h + "mlp.out", h + "resid_post")
        return x

    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """Layer norm `name` of every row."""
        gain, bias = self.vector(f"{name}.weight"), self.vector(f"{name}.bias")
        return ops.norm(self.rec, x, gain, bias, self.config.layer_norm_epsilon, out, name)

    def hidden(self, m: Tensor, h: str) -> Tensor:
        """The MLP's hidden layer, the activation fused into the product unless `mlp.pre` is wanted."""
        kind = self.config.activation_function
        w, b = self.linear(h + "mlp.c_fc")
        if h + "mlp.pre" not in self.names:
            return self.keep(ops.matmul(self.rec, m, w, b, h + "mlp.act", act=kind, dtype=self.dtype))
        pre = self.keep(ops.matmul(self.rec, m, w, b, h + "mlp.pre", dtype=self.dtype))
        return self.keep(ops.act(self.rec, pre, kind, pre.layout, h + "mlp.act"))

    def add_linear(self, x: Tensor, y: Tensor, linear: str, out: str, total: str) -> Tensor:
        """x + linear(y), in one pass unless the product `out` is wanted by itself or is packed."""
        w, b = self.linear(linear)
        if out not in self.names and self.dtype == "f32" and x.layout.tiles[1] == w.layout.tiles[1]:
            return self.keep(ops.matmul(self.rec, y, w, b, total, residual=x))
        product = self.keep(ops.matmul(self.rec, y, w, b, out, dtype=self.dtype))
        return self.keep(ops.add(self.rec, x, product, x.layout, total))

    def logits_rows(self, x: Tensor) -> Tensor:
        """The final norm and the logits of every row, [t, vocab]."""
        normed = Layout(x.rows, x.cols, (x.layout.tiles[0], self.kernel.tile_cols), self.dtype)
        y = self.keep(self.norm(x, "ln_f", normed))
        return self.rec.output(ops.matmul(self.rec, y, self.head, None, "logits"))

    # -- one row ------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Tensor:
        """The weight that turns the last norm into logits, `[n_embd, vocab]`."""
        return self.weight("wte.weight" if self.config.tie_word_embeddings else "lm_head.weight")

    def row(self) -> None:
        """The forward pass of the one token in `token`, at position pos; ends with its successor in `token`."""
        rec, c = self.rec, self.config
        x = ops.embed(
            rec, self.token, self.weight("wte.weight"), self.weight("wpe.weight"), Layout(1, c.n_embd)
        )
        x, y = ops.row_norm(rec, x, *self.gain("h.0.ln_1"), c.layer_norm_epsilon, "h.0.ln_1")
        for i in range(c.n_layer):
            h, following = f"h.{i}.", f"h.{i + 1}.ln_1" if i + 1 < c.n_layer else "ln_f"
            q, k, v = (self.cache(i, part) for part in "qkv")
            part, bias = self.split(y, h + "attn.c_attn")
            ops.split_qkv(rec, part, q, k, v, h + "attn.qkv", bias=bias)
            s = ops.scores(rec, q, k, 1, 1, c.n_head, self.scale(i), h + "attn.scores")
            z = ops.attend_row(rec, s, v, c.n_head, h + "attn.z")
            x, y = self.add_split(x, self.split(z, h + "attn.c_proj"), h + "ln_2", h + "resid_mid")
            part, bias = self.split(y, h + "mlp.c_fc")
            m = ops.combine(rec, part, bias, h + "mlp.act", act=c.activation_function)
            x, y = self.add_split(x, self.split(m, h + "mlp.c_proj"), following, h + "resid_post")
        self.choose(y)

    def gain(self, name: str) -> tuple[Tensor, Tensor]:
        """Gain and bias of a norm."""
        return self.vector(f"{name}.weight"), self.vector(f"{name}.bias")

    def split(self, x: Tensor, linear: str) -> tuple[Tensor, Tensor]:
        """The partial sums of one row through a linear layer, and the bias that is still to be added."""
        w, b = self.linear(linear)
        return ops.matvec(self.rec, x, w, linear, parts=parts(w.layout)), b

    def add_split(self, x: Tensor, part: tuple[Tensor, Tensor], norm: str, total: str) -> tuple[Tensor, Tensor]:
        """x plus the partial sums, and the norm of that, in one pass."""
        return ops.row_norm(
            self.rec, x, *self.gain(norm), self.config.layer_norm_epsilon, norm, parts=part, sum_name=total
        )

    def last_row(self, x: Tensor) -> None:
        """The norm, logits and best token of the row that the scalar `row` names."""
        _, y = ops.row_norm(self.rec, x, *self.gain("ln_f"), self.config.layer_norm_epsilon, "ln_f", row="row")
        self.choose(y)

    def choose(self, y: Tensor) -> None:
        """Logits of one normed row, and the best token into `token`."""
        logits = self.rec.output(ops.matvec(self.rec, y, self.head, "logits"))
        ops.argmax(self.rec, logits, self.token)


def parts(w: Layout) -> int:
    """Into how many parts the inner dimension of a one-row product is cut: enough fragments for a GPU, few to add up."""
    return max(1, min(w.rows // 64, 4096 // w.width))
