"""Records the forward pass of a decoder from its spec, for prompts, for training batches and for single tokens.

`attention` and `mlp` record the two parts of a block. This module has the products that both parts use, the embedding,
the norms, the head, and the order of the blocks. `prefill` records the forward pass of several tokens, and `decode`
that of one token.
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

# For a product of at least this many rows, a GPU decodes integer weights to the format of the product's inputs once,
# before the product, instead of in each fragment. If this format is f16, weights below 1e-6 lose precision, since f16
# has only a few bits for them.
MANY_ROWS = 256

# With norms after attention and MLP: activation that such a norm produces -> the activation that the norm reads.
PROJECTED_OF = {ATTN_OUT: PROJECTED, MLP_OUT: HIDDEN_OUT}
# Activation that a norm produces -> the role of the norm's tensors.
NORMS = {FIRST_NORM: "norm_1", SECOND_NORM: "norm_2", FINAL_NORM: "norm", ATTN_OUT: "post_1", MLP_OUT: "post_2"}


@dataclass(frozen=True)
class Batch:
    """`size` sequences that run side by side from position 0, without caches, so that gradients can be computed.

    Row t * size + s of a tensor is token t of sequence s. `dropout` is the share of values that are dropped, at the
    places where GPT-2 has dropout: the embedding, the pattern, and the outputs of attention and MLP. With `recompute`,
    only the input of each block is stored for the backward pass, which computes the block again.
    """

    size: int
    dropout: float = 0.0
    recompute: bool = False


class SupportsEdits(Protocol):
    """Records interventions: changes of activations, each after the passes that compute the activation."""

    @property
    def names(self) -> Container[str]:
        """Returns the names of the activations that may change."""

    def apply(self, network: Network, x: Tensor, row: str | None = None) -> Tensor:
        """Records the edits of the activation x and returns the result.

        With `row`, a number or the name of a scalar, x has only one row: that of position `pos` + `row`.
        """


@dataclass(frozen=True)
class SideBySide:
    """`size` texts that are decoded side by side, with shared caches of `height` rows (`ops.Rows`)."""

    size: int
    height: int


class Network:
    """A model that is recorded with one kernel and one dtype.

    `names` are activations to list as outputs; each gets a separate tensor instead of being fused with others. With
    f32, `prefill` divides the residual stream and the outputs of norms and products into the kernel's tiles. With a
    packed format (a texel holds more than four values), weights and the inputs of products of several rows are stored
    in that format. These inputs have 8 row tiles (4 if the device has fewer than 8 draw buffers), and their column
    tiles share texels. The residual stream and attention stay f32. A quantised format applies to weights only. The
    inputs of products are then stored in the format that `Format.activations` names, and the attributes `dtype` and
    `format` describe this format. `StoredFormats`, which has a format for each weight, also names a format for the
    inputs of products.

    `role` is the role of the parameters' textures: "state" if training writes them, otherwise "weight". If training
    writes the parameters, they are f32 whatever the dtype, and queries, keys, values and patterns are stored in the
    format of the inputs of products.

    With a `Batch`, `prefill` records the forward pass of its sequences. With `SideBySide` as the batch, `decode` runs
    one token of each text. With a `part`, only the passes of that part are recorded: see `Part`. If the kernel has
    contiguous columns, weights are stored in panels (`Layout`), and in `decode` a fragment of attention takes all keys
    of a row.
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
        self.trains_packed = role == "state" and self.format.packed  # products then never apply `act`
        self.heads = self.dtype if role == "state" else "f32"
        self.kernel = kernel.for_format(self.format, rec.limits)
        self.splits = self._splits()
        self.edits: SupportsEdits | None = None
        self.taps = False  # True: `prefill` and `decode` output the stream before and after every block
        self.decoding = False  # True: `prefill` reads one token, from the state `token`
        self.length = 0  # number of tokens per sequence in the last `prefill`
        self.stream: list[Tensor] = []  # the residual stream in the last `prefill`: before and after each block

    def _splits(self) -> ops.Splits | None:
        if self.role == "state":  # the same on all devices, so that the page and resumed runs get equal sums
            return ops.TRAINING_SPLITS
        if not self.kernel.suits_software:
            return ops.GPU_SPLITS
        # On software GL, splitting the inner dimension K does not speed up products of packed inputs or of a `Batch`.
        return ops.SOFTWARE_SPLITS if self.cached and not self.format.packed else None

    # -- tensors ------------------------------------------------------------------------------------------------

    def parameter(self, name: str) -> Tensor:
        """Returns the texture of a parameter."""
        p, limit = self.config.parameters[name], self.rec.limits.max_texture_size
        rows, cols = p.matrix
        dtype = p.format(self.weights)
        if not p.product:
            layout = fold(rows, cols, limit, dtype=dtype)
        elif self.kernel.contiguous and self.role == "weight":  # in training, shaders write weights: no panels
            layout = ops.panels(self.rec, texels(rows), cols, dtype)
        else:
            layout = fold(texels(rows), cols, limit, dtype=dtype)
        return self.rec.fixed(name, layout, self.role)

    def linear(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Returns the weight and the bias of a linear layer or of a norm; the bias is None if the model has none."""
        bias = f"{name}.bias"
        return self.parameter(f"{name}.weight"), self.parameter(bias) if bias in self.config.parameters else None

    @property
    def head(self) -> Tensor:
        """Returns the weight that turns the output of the final norm into logits, `[n_embd, vocab]`."""
        return self.parameter(self.config.output)

    def cache(self, i: int, which: str) -> Tensor:
        """Returns the state that holds q, k or v of layer i for every position.

        All layers use the same state for q, unless q needs a separate tensor (`apart`).
        """
        name = in_block(i, f"attn.{which}")
        shared = which == "q" and not self.apart(name)
        # If each tile of queries is as wide as the keys, one pass can write the queries, keys and values of a row.
        group = self.config.group if which == "q" and self.places_heads_together and self.role == "weight" else 1
        tiles = (1, group if group + 2 <= self.rec.limits.max_draw_buffers and not self.texts else 1)
        layout = Layout(self.texts.height if self.texts else self.config.context, self.heads_width(name), tiles)
        own = ("texts." if self.texts else "") + ("q" if shared else name)
        return self.rec.fixed(own, layout, "state", half=self.cached and self.config.half_caches)

    @property
    def places_heads_together(self) -> bool:
        """True if one pass should write q, k and v of a row: on the kernel's devices, starting a pass is slow."""
        return self.kernel.blends or self.kernel.suits_software

    def heads_width(self, name: str) -> int:
        """Returns the number of columns of q, k or v: heads side by side, each padded to whole texels."""
        activation = self.config.activations[name]
        return activation.heads * texels(activation.width)

    @property
    def token(self) -> Tensor:
        """Returns the state that holds the token chosen last.

        Its first texel is (id, logit, 1 if a logit is not finite, 1 if the draw is undecided: see `ops.sample`); the
        other texels are described at `ops.TOKEN`. With texts side by side, the state has one such texel for each text.
        """
        if self.rows:
            return self.rec.fixed(f"token.{self.rows.size}", Layout(self.rows.size, 4), "state")
        return self.rec.fixed("token", ops.TOKEN, "state")

    def chosen(self, logits: Tensor) -> None:
        """Records passes that write a row of logits to the state `logits`, and its best token to the state `token`.

        The best token is the one with the greatest logit. With texts side by side, each text has a row of logits.
        """
        state = f"logits.{self.rows.size}" if self.rows else "logits"
        ops.argmax(self.rec, self.rec.output(self.rec.store(logits, state), "logits"), self.token)

    def best(self) -> None:
        """Records passes that write the token with the greatest logit in the state `logits` to `token`."""
        ops.argmax(self.rec, self.rec.kept("logits"), self.token)

    def sample(self, nucleus: bool) -> None:
        """Records passes that draw `token` from the state `logits`; `nucleus` is as in `ops.sample`."""
        ops.sample(self.rec, self.rec.kept("logits"), self.token, self.token, nucleus)

    def _rows(self, texts: SideBySide) -> ops.Rows:
        places = self.rec.fixed(f"places.{texts.size}", Layout(texts.size, 4), "state")
        table = self.rec.fixed(f"table.{texts.size}", Layout(texts.size, self.config.context), "state")
        return ops.Rows(texts.size, places, table)

    def apart(self, name: str) -> bool:
        """True if an activation needs a separate tensor, because it is an output or may be edited."""
        return name in self.names or (self.edits is not None and name in self.edits.names)

    def keep(self, tensor: Tensor) -> Tensor:
        """Returns the activation after its edits, and makes it an output of the entry if it is in `names`."""
        if self.edits:
            tensor = self.edits.apply(self, tensor)
        return self.rec.output(tensor) if tensor.name in self.names else tensor

    def drop(self, x: Tensor, site: int) -> Tensor:
        """Returns x after dropout; x itself if the batch has no dropout. `site` is the dropout's number."""
        rate = self.batch.dropout
        return ops.dropout(self.rec, x, rate, site, f"{x.name}.kept") if rate else x

    # -- norms and embedding ------------------------------------------------------------------------------------------

    def _layer(self, activation: str) -> int:
        return self.config.activations[activation].layer or 0

    def _tensor_of(self, norm: str) -> str:
        return self.config.tensor(NORMS[part_of(norm)], self._layer(norm))

    def gain(self, norm: str) -> Tensor:
        """Returns the gain of a norm; `norm` is the name of the activation that the norm produces."""
        return self.parameter(f"{self._tensor_of(norm)}.weight")

    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """Records and returns the norm of every row of x; `name` is the name of the result."""
        (gain, bias), eps = self.linear(self._tensor_of(name)), self.config.layer_norm_epsilon
        if bias is None:
            return ops.rms_norm(self.rec, x, gain, eps, out, name, self.config.gain_offset)
        return ops.norm(self.rec, x, gain, bias, eps, out, name)

    def embed(self, t: int, out: Layout) -> Tensor:
        """Records and returns the embedding of t tokens of each sequence, in the layout `out`."""
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
        """Records passes to play after the weights are loaded, and again whenever the weights have changed.

        For `decode`, the passes fold every layer norm into the linear layers after it (`ops.norm_fold`). For a model
        with RMS norms nothing is recorded: an RMS norm has no bias to fold, and its gain is applied before the product.
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
        """Records block i for t tokens of each sequence, from the residual stream x; returns the stream after it.

        `normed` is the layout of the outputs of norms.
        """
        return mlp.prefill(self, attention.prefill(self, x, i, t, normed), i, normed, x)

    # -- prefill ------------------------------------------------------------------------------------------------

    def prefill(self, t: int) -> Tensor:
        """Records the forward pass of t tokens of each sequence, from position `pos` on.

        Returns the residual stream after the last block: `[rows, C]`, with a row for each token of each sequence.
        """
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
        """Records `decode` with a tensor for each activation, as in `prefill`, so that edits can change activations."""
        self.decoding = True
        x = self.prefill(1)
        self.decoding = False
        self.finish(x, "0")

    def hidden_state(self, t: int, layout: Layout) -> Tensor:
        """Returns the input that holds the residual stream of t tokens before the first block of the part."""
        return self.rec.fixed(f"{HIDDEN}.{t}", layout, "input")

    def finish(self, x: Tensor, row: str) -> None:
        """Records the output of a part, from the residual stream x after its last block.

        If the part has the head, the output is the logits and the best token of one row; `row` is the number of the
        row, or the name of the scalar that holds the number. Otherwise the output is the residual stream, named
        `hidden`.
        """
        if not self.part.head:
            self.rec.output(x, HIDDEN)
        elif self.edits and (FINAL_NORM in self.edits.names or LOGITS in self.edits.names):
            self._edited_logits(self.edits, x, row)
        else:
            self.last_logits(x, row)

    def _edited_logits(self, edits: SupportsEdits, x: Tensor, row: str) -> None:
        """Records the same as `last_logits`, but with separate tensors for norm and logits, to which edits apply."""
        if x.rows > 1:
            last = self.rec.scratch("last", Layout(1, x.cols))
            ops.take_row(self.rec, x, last)
            x = last
        tc = self.kernel.tile_cols
        y = edits.apply(self, self.norm(x, FINAL_NORM, Layout(1, x.cols, (1, tc), self.dtype)), row)
        logits = self._capped(ops.matmul(self.rec, y, self.head, None, LOGITS, tile_cols=tc))
        self.chosen(edits.apply(self, logits, row))

    def logits(self, x: Tensor, name: str = "logits") -> Tensor:
        """Records the final norm and the logits of every row of x; returns the logits `[rows, vocab]`."""
        tc = self.kernel.tile_cols
        y = self.keep(self.norm(x, FINAL_NORM, Layout(x.rows, x.cols, (x.layout.tiles[0], tc), self.dtype)))
        return self.rec.output(self.keep(self._capped(ops.matmul(self.rec, y, self.head, None, name, tile_cols=tc))))

    def _capped(self, logits: Tensor) -> Tensor:
        """Returns the logits after their soft cap; the logits themselves if the model has no soft cap."""
        cap = self.config.logit_softcap
        return ops.act(self.rec, logits, cap, logits.layout, logits.name) if cap else logits

    def ids(self, t: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Returns the input that holds the ids of t tokens of each sequence, and the inputs with an index of these ids.

        The backward pass reads the index (`ops.sorted_index`). The index is None if no gradients are recorded.
        """
        rec, rows = self.rec, t * self.batch.size
        if self.decoding:
            return self.token, None
        ids = rec.fixed(f"ids.{rows}", Layout(rows, 1), "input")
        if not rec.tape:
            return ids, None
        order, starts = ops.index_layouts(rows, self.config.vocab_size, rec.limits.max_texture_size)
        return ids, (rec.fixed("order", order, "input"), rec.fixed("starts", starts, "input"))

    def heads_of(self, i: int, which: str, t: int) -> Tensor:
        """Returns the tensor for q, k or v of layer i and t tokens: the cache or, without caches, a scratch tensor."""
        if self.cached:
            return self.cache(i, which)
        name = in_block(i, f"attn.{which}")
        return self.rec.scratch(name, one_layer(t * self.batch.size, self.heads_width(name), self.heads))

    def matmul(
        self, x: Tensor, linear: str, name: str, act: str | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Records and returns act(linear(x)) + residual for every row of x; `name` is the name of the result."""
        (w, b), tc = self.linear(linear), self.kernel.tile_cols
        if w.layout.format.quantised and not self.kernel.suits_software and x.rows >= MANY_ROWS:
            decoded = fold(w.rows, w.cols, self.rec.limits.max_texture_size, dtype=self.dtype)
            w = ops.copy(self.rec, w, decoded, f"{w.name}.halves")
        return ops.matmul(
            self.rec, x, w, b, name, act=act, residual=residual, dtype=self.dtype, tile_cols=tc, splits=self.splits
        )

    def add_linear(self, x: Tensor, y: Tensor, linear: str, out: str, total: str, site: int) -> Tensor:
        """Records and returns x + linear(y), or x + norm(linear(y)) if the model has a norm after the layer.

        `total` is the name of the result, and `out` is the name of the term that is added to x. The term gets its own
        tensor if a norm, an edit or dropout changes it, or if it is an output. `site` is the number of the dropout.
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
        """Records the forward pass of one token at position `pos`.

        The state `token` first holds this token, and afterwards the next one. A part without the embedding reads a
        hidden state `[1, C]` instead of the token; a part without the head has a hidden state as its output. With texts
        side by side, the forward pass runs one token of each text.
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
        """Returns the row before the first block.

        `norm` is the activation that the norm of this row produces (None: no norm).
        """
        strides = self._stream_strides()
        if strides and norm:
            c, gain = self.config, self.gain(norm)
            rms, pairs = c.norm != "layer", self.kernel.pairs
            return ops.stream(self.rec, x, strides, c.layer_norm_epsilon, rms, c.gain_offset, gain, pairs)
        return self.row_sum(x, norm, f"{x.name}.row") if norm else self.plain_row(x)

    def _stream_strides(self) -> int:
        """Returns the number of parts of the residual stream (`ops.Stream`) if products are added to it by blending.

        Returns 0 if products are added in separate passes.
        """
        c = self.config
        blends = self.kernel.blends and self.role == "weight" and not self.rows and not self.taps
        if not blends or c.parallel or c.norm_after or not c.norm_before or not self.part.blocks:
            return 0
        names = (c.tensor(role, i) for i in self.part.blocks for role in ("o", "down"))
        return ops.stream_strides([self.linear(name)[0] for name in names])

    def decode_block(self, row: DecodedRow, i: int, following: str | None) -> DecodedRow:
        """Records block i for one row at position `pos`, or for one row of each text; returns the row after the block.

        `following` is the activation that the next norm produces (None: no norm follows). Products read the row before
        the norm, and the norm is applied to the products. The reason is that a pass which writes a row cannot also read
        the row's mean, and that a separate pass for the norm would cost time.
        """
        return mlp.decode(self, attention.decode(self, row, i), i, following, row)

    def norm_before(self, norm: str, i: int) -> str | None:
        """Returns the full name of `norm` in block i, or None if the model has no norms before attention and MLP."""
        return in_block(i, norm) if self.config.norm_before else None

    def plain_row(self, x: Tensor) -> ops.NormedRow:
        """Returns the row x as a `NormedRow` that no norm follows."""
        return ops.NormedRow(x, x, x, self.config.layer_norm_epsilon)

    def row_sum(
        self, x: Tensor, norm: str | None, name: str, y: ops.Row | None = None, linear: str | None = None
    ) -> ops.NormedRow:
        """Records x + linear(y) for one row, and what its next norm needs; without `linear`, the sum is x.

        `norm` is the activation that the next norm produces (None: no norm follows), and `name` is the sum's name.
        """
        c, product = self.config, None
        gain, eps, offset = self.gain(norm) if norm else None, c.layer_norm_epsilon, c.gain_offset
        if y is not None and linear is not None:
            w, b = self.linear(linear)
            product = self.matvec(y, w, linear).plus(b)
        return ops.row_sum(self.rec, x, gain, eps, name, product, None, offset)

    def added(self, row: DecodedRow, norm: str | None, total: str, y: ops.Row, linear: str, out: str) -> DecodedRow:
        """Records row + linear(y), or row + norm(linear(y)) if the model has a norm after the layer.

        Returns the new row with what its next norm needs (`ops.NormedRow`). `norm` is the activation that this norm
        produces (None: no norm follows), `total` is the name of the sum, and `out` is the name of the term that is
        added.
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
        """Records the products of a row and several linear layers.

        Returns, for each layer, partial sums and the norm to apply when they are added up (None: no norm).
        """
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
        """Returns a product and the norm to apply to it; `before` is the row before that norm (None: no norm).

        The product has the bias of the layer, unless the folded norm adds the bias.
        """
        w, b = layer
        folded = self._folded(linear, w)
        return sums if folded else sums.plus(b), (before, folded) if before else None

    def _folded(self, linear: str, w: Tensor) -> tuple[Tensor, Tensor] | None:
        return ops.folded_norm(self.rec, linear, w.cols) if self.config.norm == "layer" else None

    def last_logits(self, x: Tensor, row: str) -> None:
        """Records the logits and the best token of one row of x.

        `row` is the number of the row, or the name of the scalar that holds it.
        """
        gain, eps, offset = self.gain(FINAL_NORM), self.config.layer_norm_epsilon, self.config.gain_offset
        self.choose(ops.row_sum(self.rec, x, gain, eps, "last", row=row, offset=offset))

    def choose(self, row: DecodedRow) -> None:
        """Records the logits of a row of the residual stream, and passes that write the best token to `token`."""
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
        """Returns the minimum number of keys that a fragment processes in the attention of one row."""
        return self.config.context if self.kernel.contiguous else ops.KEYS

    def one(self, cols: int) -> Layout:
        """Returns the layout of one row of `cols` columns, or of one row for each text."""
        return Layout(self.rows.size if self.rows else 1, cols)

    def adopt(self, size: int, other: Network) -> None:
        """Records passes that copy `size` rows of keys and values from another network's caches to this network's.

        The rows begin at row `pos` of the other network's caches, and at row `row` of these caches.
        """
        for i in self.part.blocks:
            k, v, own_k, own_v = (network.cache(i, which) for network in (other, self) for which in "kv")
            ops.adopt(self.rec, k, v, own_k, own_v, size)

    def matvec(self, x: ops.Row, w: Tensor, name: str) -> ops.PartialSums:
        """Records the product of one row, or of one row of each text, and a weight; returns its partial sums."""
        if self.rows and isinstance(x, Tensor):
            return ops.few_rows(self.rec, x, w, name, self.kernel.contiguous)
        return ops.matvec(self.rec, x, w, name, contiguous=self.kernel.contiguous)
