"""The programs of a model: one to generate with, one to look inside with."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.chunks import chunk_sizes
from glgpt.inference.sampling import SAMPLE_NUCLEUS, SAMPLING
from glgpt.models.network import Network
from glgpt.models.spec import ModelConfig
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import ROLES, Limits, Program


def generation_program(config: ModelConfig, limits: Limits, kernel: Kernel, dtype: str) -> Program:
    """Entries `prefill_N` (N tokens at pos.., logits of the row `row`) and `decode` (the token in `token` at pos).

    `prepare` must be played once the weights are there. These leave the best token in `token` and the logits in the
    state `logits` `[1, vocab]`, which they list. `sample` and `sample_nucleus` (`ops.sample`) then draw one from them.
    Raises GlgptError where the limits forbid it.
    """
    rec = Recorder(limits)
    record_generation(config.network(rec, kernel, dtype))
    return rec.program()


def record_generation(network: Network) -> tuple[int, ...]:
    """Records the entries of `generation_program`; returns the chunk sizes, greatest first, 1 (`decode`) the last."""
    rec = network.rec
    sizes = chunk_sizes(network.config, network.kernel.tile_rows, rec.limits)
    for size in sizes[:-1]:
        with rec.entry(f"prefill_{size}"):
            network.last_logits(network.prefill(size), "row")
    with rec.entry("prepare"):
        network.prepare()
    with rec.entry("decode"):
        network.decode()
    for entry in SAMPLING:
        with rec.entry(entry):
            network.sample(nucleus=entry == SAMPLE_NUCLEUS)
    return sizes


def fitting_program(
    checkpoint: Checkpoint, limits: Limits, kernel: Kernel, dtype: str, most: int | None = None
) -> Program:
    """The generation program of a checkpoint on a device of these limits, within `most` bytes of textures.

    Raises GlgptError naming the checkpoint where it does not fit.
    """
    try:
        program = generation_program(checkpoint.config, limits, kernel, dtype)
    except ValueError as error:  # GlgptError among them
        raise GlgptError(f"{checkpoint.path}: this device cannot hold it: {error}") from error
    needed = program.nbytes()
    if most is not None and needed > most:
        raise GlgptError(
            f"{checkpoint.path}: its textures need {needed / 2**20:.0f} MiB and --max-texture-memory is "
            f"{most / 2**20:.0f} MiB; allow more, or use --dtype f16"
        )
    return program


def recorded_sizes(program: Program) -> tuple[int, ...]:
    """The chunk sizes that a generation program was recorded for, greatest first, 1 (`decode`) the last."""
    prefills = (name.removeprefix("prefill_") for name in program.entries if name.startswith("prefill_"))
    return (*sorted(map(int, prefills), reverse=True), 1)


def capture_program(
    config: ModelConfig,
    limits: Limits,
    kernel: Kernel,
    dtype: str,
    names: Container[str],
    sizes: Iterable[int],
) -> Program:
    """Entries `logits_N` for N of `sizes`: N tokens at pos.., listing the logits of every row and these intermediates.

    It has caches of its own, so that looking inside never disturbs a generation.
    """
    rec = Recorder(limits)
    network = config.network(rec, kernel, dtype, names)
    for size in sizes:
        with rec.entry(f"logits_{size}"):
            network.logits(network.prefill(size))
    return rec.program()


def own_bytes(program: Program) -> int:
    """Texture memory in bytes beyond the weights, which a capture program shares."""
    return program.nbytes(("state", "input", "scratch"))


def weight_layouts(program: Program, config: ModelConfig) -> dict[str, Layout]:
    """The layout of each parameter of the checkpoint, in the checkpoint's order."""
    return {name: program.views[name] for name in config.parameters}


def describe(program: Program) -> dict[str, Any]:
    """Passes by entry and texture memory in bytes by role."""
    return {
        "passes": {name: len(entry.passes) for name, entry in program.entries.items()},
        "shaders": len(program.shaders),
        "texture_bytes": program.nbytes(),
        "bytes_by_role": {role: program.nbytes((role,)) for role in ROLES},
    }
