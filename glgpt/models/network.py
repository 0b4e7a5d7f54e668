"""What the forward passes of all families share: textures of parameters and caches, products, the residual stream."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from glgpt import ops
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import FINAL_NORM, FIRST_NORM, LOGITS, PATTERN, SCORES, ModelConfig, in_block
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout, fold, one_layer, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

# Of a product: with so many, a GPU decodes integers once beforehand, not in each of its fragments. The weight is then
# what f16 would hold: numbers below 1e-6 lose bits that their scales had.
MANY_ROWS = 256


@dataclass(frozen=True)
class Batch:
    """Sequences run side by side from position 0, without caches, so that they can be differentiated.

    A tensor's rows are then t * size + sequence. `dropout` is the share dropped where GPT-2 does (embedding, pattern,
    what each half of a block adds); `recompute` keeps only the blocks' inputs for the backward pass.
    """

    size: int
    dropout: float = 0.0
    recompute: bool = False


class SupportsEdits(Protocol):
    """Changes of the activations `names`, recorded where they are computed."""

    @property
    def names(self) -> Container[str]:
        """The activations that may change."""

    def apply(self, network: Network, x: Tensor, row: str | None = None) -> Tensor:
        """The activation x after its edits; with `row`, x is the one row of position pos + row."""


@dataclass(frozen=True)
class SideBySide:
    """`size` texts that are decoded side by side over caches of `height` rows that they share (`ops.Rows`)."""

    size: int
    height: int


class Network(ABC):
    """A model recorded with one kernel and dtype; `names` are the activations to list, which also stay unfused.

    f32: every tensor is cut into the kernel's tiles. A packed format: weights and the inputs of products are stored in
    it, in 8 row tiles (4 with four draw buffers) of the column tiles that share a texel; the residual stream and
    attention stay f32. A quantised format is that of weights alone: the inputs of products are stored as its
    `activations`, which `dtype` and `format` then are.
    Where training writes the parameters (`role` "state"), these stay f32 whatever the dtype, and attention's heads and
    pattern are stored as activations are.

    With a `batch`, `prefill` runs one. `role` is that of the parameters' textures: "state" where training writes them.
    With `SideBySide` in place of a batch, `decode` takes a token of each text.
    With a `part`, the passes are those of that part alone: see `Part`.
    A kernel of contiguous columns gets weights in panels, and all keys of a row at once.
    """

    config: ModelConfig

    def __init__(
        self,
        rec: Recorder,
        config: ModelConfig,
        kernel: Kernel,
        dtype: str = "f32",
        names: Container[str] = (),
        batch: Batch | SideBySide | None = None,
        role: str = "weight",
        part: Part | None = None,
    ) -> None:
        self.weights = FORMATS[dtype if role == "weight" else "f32"]
        self.rec, self.config, self.dtype, self.names = rec, config, FORMATS[dtype].activations or dtype, names
        self.part = part or Part.whole(config)
        self.texts = batch if isinstance(batch, SideBySide) else None
        batch = None if isinstance(batch, SideBySide) else batch
        self.batch, self.cached, self.role = batch or Batch(1), batch is None, role
        self.rows = self._rows(self.texts) if self.texts else None
        self.format = FORMATS[self.dtype]
        self.trains_packed = role == "state" and self.format.packed  # with a tape or not, the same numbers
        self.heads = self.dtype if role == "state" else "f32"
        self.kernel = kernel.for_format(self.format, rec.limits)
        self.splits = self._splits()
        self.edits: SupportsEdits | None = None
        self.taps = False  # whether `prefill` and `decode` list the residual stream after every block
        self.decoding = False  # whether the ids are the token in `token`
        self.length = 0  # rows of each sequence in the last `prefill`
        self.stream: list[Tensor] = []  # the residual stream of the last `prefill`, as `ModelConfig.stream` names it

    def _splits(self) -> ops.Splits | None:
        if self.role == "state":  # whatever the device: a page's program is for all, and a resumed run keeps its sums
            return ops.TRAINING_SPLITS
        if not self.kernel.suits_software:
            return ops.GPU_SPLITS
        # On software GL packed products, and those of texts without caches, gain nothing from splitting K.
        return ops.SOFTWARE_SPLITS if self.cached and not self.format.packed else None

    # -- tensors ------------------------------------------------------------------------------------------------

    def parameter(self, name: str) -> Tensor:
        """The texture of a parameter."""
        p, limit = self.config.parameters[name], self.rec.limits.max_texture_size
        rows, cols = p.matrix
        dtype = self.weights.name if p.layer is not None else self.weights.outer or self.weights.name
        if not p.product:
            layout = fold(rows, cols, limit, dtype=self.weights.positions if p.table else "f32")
        elif self.kernel.contiguous and self.role == "weight":  # training writes no panels
            layout = ops.panels(self.rec, texels(rows), cols, dtype)
        else:
            layout = fold(texels(rows), cols, limit, dtype=dtype)
        return self.rec.fixed(name, layout, self.role)

    def linear(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of a linear layer; None where the family has no biases."""
        bias = f"{name}.bias"
        return self.parameter(f"{name}.weight"), self.parameter(bias) if bias in self.config.parameters else None

    @property
    def head(self) -> Tensor:
        """The weight that turns the last norm into logits, `[n_embd, vocab]`."""
        return self.parameter(self.config.output)

    def cache(self, i: int, which: str) -> Tensor:
        """The state that holds q, k or v of layer i for every position; q is shared by all layers unless kept."""
        name = in_block(i, f"attn.{which}")
        shared = which == "q" and not self.apart(name)
        layout = Layout(self.texts.height if self.texts else self.config.context, self.heads_width(name))
        return self.rec.fixed(("texts." if self.texts else "") + ("q" if shared else name), layout, "state")

    def heads_width(self, name: str) -> int:
        """Columns of q, k or v: heads side by side, each padded to whole texels."""
        activation = self.config.activations[name]
        return activation.heads * texels(activation.width)

    @property
    def token(self) -> Tensor:
        """The token chosen last, a state: texel (id, logit, not finite, undecided), and what `sample` adds.

        Of texts side by side the first texel of each.
        """
        if self.rows:
            return self.rec.fixed(f"token.{self.rows.size}", Layout(self.rows.size, 4), "state")
        return self.rec.fixed("token", ops.TOKEN, "state")

    def chosen(self, logits: Tensor) -> None:
        """Keeps a row of logits in the state `logits`, and its best token in `token`; of texts, those of each."""
        state = f"logits.{self.rows.size}" if self.rows else "logits"
        ops.argmax(self.rec, self.rec.output(self.rec.store(logits, state), "logits"), self.token)

    def best(self) -> None:
        """The best token of the state `logits` into `token`."""
        ops.argmax(self.rec, self.rec.kept("logits"), self.token)

    def sample(self, nucleus: bool) -> None:
        """Draws from the state `logits` into `token`; with top-p and no top-k the `nucleus` is searched for."""
        ops.sample(self.rec, self.rec.kept("logits"), self.token, self.token, nucleus)

    def _rows(self, texts: SideBySide) -> ops.Rows:
        places = self.rec.fixed(f"places.{texts.size}", Layout(texts.size, 4), "state")
        table = self.rec.fixed(f"table.{texts.size}", Layout(texts.size, self.config.context), "state")
        return ops.Rows(texts.size, places, table)

    def scale(self, i: int) -> float:
        """What the scores of layer i are multiplied with."""
        return float(self.config.d_head**-0.5)

    def apart(self, name: str) -> bool:
        """True if an activation has a tensor of its own, since it is listed or may be edited."""
        return name in self.names or (self.edits is not None and name in self.edits.names)

    def keep(self, tensor: Tensor) -> Tensor:
        """The tensor after its edits; lists it among the entry's outputs if it is wanted."""
        if self.edits:
            tensor = self.edits.apply(self, tensor)
        return self.rec.output(tensor) if tensor.name in self.names else tensor

    def pattern(self, q: Tensor, k: Tensor, i: int, t: int, tile_rows: int) -> Tensor:
        """The pattern of layer i for t tokens of each sequence, `[t n_head, keys]`."""
        n, n_head, scores, pattern = self.batch.size, self.config.n_head, in_block(i, SCORES), in_block(i, PATTERN)
        ends = self._ends_at_position(scores)
        s = ops.scores(self.rec, q, k, t, tile_rows, n_head, self.scale(i), scores, n, to_position=ends)
        ends = self._ends_at_position(pattern)
        return self.keep(ops.softmax(self.rec, self.keep(s), n * n_head, pattern, self.heads, to_position=ends))

    def _ends_at_position(self, name: str) -> bool:
        """Whether nobody reads what an activation of attention holds beyond a row's position."""
        return self.cached and self.edits is None and name not in self.names

    def drop(self, x: Tensor, site: int) -> Tensor:
        """x after dropout, where there is any."""
        rate = self.batch.dropout
        return ops.dropout(self.rec, x, rate, site, f"{x.name}.kept") if rate else x

    # -- what a family defines ------------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, t: int, out: Layout) -> Tensor:
        """The embedding of t tokens of each sequence."""

    @abstractmethod
    def block(self, x: Tensor, i: int, t: int, normed: Layout) -> Tensor:
        """Block i for t tokens of each sequence; `normed` is the layout of a norm's output."""

    @abstractmethod
    def norm(self, x: Tensor, name: str, out: Layout) -> Tensor:
        """The norm of every row whose activation has this name."""

    @abstractmethod
    def prepare(self) -> None:
        """What must be played once when the weights are there, and again whenever they have changed."""

    @abstractmethod
    def embed_token(self) -> Tensor:
        """The embedding of the one token in `token`, at position pos, `[1, C]`."""

    @abstractmethod
    def row_sum(
        self, x: Tensor, norm: str | None, name: str, y: ops.Row | None = None, linear: str | None = None
    ) -> ops.NormedRow:
        """x + linear(y) of one row, ready for the norm whose activation has this name; None: no norm follows."""

    @abstractmethod
    def decode_block(self, row: ops.NormedRow, i: int, following: str | None) -> ops.NormedRow:
        """Block i for one row at position pos; its output is ready for the norm `following`."""

    @abstractmethod
    def last_logits(self, x: Tensor, row: str) -> None:
        """The logits of the row of x that the scalar `row` names, and its best token."""

    @abstractmethod
    def choose(self, row: ops.NormedRow) -> None:
        """The logits of a row of the residual stream, and the best token into `token`."""

    # -- prefill ------------------------------------------------------------------------------------------------

    def prefill(self, t: int) -> Tensor:
        """The forward pass of t tokens at positions pos..: returns the residual stream after the last block, [t, C]."""
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
        """As `decode`, with a tensor for each activation, as `prefill` has them: what an edit needs."""
        self.decoding = True
        x = self.prefill(1)
        self.decoding = False
        self.finish(x, "0")

    def hidden_state(self, t: int, layout: Layout) -> Tensor:
        """The input that holds the residual stream of t tokens before the part's first block."""
        return self.rec.fixed(f"{HIDDEN}.{t}", layout, "input")

    def finish(self, x: Tensor, row: str) -> None:
        """What a part ends with: the logits of one row and its best token, or the residual stream, as `hidden`."""
        if not self.part.head:
            self.rec.output(x, HIDDEN)
        elif self.edits and (FINAL_NORM in self.edits.names or LOGITS in self.edits.names):
            self._edited_logits(self.edits, x, row)
        else:
            self.last_logits(x, row)

    def _edited_logits(self, edits: SupportsEdits, x: Tensor, row: str) -> None:
        """As `last_logits`, with a tensor for the norm and for the logits, which edits may change."""
        if x.rows > 1:
            last = self.rec.scratch("last", Layout(1, x.cols))
            ops.take_row(self.rec, x, last)
            x = last
        tc = self.kernel.tile_cols
        y = edits.apply(self, self.norm(x, FINAL_NORM, Layout(1, x.cols, (1, tc), self.dtype)), row)
        logits = ops.matmul(self.rec, y, self.head, None, LOGITS, tile_cols=tc)
        self.chosen(edits.apply(self, logits, row))

    def logits(self, x: Tensor, name: str = "logits") -> Tensor:
        """The final norm and the logits of every row, [t, vocab]."""
        tc = self.kernel.tile_cols
        y = self.keep(self.norm(x, FINAL_NORM, Layout(x.rows, x.cols, (x.layout.tiles[0], tc), self.dtype)))
        return self.rec.output(self.keep(ops.matmul(self.rec, y, self.head, None, name, tile_cols=tc)))

    def ids(self, t: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The input that holds the ids of t tokens of each sequence and, for the backward pass, their sorted index."""
        rec, rows = self.rec, t * self.batch.size
        if self.decoding:
            return self.token, None
        ids = rec.fixed(f"ids.{rows}", Layout(rows, 1), "input")
        if not rec.tape:
            return ids, None
        order, starts = ops.index_layouts(rows, self.config.vocab_size, rec.limits.max_texture_size)
        return ids, (rec.fixed("order", order, "input"), rec.fixed("starts", starts, "input"))

    def heads_of(self, i: int, which: str, t: int) -> Tensor:
        """What holds q, k or v of layer i for t tokens: their place in the caches, or a tensor of their own."""
        if self.cached:
            return self.cache(i, which)
        name = in_block(i, f"attn.{which}")
        return self.rec.scratch(name, one_layer(t * self.batch.size, self.heads_width(name), self.heads))

    def matmul(
        self, x: Tensor, linear: str, name: str, act: str | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Every row through a linear layer."""
        (w, b), tc = self.linear(linear), self.kernel.tile_cols
        if w.layout.format.quantised and not self.kernel.suits_software and x.rows >= MANY_ROWS:
            halves = fold(w.rows, w.cols, self.rec.limits.max_texture_size, dtype=self.dtype)
            w = ops.copy(self.rec, w, halves, f"{w.name}.halves")
        return ops.matmul(
            self.rec, x, w, b, name, act=act, residual=residual, dtype=self.dtype, tile_cols=tc, splits=self.splits
        )

    def add_linear(self, x: Tensor, y: Tensor, linear: str, out: str, total: str, site: int) -> Tensor:
        """x + linear(y), recorded apart where the product `out` is wanted by itself or dropped from."""
        if not self.apart(out) and not self.batch.dropout:
            return self.keep(self.matmul(y, linear, total, residual=x))
        product = self.drop(self.keep(self.matmul(y, linear, out)), site)
        return self.keep(ops.add(self.rec, x, product, x.layout, total))

    # -- decode -------------------------------------------------------------------------------------------------

    def decode(self) -> None:
        """The forward pass of the one token in `token`, at position pos; ends with its successor in `token`.

        A part takes and gives a hidden state `[1, C]` where it lacks the embedding or the head. With texts side by
        side, all this is of a row of each.
        """
        part, stream = self.part, self.one(self.config.n_embd)
        x = self.embed_token() if part.embed else self.hidden_state(stream.rows, stream)
        norms = [in_block(i, FIRST_NORM) for i in part.blocks] + [FINAL_NORM] * part.head
        if not norms:
            self.rec.output(x, HIDDEN)
            return
        row = self.row_sum(x, norms[0], f"{x.name}.row")
        self._tap(x, 0)
        for i, following in zip(part.blocks, [*norms[1:], None], strict=False):
            row = self.decode_block(row, i, following)
            self._tap(row.x, i + 1)
        if part.head:
            self.choose(row)
        else:
            self.rec.output(row.x, HIDDEN)

    def _tap(self, x: Tensor, blocks: int) -> None:
        if self.taps:
            self.rec.output(x, self.config.stream()[blocks])

    @property
    def keys(self) -> int:
        """The least number of keys that one fragment of a row's attention takes."""
        return self.config.context if self.kernel.contiguous else ops.KEYS

    def one(self, cols: int) -> Layout:
        """The layout of what `decode` computes of the one token, or of that of each text."""
        return Layout(self.rows.size if self.rows else 1, cols)

    def scores_of(self, q: Tensor, k: Tensor, i: int, name: str) -> Tensor:
        """The scores of layer i of the one query, or of that of each text."""
        n_head = self.config.n_head
        if self.rows:
            return ops.scores_rows(self.rec, q, k, n_head, self.scale(i), name, self.rows)
        return ops.scores(self.rec, q, k, 1, 1, n_head, self.scale(i), name)

    def adopt(self, size: int, other: Network) -> None:
        """Copies `size` rows pos.. of keys and values from the caches of another network to rows row.. of these."""
        for i in self.part.blocks:
            k, v, own_k, own_v = (network.cache(i, which) for network in (other, self) for which in "kv")
            ops.adopt(self.rec, k, v, own_k, own_v, size)

    def matvec(self, x: ops.Row, w: Tensor, name: str) -> ops.PartialSums:
        """Partial sums of one row, or of the few that are decoded side by side, times a weight."""
        if self.rows and isinstance(x, Tensor):
            return ops.few_rows(self.rec, x, w, name, self.kernel.contiguous)
        return ops.matvec(self.rec, x, w, name, contiguous=self.kernel.contiguous)
