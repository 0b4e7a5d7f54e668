"""Records the programs of an exported page for the limits of browsers, once for each kernel that a page may choose.

A kernel is the block of rows and columns of a matrix product that one fragment computes. A one-row product multiplies a
single row by a weight, as in decoding a token. A recording is the set of programs for one kernel. A probe is a small
program whose time a page measures to choose a recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from glgpt import ops
from glgpt.inference.batching.batch import ADOPTED, batch_program
from glgpt.inference.chunks import FEW_SIZES, chunk_sizes
from glgpt.inference.constraints.masking import masked_program
from glgpt.inference.programs import record_capture, record_generation
from glgpt.models.activations import LOGITS, PATTERN, SCORES, Q, in_block
from glgpt.models.attention import limits_of
from glgpt.models.network import Network
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.page.documents.manifest import RecordingFiles
from glgpt.page.split import SplitPage
from glgpt.program.formats import FORMATS, STORED
from glgpt.program.kernel import KERNELS, Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.program.tensor import Tensor
from glgpt.program.weight_formats import WeightFormats, activations
from glgpt.tuning.kernel_selection import product_program, row_product_program, variants

# WebGL2's minimum, for programs that recordings with different draw buffers share: row probes and masked programs
MIN_LIMITS = Limits(max_draw_buffers=4)
MAX_CAPTURE_BYTES = 128 << 20  # maximum bytes of scratch textures (intermediate results) of a capture entry
SEVERAL = 4  # number of continuations of a prompt that a page generates at once
EDIT = "edit."  # prefix of the states of `PageEdits`
# Cache rows for each continuation, in addition to the rows of one full context. There are fewer if the maximum texture
# size does not allow them, or if fewer are enough for `SEVERAL` full contexts.
MIN_OWN_ROWS = 256


@dataclass(frozen=True)
class Recording:
    """A way of recording a model: a kernel, and the number of draw buffers that it needs.

    If the kernel `blends`, the recording is for devices that blend floats. Such a device uses it instead of the
    recording without blending. If the kernel also has `pairs`, two neighbouring pixels add up their sums before
    blending. They exchange the sums by derivatives, so the device must compute separate derivatives for each column of
    a quad (2 x 2 pixels). Such a device uses this recording instead of the two recordings without pairs.
    """

    kernel: Kernel
    draw_buffers: int

    @property
    def rows(self) -> Literal["strided", "contiguous"]:
        """Returns which columns a fragment takes in one-row products: a key of `tuning.kernel_selection.COLUMNS`."""
        return "contiguous" if self.kernel.contiguous else "strided"

    @property
    def name(self) -> str:
        """Returns the part of the file names that identifies the recording."""
        return self.kernel.label

    @property
    def plain(self) -> Recording:
        """Returns the recording without blending; both have the same probes, captures and program of several texts."""
        return replace(self, kernel=self.kernel.unblended)

    @property
    def unpaired(self) -> Recording:
        """Returns the recording without pairs; both have the same program with interventions."""
        return replace(self, kernel=replace(self.kernel, pairs=False))

    @property
    def limits(self) -> Limits:
        """Returns the limits that a device must support."""
        return Limits(max_draw_buffers=self.draw_buffers)


def page_recordings(dtype: WeightFormats) -> list[Recording]:
    """Returns the recordings among which a page chooses by measuring.

    In the first recording, weights have no panels (strips of contiguous columns), as in the shards (the page's files of
    weights). If the inputs of products are stored in a packed format (a texel holds more than four values), the format
    determines the kernel's tiles. There is then only one kernel for each kind of columns (`rows`) and each number of
    draw buffers.
    """
    found = []
    for kernel in KERNELS.values():
        buffers = 4 if kernel.tile_rows * kernel.tile_cols <= 4 else 8
        found += [Recording(k, buffers) for k in variants([kernel])]
    fmt = FORMATS[activations(dtype)]
    if fmt.packed:
        own: dict[tuple[str, Kernel], Recording] = {}
        for r in found:
            own.setdefault((r.rows, r.kernel.for_format(fmt, r.limits)), r)
        found = list(own.values())
    blending = [r for r in found if r.draw_buffers == 8 and r.rows == "strided"]
    for pairs in (False, True):
        found += [replace(r, kernel=replace(r.kernel, blends=True, pairs=pairs)) for r in blending]
    return found


class PageEdits:
    """Interventions on every activation that a page can change, controlled by states (textures) that the page writes.

    NAME is the name of an activation. The states `edit.NAME.gain`, `edit.NAME.shift` and `edit.NAME.at` (see
    `ops.edit_one`) change the heads of each block, the outputs of attention and MLP, and the residual stream after each
    block; gain and shift have the shape `[2, columns]`. `edit.NAME.how` (see `ops.set_pattern`) changes attention
    patterns.
    """

    def __init__(self, config: ModelConfig) -> None:
        known, stream = config.activations, set(config.stream()[1:])
        rows = (a for a in known.values() if a.kind == "heads" or a.added or a.name in stream)
        self.rows = frozenset(a.name for a in rows)
        self.heads = {a.name: a.heads for a in known.values() if a.kind == "pattern"}
        self.names = self.rows | self.heads.keys()

    def apply(self, network: Network, x: Tensor, _: str | None = None) -> Tensor:
        """Records the interventions on `x` and returns their result; returns `x` itself if there are none."""
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
    dtype: WeightFormats,
    part: Part | None = None,
    edits: PageEdits | None = None,
    *,
    taps: bool = False,
    tail: bool = False,
) -> Program:
    """Records the entries of `inference.programs.record_generation`, and entries for inspection.

    An entry is a named list of passes. Each block has a separate cache of queries, which `attention_I_N` and
    `ahead_I_N` read. `attention_I_N` outputs `h.I.attn.scores` and `h.I.attn.pattern` of block I for the N positions
    from `pos` on. `ahead_I_N` outputs `h.I.attn.ahead`: the scores of each of the N keys from `pos` on with all queries
    up to the key's position. Causal attention masks all of these scores except that of the query at the key's position.
    `lens` runs the token in `ids.1` at `pos`. It outputs the residual stream after the embedding and after every block,
    and for each of these states the logits that the model would have without the later blocks. `lens` writes row `pos`
    of the caches; the other entries for inspection change no persistent states.

    With a `part`, there are only entries of the part's blocks, and `lens` only if the part has the head. With `edits`,
    `prefill_N`, `decode`, `lens` and the pattern in `attention_I_N` apply them. With `taps`, `prefill_N` and `decode`
    also output the residual stream after the embedding and after every block. With `tail`, the entry `head` continues
    from a token's hidden state to its logits.
    """
    rec = Recorder(recording.limits)
    names = {in_block(i, Q) for i in range(config.n_layer)}
    names |= edits.names if edits else set()
    network = Network(rec, config, recording.kernel, dtype, names, part=part)
    network.edits, network.taps = edits, taps
    head = Network(rec, config, recording.kernel, dtype, names, part=Part.head_of(config)) if tail else None
    sizes = record_generation(network, head, FEW_SIZES, fused=edits is None)
    network.taps = False
    for i in network.part.blocks:
        q, k = network.cache(i, "q"), network.cache(i, "k")
        for size in sizes:
            tile_rows = network.kernel.tile_rows if size > 1 else 1
            rows = ops.AttentionRows(size, config.n_head, config.scale(i), limits=limits_of(config, i))
            with rec.entry(f"attention_{i}_{size}"):
                scores = rec.output(ops.scores(rec, q, k, rows, tile_rows, in_block(i, SCORES)))
                pattern = ops.softmax(rec, scores, config.n_head, in_block(i, PATTERN))
                rec.output(edits.apply(network, pattern) if edits else pattern)
            with rec.entry(f"ahead_{i}_{size}"):
                rec.output(ops.scores(rec, k, q, rows, tile_rows, in_block(i, "attn.ahead")))
    if network.part.head:
        with rec.entry("lens"):
            _lens(network)
    return rec.program()


def _lens(network: Network) -> None:
    """Records a token's forward pass; outputs each state of the residual stream and the state's logits (logit lens)."""
    network.prefill(1)
    for x in network.stream:
        network.logits(network.rec.output(x), f"lens.{x.name}")


def capture_recording(
    config: ModelConfig, recording: Recording, dtype: WeightFormats, part: Part | None = None, tail: bool = False
) -> Program:
    """Records the entries `logits_N` of `inference.programs.capture_program`, which output every activation.

    There is an entry for N = 1 and for each chunk size N whose scratch textures take at most `MAX_CAPTURE_BYTES`. With
    `tail`, an additional entry `head` continues from the hidden state in `hidden.1` to the logits.
    """
    limits, kernel, names = recording.limits, recording.kernel, frozenset(config.activations)

    def record(sizes: tuple[int, ...]) -> Program:
        rec = Recorder(limits)
        network = Network(rec, config, kernel, dtype, names, part=part)
        head = Network(rec, config, kernel, dtype, names, part=Part.head_of(config)) if tail else None
        for size in sizes:
            record_capture(network, f"logits_{size}", size)
        if head:
            record_capture(head, "head", 1)
        return rec.program()

    sizes = chunk_sizes(config, kernel.tile_rows, limits, FEW_SIZES)
    largest = next(s for s in sizes if s == 1 or record((s,)).nbytes(("scratch",)) <= MAX_CAPTURE_BYTES)
    return record(tuple(s for s in sizes if s <= largest))


def several_program(config: ModelConfig, recording: Recording, dtype: WeightFormats, logits: Layout) -> Program:
    """Records `inference.batching.batch.batch_program` for `SEVERAL` texts with a common prompt.

    The player of this program shares weights and states with the player of a generation program; `logits` is the layout
    of the logits in that program. The shared caches hold the rows of the prompt, followed by the interleaved rows of
    the texts: each step adds one row for each text.
    """
    context = config.n_positions
    rows = min(context + SEVERAL * MIN_OWN_ROWS, SEVERAL * context, recording.limits.max_texture_size)
    height = max(rows, ADOPTED[0])
    return batch_program(config, recording.limits, recording.kernel, dtype, height, logits, sizes=(SEVERAL,))


def _logits(main: Program) -> Layout:
    """Returns the layout of the state `logits` of a generation program."""
    view = main.views[LOGITS]
    return Layout(view.rows, view.cols, view.tiles, view.dtype)


def product_probe(recording: Recording, dtype: str) -> Program:
    """Returns the program with which a page measures products with a recording's kernel, as `glgpt.tuning` does."""
    return product_program(recording.limits, recording.kernel, dtype)


