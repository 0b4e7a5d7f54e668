"""Records the forward pass of a decoder from its spec, for prompts, for training batches and for single rows.

`attention` and `mlp` record the two parts of a block; this module records the products that they share, the
embedding, the norms, the head and the order of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from glgpt import ops
from glgpt.models import attention, mlp
from glgpt.models.activations import (
    ATTN_OUT,
    FINAL_NORM,
    FIRST_NORM,
    HIDDEN_OUT,
    LOGITS,
    MLP_OUT,
    PROJECTED,
    SECOND_NORM,
    in_block,
    part_of,
)
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout, fold, one_layer, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor
from glgpt.program.weight_formats import WeightFormats, activations

DecodedRow = ops.NormedRow | ops.Stream  # a row of the residual stream, before its next norm

# From this many rows of a product on, a GPU decodes integer weights to f16 once beforehand instead of in each fragment.
# Weights below 1e-6 then lose precision, since f16 has few bits for them.
MANY_ROWS = 256

# activation that a part adds to the stream -> the same before its norm
PROJECTED_OF = {ATTN_OUT: PROJECTED, MLP_OUT: HIDDEN_OUT}
# norm's activation -> the role of its tensors
NORMS = {FIRST_NORM: "norm_1", SECOND_NORM: "norm_2", FINAL_NORM: "norm", ATTN_OUT: "post_1", MLP_OUT: "post_2"}


@dataclass(frozen=True)
class Batch:
    """Sequences run side by side from position 0, without caches, so that they can be differentiated.

    Row t * size + sequence of a tensor is token t of a sequence. `dropout` is the dropped share, in the places where
    GPT-2 has dropout (embedding, pattern, outputs of attention and MLP); `recompute` stores only the blocks' inputs for
    the backward pass.
    """

    size: int
    dropout: float = 0.0
    recompute: bool = False


class SupportsEdits(Protocol):
    """Changes of activations, recorded at the point where each is computed."""

    @property
    def names(self) -> Container[str]:
        """The activations that may change."""

    def apply(self, network: Network, x: Tensor, row: str | None = None) -> Tensor:
        """Returns the activation x after its edits; with `row`, x is the single row of position pos + row."""


@dataclass(frozen=True)
class SideBySide:
    """`size` texts decoded side by side over shared caches of `height` rows (`ops.Rows`)."""

    size: int
    height: int


class Network:
    """A model recorded with one kernel and dtype; `names` are activations to list as outputs, which also stay unfused.

    With f32, every tensor is divided into the kernel's tiles. With a packed format, weights and the inputs of products
    are stored in it; inputs have 8 row tiles (4 with four draw buffers), and column tiles share texels. The residual
    stream and attention stay f32. A quantised format applies to weights only: the inputs of products are stored in its
    `activations` format, which `dtype` and `format` then name; likewise with `StoredFormats`, one for each weight. If
    training writes the parameters (`role` "state"), they stay f32 whatever the dtype, and attention's heads and pattern
    are stored in the format of activations.

    With a `batch`, `prefill` records its sequences. `role` is that of the parameters' textures: "state" if training
    writes them. With `SideBySide` as the batch, `decode` runs a token of each text. With a `part`, only its passes are
    recorded: see `Part`. A kernel of contiguous columns gets weights in panels, and all keys of a row at once.
    """

    def __init__(
        self,
        rec: Recorder,
        config: ModelConfig,
        kernel: Kernel,
        dtype: WeightFormats = "f32",
        names: Container[str] = (),
        batch: Batch | SideBySide | None = None,
        role: str = "weight",
        part: Part | None = None,
    ) -> None:
        self.weights: WeightFormats = dtype if role == "weight" else "f32"
        self.rec, self.config, self.dtype, self.names = rec, config, activations(dtype), names
        self.part = part or Part.whole(config)
        self.texts = batch if isinstance(batch, SideBySide) else None
        batch = None if isinstance(batch, SideBySide) else batch
        self.batch, self.cached, self.role = batch or Batch(1), batch is None, role
        self.rows = self._rows(self.texts) if self.texts else None
        self.format = FORMATS[self.dtype]
        self.trains_packed = role == "state" and self.format.packed  # so that numbers are equal with and without a tape
        self.heads = self.dtype if role == "state" else "f32"
        self.kernel = kernel.for_format(self.format, rec.limits)
        self.splits = self._splits()
        self.edits: SupportsEdits | None = None
        self.taps = False  # True: `prefill` and `decode` list the residual stream after every block
        self.decoding = False  # True: the only id is the token in `token`
        self.length = 0  # tokens of each sequence in the last `prefill`
        self.stream: list[Tensor] = []  # the residual stream of the last `prefill`, as `ModelConfig.stream` names it

    def _splits(self) -> ops.Splits | None:
        if self.role == "state":  # on all devices, since pages and resumed runs need equal sums
            return ops.TRAINING_SPLITS
        if not self.kernel.suits_software:
            return ops.GPU_SPLITS
        # On software GL, splitting K does not speed up packed products and those without caches.
        return ops.SOFTWARE_SPLITS if self.cached and not self.format.packed else None

    # -- tensors ------------------------------------------------------------------------------------------------

    def parameter(self, name: str) -> Tensor:
        """Returns the texture of a parameter."""
        p, limit = self.config.parameters[name], self.rec.limits.max_texture_size
        rows, cols = p.matrix
        dtype = p.format(self.weights)
        if not p.product:
            layout = fold(rows, cols, limit, dtype=dtype)
        elif self.kernel.contiguous and self.role == "weight":  # training writes no panels
            layout = ops.panels(self.rec, texels(rows), cols, dtype)
        else:
            layout = fold(texels(rows), cols, limit, dtype=dtype)
        return self.rec.fixed(name, layout, self.role)

    def linear(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Returns weight and bias of a linear layer or a norm; the bias is None if it has none."""
        bias = f"{name}.bias"
        return self.parameter(f"{name}.weight"), self.parameter(bias) if bias in self.config.parameters else None

    @property
    def head(self) -> Tensor:
        """The weight that turns the last norm into logits, `[n_embd, vocab]`."""
        return self.parameter(self.config.output)

    def cache(self, i: int, which: str) -> Tensor:
        """Returns the state with q, k or v of layer i for every position; layers share q unless it is captured."""
        name = in_block(i, f"attn.{which}")
        shared = which == "q" and not self.apart(name)
        # A pass writes the queries, keys and values of one row if queries have tiles as wide as keys.
        group = self.config.group if which == "q" and self.places_heads_together and self.role == "weight" else 1
        tiles = (1, group if group + 2 <= self.rec.limits.max_draw_buffers and not self.texts else 1)
        layout = Layout(self.texts.height if self.texts else self.config.context, self.heads_width(name), tiles)
        own = ("texts." if self.texts else "") + ("q" if shared else name)
        return self.rec.fixed(own, layout, "state", half=self.cached and self.config.half_caches)

    @property
    def places_heads_together(self) -> bool:
        """True if one pass writes the queries, keys and values of one row, where each pass takes long to start."""
        return self.kernel.blends or self.kernel.suits_software

    def heads_width(self, name: str) -> int:
        """Returns the columns of q, k or v: heads side by side, each padded to whole texels."""
        activation = self.config.activations[name]
        return activation.heads * texels(activation.width)

    @property
    def token(self) -> Tensor:
        """The state of the last chosen token: a texel (id, logit, not finite, undecided), then texels of `sample`.

        With texts side by side, the first texel of each.
        """
        if self.rows:
            return self.rec.fixed(f"token.{self.rows.size}", Layout(self.rows.size, 4), "state")
        return self.rec.fixed("token", ops.TOKEN, "state")

    def chosen(self, logits: Tensor) -> None:
        """Writes a row of logits to the state `logits` and its best token to `token`; for texts, a row of each."""
        state = f"logits.{self.rows.size}" if self.rows else "logits"
        ops.argmax(self.rec, self.rec.output(self.rec.store(logits, state), "logits"), self.token)

    def best(self) -> None:
        """Writes the best token of the state `logits` to `token`."""
        ops.argmax(self.rec, self.rec.kept("logits"), self.token)

    def sample(self, nucleus: bool) -> None:
        """Draws from the state `logits` into `token`; `nucleus` searches for the nucleus, for top-p without top-k."""
        ops.sample(self.rec, self.rec.kept("logits"), self.token, self.token, nucleus)

    def _rows(self, texts: SideBySide) -> ops.Rows:
        places = self.rec.fixed(f"places.{texts.size}", Layout(texts.size, 4), "state")
        table = self.rec.fixed(f"table.{texts.size}", Layout(texts.size, self.config.context), "state")
        return ops.Rows(texts.size, places, table)

    def apart(self, name: str) -> bool:
        """True if an activation needs a separate tensor, since it is listed or may be edited."""
        return name in self.names or (self.edits is not None and name in self.edits.names)

    def keep(self, tensor: Tensor) -> Tensor:
        """Returns the tensor after its edits; lists it among the entry's outputs if it is captured."""
        if self.edits:
            tensor = self.edits.apply(self, tensor)
        return self.rec.output(tensor) if tensor.name in self.names else tensor

    def drop(self, x: Tensor, site: int) -> Tensor:
        """Returns x after dropout, if the batch has dropout."""
        rate = self.batch.dropout
        return ops.dropout(self.rec, x, rate, site, f"{x.name}.kept") if rate else x

    # -- norms and embedding ------------------------------------------------------------------------------------------

    def _layer(self, activation: str) -> int:
        return self.config.activations[activation].layer or 0

    def _tensor_of(self, norm: str) -> str:
        return self.config.tensor(NORMS[part_of(norm)], self._layer(norm))

    def gain(self, norm: str) -> Tensor:
        """Returns the gain of the norm whose activation has this name."""
        return self.parameter(f"{self._tensor_of(norm)}.weight")

    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """Returns the norm of every row; `name` is that of its activation."""
        (gain, bias), eps = self.linear(self._tensor_of(name)), self.config.layer_norm_epsilon
        if bias is None:
            return ops.rms_norm(self.rec, x, gain, eps, out, name, self.config.gain_offset)
        return ops.norm(self.rec, x, gain, bias, eps, out, name)

    def embed(self, t: int, out: Layout) -> Tensor:
        """Returns the embedding of t tokens of each sequence."""
        ids, index = self.ids(t)
        return self._embedded(ids, out, self.batch.size, index)

    def _embedded(
        self, ids: Tensor, out: Layout, batch: int | ops.Rows, index: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        c = self.config
        tables = [self.parameter(c.embedding)]
        if c.positions == "absolute":
            tables.append(self.parameter(f"{c.tensor('positions')}.weight"))
        positions = tables[1] if len(tables) > 1 else None
        return ops.embed(self.rec, ids, tables[0], positions, out, batch, index, scale=c.embed_scale)

    def prepare(self) -> None:
        """Records passes to play once the weights are loaded, and again whenever they have changed.

        They fold every layer norm into the linear layers after it, for `decode`. An RMS norm has no bias to fold, and
        its gain is applied before the product.
        """
        if self.config.norm != "layer":
            return
        for i in self.part.blocks:
            for norm, linears in ((FIRST_NORM, attention.inputs(self.config)), (SECOND_NORM, mlp.inputs(self.config))):
                for name in (self.config.tensor(role, i) for role in linears):
                    self._fold(in_block(i, norm), *self.linear(name), name)
        if self.part.head:
            self._fold(FINAL_NORM, self.head, None, self.head.name)

    def _fold(self, norm: str, w: Tensor, shift: Tensor | None, name: str) -> None:
        gain, bias = self.linear(self._tensor_of(norm))
        if bias is not None:
            ops.norm_fold(self.rec, gain, bias, w, shift, name)

    def block(self, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
        """Records block i for t tokens of each sequence; `normed` is the layout of a norm's output."""
        return mlp.prefill(self, attention.prefill(self, x, i, t, normed), i, normed, x)

    # -- prefill ------------------------------------------------------------------------------------------------

    def prefill(self, t: int) -> Tensor:
        """Records the forward pass of t tokens at positions pos..; returns the final residual stream, [t, C]."""
        c, k, n, self.length = self.config, self.kernel, self.batch.size, t
        tr = k.tile_rows if n == 1 and t > 1 else math.gcd(t, k.tile_rows)
        tr = ops.score_tiles(self.rec, t, n, c.n_head, tr)
        stream = Layout(t * n, c.n_embd, (tr, 1 if self.format.packed else k.tile_cols))
        normed = Layout(t * n, c.n_embd, (tr, k.tile_cols), self.dtype)
        embed = self.part.embed
        x = self.drop(self.keep(self.embed(t, stream)), 0) if embed else self.hidden_state(t, stream)
        self.stream = [x]
        for i in self.part.blocks:
            block = partial(self.block, i=i, t=t, normed=normed)
            weights = [self.parameter(p.name) for p in c.parameters.values() if p.layer == i]
            x = self.rec.recomputed(block, x, weights) if self.batch.recompute else block(x)
            self.stream.append(x)
        for name, state in zip(c.stream(), self.stream, strict=False) if self.taps else ():
            self.rec.output(state, name)
        return x

    def decode_unfused(self) -> None:
        """Records `decode` with a tensor for each activation, as in `prefill`, so that edits can change them."""
        self.decoding = True
        x = self.prefill(1)
        self.decoding = False
        self.finish(x, "0")

    def hidden_state(self, t: int, layout: Layout) -> Tensor:
        """Returns the input with the residual stream of t tokens before the part's first block."""
        return self.rec.fixed(f"{HIDDEN}.{t}", layout, "input")

    def finish(self, x: Tensor, row: str) -> None:
        """Records a part's output: the logits of one row and its best token, or the residual stream as `hidden`."""
        if not self.part.head:
            self.rec.output(x, HIDDEN)
        elif self.edits and (FINAL_NORM in self.edits.names or LOGITS in self.edits.names):
            self._edited_logits(self.edits, x, row)
        else:
            self.last_logits(x, row)

    def _edited_logits(self, edits: SupportsEdits, x: Tensor, row: str) -> None:
        """Records `last_logits` with tensors for the norm and the logits, which edits may change."""
        if x.rows > 1:
            last = self.rec.scratch("last", Layout(1, x.cols))
            ops.take_row(self.rec, x, last)
            x = last
        tc = self.kernel.tile_cols
        y = edits.apply(self, self.norm(x, FINAL_NORM, Layout(1, x.cols, (1, tc), self.dtype)), row)
        logits = self._capped(ops.matmul(self.rec, y, self.head, None, LOGITS, tile_cols=tc))
        self.chosen(edits.apply(self, logits, row))

    def logits(self, x: Tensor, name: str = "logits") -> Tensor:
        """Returns the logits of every row after the final norm, [t, vocab]."""
        tc = self.kernel.tile_cols
        y = self.keep(self.norm(x, FINAL_NORM, Layout(x.rows, x.cols, (x.layout.tiles[0], tc), self.dtype)))
        return self.rec.output(self.keep(self._capped(ops.matmul(self.rec, y, self.head, None, name, tile_cols=tc))))

    def _capped(self, logits: Tensor) -> Tensor:
        """Returns logits after their soft cap, if the model has one."""
        cap = self.config.logit_softcap
        return ops.act(self.rec, logits, cap, logits.layout, logits.name) if cap else logits

    def ids(self, t: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Returns the input with the ids of t tokens of each sequence and, for the backward pass, their index."""
        rec, rows = self.rec, t * self.batch.size
        if self.decoding:
            return self.token, None
        ids = rec.fixed(f"ids.{rows}", Layout(rows, 1), "input")
        if not rec.tape:
            return ids, None
        order, starts = ops.index_layouts(rows, self.config.vocab_size, rec.limits.max_texture_size)
        return ids, (rec.fixed("order", order, "input"), rec.fixed("starts", starts, "input"))

    def heads_of(self, i: int, which: str, t: int) -> Tensor:
        """Returns the tensor of q, k or v of layer i for t tokens: the cache, or a separate one without caches."""
        if self.cached:
            return self.cache(i, which)
        name = in_block(i, f"attn.{which}")
        return self.rec.scratch(name, one_layer(t * self.batch.size, self.heads_width(name), self.heads))

    def matmul(
        self, x: Tensor, linear: str, name: str, act: str | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Returns every row through a linear layer."""
        (w, b), tc = self.linear(linear), self.kernel.tile_cols
        if w.layout.format.quantised and not self.kernel.suits_software and x.rows >= MANY_ROWS:
            decoded = fold(w.rows, w.cols, self.rec.limits.max_texture_size, dtype=self.dtype)
            w = ops.copy(self.rec, w, decoded, f"{w.name}.halves")
        return ops.matmul(
            self.rec, x, w, b, name, act=act, residual=residual, dtype=self.dtype, tile_cols=tc, splits=self.splits
        )

    def add_linear(self, x: Tensor, y: Tensor, linear: str, out: str, total: str, site: int) -> Tensor:
        """Returns x + linear(y), or with a norm after it x + norm(linear(y)).

        The product `out` is recorded separately if it is normed or captured, or has dropout.
        """
        if self.config.norm_after:
            product = self.keep(self.matmul(y, linear, in_block(self._layer(out), PROJECTED_OF[part_of(out)])))
            product = self.drop(self.keep(self.norm(product, out, x.layout)), site)
            return self.keep(ops.add(self.rec, x, product, x.layout, total))
        if not self.apart(out) and not self.batch.dropout:
            return self.keep(self.matmul(y, linear, total, residual=x))
        product = self.drop(self.keep(self.matmul(y, linear, out)), site)
        return self.keep(ops.add(self.rec, x, product, x.layout, total))

    # -- decode -------------------------------------------------------------------------------------------------

    def decode(self) -> None:
        """Records the forward pass of the token in `token` at position pos; writes the next token to `token`.

        A part without the embedding reads a hidden state `[1, C]`, and one without the head lists one. With texts side
        by side, all of this applies to one row of each.
        """
        part, stream = self.part, self.one(self.config.n_embd)
        x = self._embedded(self.token, stream, self.rows or 1) if part.embed else self.hidden_state(stream.rows, stream)
        norms = [self.norm_before(FIRST_NORM, i) for i in part.blocks] + [FINAL_NORM] * part.head
        if not norms:
            self.rec.output(x, HIDDEN)
            return
        row = self._first_row(x, norms[0])
        self._tap(x, 0)
        for i, following in zip(part.blocks, [*norms[1:], None], strict=False):
            row = self.decode_block(row, i, following)
            self._tap(row.x, i + 1)
        if part.head:
            self.choose(row)
        else:
            self.rec.output(ops.from_stream(self.rec, row, HIDDEN) if isinstance(row, ops.Stream) else row.x, HIDDEN)

    def _first_row(self, x: Tensor, norm: str | None) -> DecodedRow:
        """Returns the row before the first block, which begins with this norm; None if no norm follows."""
        strides = self._stream_strides()
        if strides and norm:
            c, gain = self.config, self.gain(norm)
            rms, pairs = c.norm != "layer", self.kernel.pairs
            return ops.stream(self.rec, x, strides, c.layer_norm_epsilon, rms, c.gain_offset, gain, pairs)
        return self.row_sum(x, norm, f"{x.name}.row") if norm else self.plain_row(x)

    def _stream_strides(self) -> int:
        """Returns the parts of a residual stream to which blending adds the products of a block; 0 if it cannot."""
        c = self.config
        blends = self.kernel.blends and self.role == "weight" and not self.rows and not self.taps
        if not blends or c.parallel or c.norm_after or not c.norm_before or not self.part.blocks:
            return 0
        names = (c.tensor(role, i) for i in self.part.blocks for role in ("o", "down"))
        return ops.stream_strides([self.linear(name)[0] for name in names])

    def decode_block(self, row: DecodedRow, i: int, following: str | None) -> DecodedRow:
        """Records block i for one row at position pos, or for one row of each text; the norm `following` is next.

        Norms are applied after the products they feed: one pass cannot both write a row and know its mean, and every
        additional pass costs time.
        """
        return mlp.decode(self, attention.decode(self, row, i), i, following, row)

    def norm_before(self, norm: str, i: int) -> str | None:
        """Returns the activation of the norm before a part of block i; None if the model has none there."""
        return in_block(i, norm) if self.config.norm_before else None

    def plain_row(self, x: Tensor) -> ops.NormedRow:
        """Returns a row that no norm follows."""
        return ops.NormedRow(x, x, x, self.config.layer_norm_epsilon)

    def row_sum(
        self, x: Tensor, norm: str | None, name: str, y: ops.Row | None = None, linear: str | None = None
    ) -> ops.NormedRow:
        """Returns x + linear(y) of one row, ready for the norm with this activation name (None: no norm follows)."""
        c, product = self.config, None
        gain, eps, offset = self.gain(norm) if norm else None, c.layer_norm_epsilon, c.gain_offset
        if y is not None and linear is not None:
            w, b = self.linear(linear)
            product = self.matvec(y, w, linear).plus(b)
        return ops.row_sum(self.rec, x, gain, eps, name, product, None, offset)

    def added(self, row: DecodedRow, norm: str | None, total: str, y: ops.Row, linear: str, out: str) -> DecodedRow:
        """Returns `row_sum`; with a norm after the linear layer, it is x + norm(linear(y)).

        `out` is that norm's activation.
        """
        if isinstance(row, ops.Stream):
            ops.add_product(self.rec, y, *self.linear(linear), row, total)
            return replace(row, gain=self.gain(norm) if norm else None)
        x = row.x
        if not self.config.norm_after:
            return self._unscaled(self.row_sum(x, norm, total, y, linear), norm)
        c, (w, b) = self.config, self.linear(linear)
        eps, offset = c.layer_norm_epsilon, c.gain_offset
        sums = self.matvec(y, w, linear).plus(b)
        branch = ops.row_sum(self.rec, None, self.gain(out), eps, out, sums, None, offset)
        gain = self.gain(norm) if norm else None
        return self._unscaled(ops.row_sum(self.rec, x, gain, eps, total, branch, None, offset), norm)

    def _unscaled(self, row: ops.NormedRow, norm: str | None) -> ops.NormedRow:
        return row if norm else self.plain_row(row.x)

    def products(self, row: DecodedRow, linears: Sequence[str]) -> list[tuple[ops.PartialSums, ops.Normed | None]]:
        """Returns partial sums of a row times each linear layer, and the norm to apply when they are added, if any."""
        layers = [self.linear(linear) for linear in linears]
        weights = [w for w, _ in layers]
        if isinstance(row, ops.Stream):
            found, moments = ops.products(self.rec, row, weights, ", ".join(linears))
            return [self._unfinished(*each, moments) for each in zip(found, linears, layers, strict=True)]
        if self.rows:
            found = [self.matvec(row.scaled, w, linear) for linear, w in zip(linears, weights, strict=True)]
        else:
            found = ops.matvecs(self.rec, row.scaled, weights, linears, self.kernel.contiguous)
        before = row if self.config.norm_before else None
        return [self._unfinished(*each, before) for each in zip(found, linears, layers, strict=True)]

    def _unfinished(
        self,
        sums: ops.PartialSums,
        linear: str,
        layer: tuple[Tensor, Tensor | None],
        before: ops.NormedRow | ops.StreamMoments | None,
    ) -> tuple[ops.PartialSums, ops.Normed | None]:
        """Returns a product that needs its bias, and the norm of the row `before` it if there is one."""
        w, b = layer
        folded = self._folded(linear, w)
        return sums if folded else sums.plus(b), (before, folded) if before else None

    def _folded(self, linear: str, w: Tensor) -> tuple[Tensor, Tensor] | None:
        return ops.folded_norm(self.rec, linear, w.cols) if self.config.norm == "layer" else None

    def last_logits(self, x: Tensor, row: str) -> None:
        """Records the logits of the row of x given by the scalar `row`, and its best token."""
        gain, eps, offset = self.gain(FINAL_NORM), self.config.layer_norm_epsilon, self.config.gain_offset
        self.choose(ops.row_sum(self.rec, x, gain, eps, "last", row=row, offset=offset))

    def choose(self, row: DecodedRow) -> None:
        """Records the logits of a row of the residual stream, and writes the best token to `token`."""
        name, folded = "logits.partial_sums", self._folded(self.head.name, self.head)
        normed: ops.Normed
        if isinstance(row, ops.Stream):
            (sums,), moments = ops.products(self.rec, row, [self.head], name)
            normed = moments, folded
        else:
            sums, normed = self.matvec(row.scaled, self.head, name), (row, folded)
        self.chosen(ops.combine(self.rec, sums, LOGITS, act=self.config.logit_softcap, normed=normed))

    def _tap(self, x: Tensor, blocks: int) -> None:
        if self.taps:
            self.rec.output(x, self.config.stream()[blocks])

    @property
    def keys(self) -> int:
        """Minimum number of keys that one fragment of a row's attention processes."""
        return self.config.context if self.kernel.contiguous else ops.KEYS

    def one(self, cols: int) -> Layout:
        """Returns the layout of a row of `decode`, or of one row of each text."""
        return Layout(self.rows.size if self.rows else 1, cols)

    def adopt(self, size: int, other: Network) -> None:
        """Copies `size` rows pos.. of keys and values from another network's caches to rows row.. of these."""
        for i in self.part.blocks:
            k, v, own_k, own_v = (network.cache(i, which) for network in (other, self) for which in "kv")
            ops.adopt(self.rec, k, v, own_k, own_v, size)

    def matvec(self, x: ops.Row, w: Tensor, name: str) -> ops.PartialSums:
        """Returns partial sums of one row, or of one row of each text, times a weight."""
        if self.rows and isinstance(x, Tensor):
            return ops.few_rows(self.rec, x, w, name, self.kernel.contiguous)
        return ops.matvec(self.rec, x, w, name, contiguous=self.kernel.contiguous)
