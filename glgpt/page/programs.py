"""The programs of an exported page: recorded for the limits of browsers, once for each kernel a device may prefer."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt import ops
from glgpt.inference.batch import ADOPTED, batch_program
from glgpt.inference.chunks import FEW_SIZES, chunk_sizes
from glgpt.inference.programs import record_capture, record_generation
from glgpt.models.network import Network
from glgpt.models.part import Part
from glgpt.models.spec import LOGITS, PATTERN, SCORES, ModelConfig, Q, in_block
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import KERNELS, Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.program.tensor import Tensor
from glgpt.tuning.kernel_selection import product_program, row_product_program, variants

LEAST = Limits(max_draw_buffers=4)  # of every WebGL2 device: recordings of all draw buffers share the probe of one row
CAPTURE_BYTES = 128 << 20  # the most scratch that one capture entry may take
SEVERAL = 4  # continuations of a prompt that a page writes side by side
EDIT = "edit."  # what the names of the states of `PageEdits` begin with
OWN_ROWS = 256  # tokens that each of them may have at least, where the context holds so many


@dataclass(frozen=True)
class Recording:
    """One way of recording a model: a kernel, and the draw buffers it takes."""

    kernel: Kernel
    draw_buffers: int

    @property
    def rows(self) -> str:
        """How its one-row products take their columns (`tuning.kernel_selection.COLUMNS`)."""
        return "contiguous" if self.kernel.contiguous else "strided"

    @property
    def name(self) -> str:
        """Names its files."""
        return self.kernel.label

    @property
    def limits(self) -> Limits:
        """What a device must allow at least."""
        return Limits(max_draw_buffers=self.draw_buffers)


def page_recordings(dtype: str) -> list[Recording]:
    """Those among which a page chooses by measuring; the first has weights without panels, as the shards do.

    A packed format has one kernel for each number of draw buffers.
    """
    found = []
    for kernel in KERNELS.values():
        buffers = 4 if kernel.tile_rows * kernel.tile_cols <= 4 else 8
        found += [Recording(k, buffers) for k in variants([kernel])]
    fmt = FORMATS[FORMATS[dtype].activations or dtype]
    if not fmt.packed:
        return found
    own: dict[tuple[str, Kernel], Recording] = {}
    for r in found:
        own.setdefault((r.rows, r.kernel.for_format(fmt, r.limits)), r)
    return list(own.values())


class PageEdits:
    """Edits of every part that a page can change, by states that it writes.

    `edit.NAME.gain`, `edit.NAME.shift` `[2, columns]` and `edit.NAME.at` (`ops.edit_one`) of the heads of each layer, of
    what attention and MLP add to the residual stream, and of the stream after each block; `edit.NAME.how`
    (`ops.set_pattern`) of attention's patterns.
    """

    def __init__(self, config: ModelConfig) -> None:
        known, stream = config.activations, set(config.stream()[1:])
        rows = (a for a in known.values() if a.kind == "heads" or a.added or a.name in stream)
        self.rows = frozenset(a.name for a in rows)
        self.heads = {a.name: a.heads for a in known.values() if a.kind == "pattern"}
        self.names = self.rows | self.heads.keys()

    def apply(self, network: Network, x: Tensor, _: str | None = None) -> Tensor:
        """x as it is asked for, where x is one of them."""
        rec = network.rec
        if x.name in self.heads:
            heads = self.heads[x.name]
            return ops.set_pattern(rec, x, rec.fixed(f"{EDIT}{x.name}.how", Layout(1, 4 * heads), "state"), heads)
        if x.name not in self.rows:
            return x
        gain, shift = (rec.fixed(f"{EDIT}{x.name}.{part}", Layout(2, x.cols), "state") for part in ("gain", "shift"))
        return ops.edit_one(rec, x, gain, shift, rec.fixed(f"{EDIT}{x.name}.at", Layout(1, 4), "state"))


def generate_program(
    config: ModelConfig,
    recording: Recording,
    dtype: str,
    part: Part | None = None,
    edits: PageEdits | None = None,
    *,
    taps: bool = False,
    tail: bool = False,
) -> Program:
    """`generation_program` with a query cache for every layer, and entries that look inside.

    `attention_I_N` lists `h.I.attn.scores` and `h.I.attn.pattern` of N rows from `pos`, `ahead_I_N` the scores that
    the mask hides (`h.I.attn.ahead`: of N keys from `pos`, each with every query up to its own position). `lens` plays
    the token in `ids.1` at `pos` and lists after every block the residual stream and the logits it would give if it
    were the last. None of them changes what outlives it. Of a `part`, the entries are those of its own blocks, and
    `lens` is there only with the head. With `cuts`, every entry has them. With `taps`, `prefill_N` and `decode` list
    the residual stream after the embedding and every block. With `tail`, `head` ends a token from its hidden state.
    """
    rec = Recorder(recording.limits)
    names = {in_block(i, Q) for i in range(config.n_layer)}
    names |= edits.names if edits else set()
    network = config.network(rec, recording.kernel, dtype, names, part=part)
    network.edits, network.taps = edits, taps
    head = config.network(rec, recording.kernel, dtype, names, part=Part.head_of(config)) if tail else None
    sizes = record_generation(network, head, FEW_SIZES)
    network.taps = False
    for i in network.part.blocks:
        q, k = network.cache(i, "q"), network.cache(i, "k")
        for size in sizes:
            tile_rows = network.kernel.tile_rows if size > 1 else 1
            form = (size, tile_rows, config.n_head, network.scale(i))
            with rec.entry(f"attention_{i}_{size}"):
                scores = rec.output(ops.scores(rec, q, k, *form, in_block(i, SCORES)))
                pattern = ops.softmax(rec, scores, config.n_head, in_block(i, PATTERN))
                rec.output(edits.apply(network, pattern) if edits else pattern)
            with rec.entry(f"ahead_{i}_{size}"):
                rec.output(ops.scores(rec, k, q, *form, in_block(i, "attn.ahead")))
    if network.part.head:
        with rec.entry("lens"):
            _lens(network)
    return rec.program()


def _lens(network: Network) -> None:
    """The forward pass of one token; lists each state of the residual stream and its logits (nostalgebraist 2020)."""
    network.prefill(1)
    for x in network.stream:
        network.logits(network.rec.output(x), f"lens.{x.name}")


def capture_recording(
    config: ModelConfig, recording: Recording, dtype: str, part: Part | None = None, tail: bool = False
) -> Program:
    """`capture_program` of every intermediate, in the chunk sizes whose scratch stays within CAPTURE_BYTES.

    With `tail`, an entry `head` beside them continues from the hidden state in `hidden.1` to the logits.
    """
    limits, kernel, names = recording.limits, recording.kernel, frozenset(config.activations)

    def record(sizes: tuple[int, ...]) -> Program:
        rec = Recorder(limits)
        network = config.network(rec, kernel, dtype, names, part=part)
        head = config.network(rec, kernel, dtype, names, part=Part.head_of(config)) if tail else None
        for size in sizes:
            record_capture(network, f"logits_{size}", size)
        if head:
            record_capture(head, "head", 1)
        return rec.program()

    sizes = chunk_sizes(config, kernel.tile_rows, limits, FEW_SIZES)
    return record(tuple(s for s in sizes if s == 1 or record((s,)).nbytes(("scratch",)) <= CAPTURE_BYTES))


def several_program(config: ModelConfig, recording: Recording, dtype: str, main: Program) -> Program:
    """`batch_program` of `SEVERAL` texts that begin with one prompt, over the textures of `main`, a generation program.

    Rows of the caches: those of the prompt, and behind them by turns those of each text.
    """
    view, context = main.views[LOGITS], config.n_positions
    rows = min(context + SEVERAL * OWN_ROWS, SEVERAL * context, recording.limits.max_texture_size)
    height = max(rows, ADOPTED[0])
    logits = Layout(view.rows, view.cols, view.tiles, view.dtype)
    return batch_program(config, recording.limits, recording.kernel, dtype, height, logits, sizes=(SEVERAL,))


def probe_programs(recording: Recording, dtype: str) -> dict[str, Program]:
    """What a page measures of this recording, as `glgpt.tuning` does: one product, and products of one row."""
    return {
        "product": product_program(recording.limits, recording.kernel, dtype),
        "row": row_product_program(recording.kernel.contiguous, dtype, LEAST),
    }