def row_probe(recording: Recording, dtype: str) -> Program:
    """Returns the program with which a page measures one-row products with a recording's kind of columns (`rows`)."""
    return row_product_program(recording.kernel.contiguous, dtype, MIN_LIMITS)


def main_format(config: ModelConfig, formats: WeightFormats) -> str:
    """Returns the format that holds the most values of weights of products; a page shows it as the model's format."""
    if isinstance(formats, str):
        return formats
    counts = Counter[str]()
    for parameter in config.parameters.values():
        if parameter.product:
            counts[formats.by_name[parameter.name]] += parameter.count
    return counts.most_common(1)[0][0]


def cache_format(config: ModelConfig, formats: WeightFormats, asked: str = "auto") -> str:
    """Returns the format of a page's caches: `asked`, or for "auto" f16 if most weights are quantised, else f32."""
    if asked != "auto":
        return asked
    main = main_format(config, formats)
    return "f16" if (FORMATS[main] if main in FORMATS else STORED[main]).quantised else "f32"


def _probed_format(name: str) -> str:
    """Returns the format for the probes: `name`, or the format in `FORMATS` with the same number of bits per level.

    A level is the integer that stands for a quantised weight.
    """
    if name in FORMATS:
        return name
    coding = STORED[name].coding
    return next(f.name for f in FORMATS.values() if f.coding and coding and f.coding.bits == coding.bits)


