"""Records programs that run a model to generate text or to capture activations, and loads weights into them.

A program consists of entries, which are named lists of passes. A state is a texture that keeps its contents from one
entry to the next. A part is a range of blocks, with or without the embedding and the head (the final norm and the
logits).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import packed
from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.inference.chunks import SIZES, chunk_sizes
from glgpt.inference.edits import Sites
from glgpt.inference.sampling import SAMPLE_NUCLEUS, SAMPLING
from glgpt.models.network import Network
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import ROLES, Limits, Program
from glgpt.program.weight_formats import WeightFormats

Progress = Callable[[int, int], None]

ROWS = 8  # number of tokens that the entry `rows_8`, which checks guessed tokens, runs at once


def generation_program(
    config: ModelConfig, limits: Limits, kernel: Kernel, dtype: WeightFormats, part: Part | None = None
) -> Program:
    """Records the entries `prefill_N`, `decode` and `prepare`, and entries that sample.

    `pos` and `row` are scalars that are given when an entry is played. `prefill_N` reads N tokens from position `pos`
    on and computes the logits after token `row` of these N; `decode` reads the token in the state `token`, at position
    `pos`. Both write the likeliest next token to `token`; their output is the state `logits`, of shape `[1, vocab]`.
    `sample` and `sample_nucleus` (`ops.sample`) then draw a token from these logits and write it to `token`. `prepare`
    must be played once the weights are loaded. Raises GlgptError if the device's limits do not allow the program.

    If `part` lacks the embedding, `prefill_N` and `decode` read the hidden states `[N, n_embd]` in the input `hidden.N`
    instead of ids. If `part` lacks the head, their output is `hidden`, the hidden states after the part's last block.
    With `part` and a context of at least eight positions, the program also has the entry `rows_8`, which runs eight ids
    or hidden states at once to check guessed tokens. If the part has the head, the output of `rows_8` is `[8, vocab]`,
    the logits after each id or hidden state, and the program has the entry `best`, which writes the likeliest token of
    the state `logits` to `token`.
    """
    rec = Recorder(limits)
    network = Network(rec, config, kernel, dtype, part=part)
    record_generation(network, fused=True)
    if part and config.context >= ROWS:
        with rec.entry(f"rows_{ROWS}"):
            x = network.prefill(ROWS)
            if part.head:
                network.logits(x)
            else:
                network.finish(x, "row")
        if part.head:
            with rec.entry("best"):
                network.best()
    return rec.program()


def edited_program(limits: Limits, kernel: Kernel, dtype: WeightFormats, sites: Sites) -> Program:
    """Records the entries of `generation_program` with edits at `sites`.

    The passes of `decode` are not fused, because edits are applied between them.
    """
    rec = Recorder(limits)
    network = Network(rec, sites.config, kernel, dtype)
    network.edits = sites
    record_generation(network)
    return rec.program()


def record_generation(
    network: Network, tail: Network | None = None, sizes: Sequence[int] = SIZES, fused: bool = False
) -> tuple[int, ...]:
    """Records the entries of `generation_program`, except `rows_8` and `best`.

    Records `prefill_N` for those N in `sizes` that the context and the device's limits allow. Returns these N, largest
    first, followed by 1 (`decode`).

    `tail`, a network of the head alone, adds the entry `head`, which computes the next token from the hidden state in
    `hidden.1`. If `fused`, small passes of `decode` that use the same shader and do not depend on each other, such as
    the products for keys and values, are combined; the label of the combined pass lists their labels.
    """
    rec, last = network.rec, tail or network
    recorded = chunk_sizes(network.config, network.kernel.tile_rows, rec.limits, sizes)
    for size in recorded[:-1]:
        with rec.entry(f"prefill_{size}"):
            network.finish(network.prefill(size), "row")
    with rec.entry("prepare"):
        network.prepare()
        if tail:
            tail.prepare()
    with rec.entry("decode", fused):
        if network.edits:
            network.decode_unfused()
        else:
            network.decode()
    if tail:
        with rec.entry("head"):
            tail.decode()
    for entry in SAMPLING if last.part.head else ():
        with rec.entry(entry):
            last.sample(nucleus=entry == SAMPLE_NUCLEUS)
    return recorded


def fitting_program(
    config: ModelConfig,
    path: Path,
    limits: Limits,
    kernel: Kernel,
    dtype: WeightFormats,
    most: int | None = None,
    part: Part | None = None,
) -> Program:
    """Records the generation program of the model at `path`, or of a part, within `most` bytes of textures.

    Raises GlgptError, naming the model, if the program exceeds the device's limits or `most`.
    """
    try:
        program = generation_program(config, limits, kernel, dtype, part)
    except ValueError as error:  # includes GlgptError
        raise GlgptError(f"{path}: this device cannot hold the model: {error}") from error
    needed = program.nbytes()
    if most is not None and needed > most:
        raise GlgptError(
            f"{path}: its textures need {needed / 2**20:.0f} MiB with a context of {config.context} and "
            f"--max-texture-memory is {most / 2**20:.0f} MiB; allow more, lower --context, or use --dtype f16, q8 or q4"
        )
    return program


def recorded_sizes(program: Program) -> tuple[int, ...]:
    """Returns the chunk sizes that a generation program was recorded for, largest first; 1 (`decode`) is the last."""
    prefills = (name.removeprefix("prefill_") for name in program.entries if name.startswith("prefill_"))
    return (*sorted(map(int, prefills), reverse=True), 1)


def capture_program(
    config: ModelConfig,
    limits: Limits,
    kernel: Kernel,
    dtype: WeightFormats,
    names: Container[str],
    sizes: Iterable[int],
    part: Part | None = None,
    sites: Sites | None = None,
) -> Program:
    """Records an entry `logits_N` for each N of `sizes`.

    An entry reads N tokens from position `pos` on; its outputs are the logits after each token and the activations
    `names`. The program has its own caches, so capturing never disturbs a generation. For a part without the head,
    `hidden` replaces the logits. `sites` are the activations that can be edited (None: no activations).
    """
    rec = Recorder(limits)
    network = Network(rec, config, kernel, dtype, names, part=part)
    network.edits = sites
    for size in sizes:
        record_capture(network, f"logits_{size}", size)
    return rec.program()


def record_capture(network: Network, entry: str, size: int) -> None:
    """Records an entry of `capture_program`."""
    with network.rec.entry(entry):
        x = network.prefill(size)
        if network.part.head:
            network.logits(x)
        else:
            network.finish(x, "row")


def own_bytes(program: Program) -> int:
    """Returns the bytes of a program's textures without the weights, which belong to another program's player."""
    return program.nbytes(("state", "input", "scratch"))


def weight_layouts(program: Program, config: ModelConfig) -> dict[str, Layout]:
    """Returns the layout of each parameter that the program uses, in the order of `config.parameters`."""
    return {name: program.views[name] for name in config.parameters if name in program.views}


class Parameters(Mapping[str, Floats]):
    """Maps names to parameters, shaped as in a checkpoint; iterating over the names reads no parameter.

    The names are those of the checkpoint, without the prefix of the model family. Each parameter is read from its
    texture on access, as the float32 values that the model computes with; in f16, q8 and q4 these values are rounded.
    Raises KeyError for a name that none of the players holds.
    """

    def __init__(self, players: Sequence[Player], config: ModelConfig) -> None:
        self._config = config
        self._held = {name: player for player in players for name in weight_layouts(player.program, config)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter, by name."""
        return {name: self._config.parameters[name].shape for name in self}

    def __getitem__(self, name: str) -> Floats:
        name = self._config.tied.get(name, name)
        player = self._held[name]
        found: Floats = self._config.parameters[name].restore(player.program.views[name].unpack(player.read(name)))
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._config.parameters if name in self._held)

    def __len__(self) -> int:
        return len(self._held)


def load_weights(player: Player, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
    """Uploads the parameters that the player's program uses, and plays `prepare`.

    Calls `progress` with (bytes done, total bytes). Raises GlgptError for a tensor that cannot be read, or that exceeds
    the format's range.
    """
    layouts = weight_layouts(player.program, checkpoint.config)
    total, done = sum(layout.nbytes for layout in layouts.values()), 0
    with contextlib.closing(packed(checkpoint, layouts)) as parameters:
        for name, bands in parameters:
            player.write_bands(name, bands)
            done += layouts[name].nbytes
            if progress:
                progress(done, total)
    player.play("prepare")
    player.prepare("decode")  # compiles shaders outside the first token's measured time


def describe(program: Program) -> dict[str, Any]:
    """Returns the number of passes of each entry, the number of shaders, and the texture bytes in total and by role."""
    return {
        "passes": {name: len(entry.passes) for name, entry in program.entries.items()},
        "shaders": len(program.shaders),
        "texture_bytes": program.nbytes(),
        "bytes_by_role": {role: program.nbytes((role,)) for role in ROLES},
    }
