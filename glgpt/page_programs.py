"""The programs of an exported page: recorded for the limits of browsers, with eight draw buffers and with four."""

from __future__ import annotations

from glgpt import ops
from glgpt.chunks import chunk_sizes
from glgpt.models.config import GPT2Config, activation_names
from glgpt.models.gpt2 import Network
from glgpt.program import Limits, Program
from glgpt.programs import capture_program, record_generation
from glgpt.record import KERNELS, Kernel, Recorder
from glgpt.tensor import Layout
from glgpt.tune import PROBE

RECORDINGS = {8: KERNELS["4x8"], 4: KERNELS["4x4"]}  # draw buffers -> kernel
CAPTURE_BYTES = 128 << 20  # the most scratch that one capture entry may take


def page_programs(config: GPT2Config, draw_buffers: int, dtype: str) -> dict[str, Program]:
    """`generate`, `capture` and `probe` of one recording."""
    limits, kernel = Limits(max_draw_buffers=draw_buffers), RECORDINGS[draw_buffers]
    return {
        "generate": _generate(config, limits, kernel, dtype),
        "capture": _capture(config, limits, kernel, dtype),
        "probe": _probe(limits, kernel, dtype),
    }


def _generate(config: GPT2Config, limits: Limits, kernel: Kernel, dtype: str) -> Program:
    """`generation_program` with a query cache for every layer, and entries `attention_I_N` that read it.

    Those list `h.I.attn.scores` and `h.I.attn.pattern` of N rows from `pos`, and write nothing that outlives them.
    """
    rec = Recorder(limits)
    network = Network(rec, config, kernel, dtype, {f"h.{i}.attn.q" for i in range(config.n_layer)})
    sizes = record_generation(network)
    for i in range(config.n_layer):
        for size in sizes:
            with rec.entry(f"attention_{i}_{size}"):
                _attention(network, i, size)
    return rec.program()


def _attention(network: Network, i: int, size: int) -> None:
    rec, heads, h = network.rec, network.config.n_head, f"h.{i}.attn."
    tile_rows = network.kernel.tile_rows if size > 1 else 1
    scores = ops.scores(
        rec, network.cache(i, "q"), network.cache(i, "k"), size, tile_rows, heads, network.scale(i), h + "scores"
    )
    rec.output(scores)
    rec.output(ops.softmax(rec, scores, heads, h + "pattern"))


def _capture(config: GPT2Config, limits: Limits, kernel: Kernel, dtype: str) -> Program:
    """`capture_program` of every intermediate, in the chunk sizes whose scratch stays within CAPTURE_BYTES."""

    def record(sizes: tuple[int, ...]) -> Program:
        names = frozenset(activation_names(config.n_layer))
        return capture_program(config, limits, kernel, dtype, names, sizes)

    sizes = chunk_sizes(config, kernel.tile_rows, limits)
    return record(tuple(s for s in sizes if s == 1 or record((s,)).nbytes(("scratch",)) <= CAPTURE_BYTES))


def _probe(limits: Limits, kernel: Kernel, dtype: str) -> Program:
    """One product, as `glgpt.tune` measures it."""
    m, k, n = PROBE
    rec = Recorder(limits)
    if dtype == "f16":
        kernel = kernel.packed(limits)
    pairs = (1, 2) if dtype == "f16" else (1, 1)
    x = rec.fixed("x", Layout(m, k, (kernel.tile_rows, kernel.tile_cols), dtype), "state")
    w = rec.fixed("w", Layout(k, n, pairs, dtype), "state")
    with rec.entry("probe"):
        rec.output(ops.matmul(rec, x, w, None, "y", tile_cols=kernel.tile_cols))
    return rec.program()