def record_page(
    config: ModelConfig,
    dtype: WeightFormats,
    part: Part,
    split: SplitPage | None,
    cache_dtype: str,
) -> tuple[dict[str, Program], list[RecordingFiles]]:
    """Returns every program by its file name, and for each recording the names of its files.

    `part` is the page's part of the model, and `split` has the options of a page that shares the model with a server.
    `cache_dtype` is the format of the caches, "f32" or "f16".
    """
    config = config.with_context(config.context, cache_dtype == "f16")
    programs: dict[str, Program] = {}
    listed: list[RecordingFiles] = []
    whole, tail = part == Part.whole(config), split is not None and split.head
    taps = whole and split is not None
    probed = _probed_format(main_format(config, dtype))

    def add(file: str, record: Callable[[], Program]) -> str:
        """Records a program unless an earlier recording has the same file, and returns the file's name."""
        if file not in programs:
            programs[file] = record()
        return file

    for recording in page_recordings(dtype):
        kernel, plain, unpaired = recording.kernel, recording.plain, recording.unpaired
        generate = partial(generate_program, config, recording, dtype, part, taps=taps, tail=tail)
        capture = partial(capture_recording, config, plain, dtype, part, tail)
        files: RecordingFiles = {
            "draw_buffers": recording.draw_buffers,
            "kernel": kernel.name,
            "rows": recording.rows,
            "generate": add(f"program-{recording.name}.json", generate),
            "capture": add(f"capture-{plain.name}.json", capture),
            "product": add(f"probe-{plain.name}.json", partial(product_probe, plain, probed)),
            "row": add(f"probe-{recording.rows}.json", partial(row_probe, plain, probed)),
        }
        if kernel.blends:
            files["blends"] = True
        if kernel.pairs:
            files["pairs"] = True
        if whole:
            logits = _logits(programs[files["generate"]])
            changed = partial(generate_program, config, unpaired, dtype, part, PageEdits(config))
            files["interventions"] = add(f"interventions-{unpaired.name}.bin", changed)
            several = partial(several_program, config, plain, dtype, logits)
            files["several"] = add(f"several-{plain.name}.bin", several)
            masked = partial(masked_program, MIN_LIMITS, logits)
            files["masked"] = add("masked-{}x{}.bin".format(*logits.tiles), masked)
        listed.append(files)
    return programs, listed
