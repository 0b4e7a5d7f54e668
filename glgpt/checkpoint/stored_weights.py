"""Packs the weights of a file for textures: chooses each weight's format, and copies quantised blocks unchanged."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.gguf.reader import is_gguf
from glgpt.models.parameters import Parameter
from glgpt.program.formats import ALL, AS_STORED, DTYPES
from glgpt.program.layout import Band, Layout, Matrix
from glgpt.program.quantised import Blocks
from glgpt.program.weight_formats import StoredFormats, WeightFormats
from glgpt.system.processors import available_processors

# GGUF's quantised types -> the storage format that holds their blocks (weights with a common scale). Levels of Q4_0
# are -8 to 7; in q4, they become 0 to 15, with a minimum of -8 times the scale.
FORMAT_OF = {
    "Q8_0": "q8", "Q5_0": "q8", "Q4_0": "q4", "Q4_1": "q4", "Q5_1": "q5_1", "Q4_K": "q4_k", "Q5_K": "q5_k",
    "Q6_K": "q6_k", "Q2_K": "q2_k", "Q3_K": "q6_k", "IQ4_NL": "q8", "IQ4_XS": "q6_k",
}  # fmt: skip
_CHUNK = 1 << 20  # values compared at once
SAMPLE = 4096  # number of a tensor's values that are tested first; if float16 holds these exactly, all are tested
AHEAD_BYTES = 256 << 20  # maximum bytes of packed texels that the caller has not taken, plus tensors being packed
THREADS = 4  # more threads would wait: outside NumPy's loops, Python runs only one thread at a time


def weight_formats(checkpoint: Checkpoint, dtype: str | None) -> WeightFormats:
    """Returns the formats of a model's weights; dtype None means "stored" for GGUF files and "f32" for folders.

    Raises GlgptError for an unknown dtype, and for tensors that cannot be read.
    """
    dtype = dtype or default_dtype(checkpoint)
    if dtype not in DTYPES:
        raise GlgptError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    return _stored_formats(checkpoint) if dtype == AS_STORED else dtype


def default_dtype(checkpoint: Checkpoint) -> str:
    """Returns the dtype with which a model is opened if none is given."""
    return AS_STORED if is_gguf(checkpoint.path) else "f32"


def rounding_of_adapter(checkpoint: Checkpoint, formats: WeightFormats) -> str:
    """Returns a message about tensors that an adapter changes and whose new values the `stored` formats round.

    Returns "" if the formats round none of these tensors, or if `formats` is one format for all weights.
    """
    if not isinstance(formats, StoredFormats):
        return ""
    held = Counter(formats.by_name[name] for name in checkpoint.config.parameters if checkpoint.adapts(name))
    kinds = ", ".join(f"{count} in {dtype}" for dtype, count in held.most_common() if dtype != "f32")
    return f"tensors that the adapter changes are rounded: {kinds}; --dtype f32 does not round them" if kinds else ""


def texture_matrix(checkpoint: Checkpoint, name: str, dtype: str) -> Matrix:
    """Returns the matrix of a parameter's texture: the file's blocks if the format `dtype` holds them unchanged.

    Otherwise, the matrix has the decoded values. Raises GlgptError as `Checkpoint.read` does.
    """
    blocks = stored_blocks(checkpoint, name, dtype)
    return checkpoint.config.parameters[name].arrange(checkpoint.read(name)) if blocks is None else blocks


def stored_blocks(checkpoint: Checkpoint, name: str, dtype: str) -> Blocks | None:
    """Returns the matrix of a parameter's texture as the file's blocks, if the format `dtype` holds them unchanged.

    Otherwise returns None. Also returns None if a scale or minimum is not finite, so that the caller uses
    `Checkpoint.read`, which checks the values.
    """
    coding = ALL[dtype].coding
    if coding is None or not _holds_blocks(checkpoint, name, dtype):
        return None
    found = checkpoint.blocks(name)
    if found is None:
        return None
    kind, levels, scale, minimum = checkpoint.dtype(name), found.levels, found.scale, found.minimum
    if kind == "Q4_0" and coding.minimum:
        with np.errstate(over="ignore"):
            levels, minimum = levels + np.int8(8), scale * np.float16(-8)
    if not np.isfinite(scale).all() or (minimum is not None and not np.isfinite(minimum).all()):
        return None
    arranged = checkpoint.config.parameters[name].arrange(
        Blocks(coding, levels.T, scale.T, None if minimum is None else minimum.T)
    )
    return arranged if isinstance(arranged, Blocks) else None


def _holds_blocks(checkpoint: Checkpoint, name: str, dtype: str) -> bool:
    """True if a texture of format `dtype` can hold the blocks of the parameter's tensor unchanged."""
    parameter, kind = checkpoint.config.parameters[name], checkpoint.dtype(name)
    if kind not in FORMAT_OF or not parameter.product or not parameter.keeps_blocks or checkpoint.adapts(name):
        return False
    return ALL[dtype].coding == ALL[FORMAT_OF[kind]].coding or (kind, dtype) == ("Q4_0", "q8")


def packed(checkpoint: Checkpoint, layouts: Mapping[str, Layout]) -> Generator[tuple[str, Iterable[Band]]]:
    """Yields each parameter's name and bands (groups of rows of texels), in the order of `layouts`.

    While the caller uses a parameter, threads pack the next ones. The threads run in parallel, because NumPy lets other
    threads run while it works on an array. A parameter that takes more than `AHEAD_BYTES` is packed without a thread:
    each band is packed when the caller takes it. With fewer than `THREADS` processors, all parameters are packed
    without a thread. Raises GlgptError for a tensor that cannot be read or exceeds the format's range.
    """
    if available_processors() < THREADS:
        yield from ((name, _bands(checkpoint, name, layout)) for name, layout in layouts.items())
        return
    names = deque(layouts)
    # The packing of each parameter that the caller has not finished using; None: packed without a thread
    begun: dict[str, Future[list[Band]] | None] = {}
    sources = {name: source_bytes(checkpoint, name, layout) for name, layout in layouts.items()}

    def held(name: str) -> int:
        """Returns the bytes that a parameter takes: its texels and, until these are packed, the tensor in the file."""
        packing = begun.get(name)
        return layouts[name].nbytes + (0 if packing and packing.done() else sources[name])

    with ThreadPoolExecutor(THREADS, "packing") as pool:
        try:
            while names or begun:
                ahead = sum(map(held, begun)) if names else 0
                while names and (not begun or ahead + held(names[0]) <= AHEAD_BYTES):
                    name = names.popleft()
                    ahead += held(name)
                    large = held(name) > AHEAD_BYTES
                    begun[name] = None if large else pool.submit(_whole, checkpoint, name, layouts[name])
                name, found = next(iter(begun.items()))
                yield name, found.result() if found else _bands(checkpoint, name, layouts[name])
                del begun[name]
        finally:  # runs also if the caller stops early
            pool.shutdown(cancel_futures=True)


def source_bytes(checkpoint: Checkpoint, name: str, layout: Layout) -> int:
    """Estimates the bytes that a tensor takes while it is packed: 1 per value in blocks, 2 per f16 value, else 4."""
    count = checkpoint.config.parameters[name].count
    if _holds_blocks(checkpoint, name, layout.dtype):
        return count
    return count * (2 if checkpoint.dtype(name) == "F16" else 4)


def _whole(checkpoint: Checkpoint, name: str, layout: Layout) -> list[Band]:
    return list(_bands(checkpoint, name, layout))


def _bands(checkpoint: Checkpoint, name: str, layout: Layout) -> Iterator[Band]:
    matrix = texture_matrix(checkpoint, name, layout.dtype)
    if not isinstance(matrix, Blocks) and float(np.finfo(matrix.dtype).max) > layout.format.largest:
        peak = float(np.abs(matrix).max())
        if peak > layout.format.largest:
            what = f"{name} holds {peak:.3g}, more than the {layout.format.largest:g} of {layout.dtype}"
            raise GlgptError(f"{checkpoint.path}: {what}; use --dtype f32")
    return layout.bands(matrix)


def _stored_formats(checkpoint: Checkpoint) -> StoredFormats:
    parameters, types = checkpoint.config.parameters, Counter[str]()
    formats = {name: _format(checkpoint, parameter) for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        if len(parameter.shape) > 1:
            types[checkpoint.dtype(name)] += parameter.count
    plain = any(formats[name] == "f32" for name, parameter in parameters.items() if parameter.product)
    if plain:
        formats |= {name: "f32" for name, parameter in parameters.items() if parameter.product}
    names = tuple(name for name, _ in types.most_common())
    return StoredFormats(tuple(formats.items()), names, "f32" if plain else "f16")


def _format(checkpoint: Checkpoint, parameter: Parameter) -> str:
    """Returns the narrowest format that holds a tensor exactly; vectors are f32.

    If an adapter changes the tensor, a quantised format need not hold the new values exactly. Therefore q8 replaces any
    quantised format that the tensor has without the adapter; f16 and f32 stay.
    """
    if checkpoint.adapts(parameter.name):
        own = _format(checkpoint.without_adapter(), parameter)
        return "q8" if ALL[own].coding else own
    if not parameter.product and not parameter.table:
        return "f32"
    kind, name = checkpoint.dtype(parameter.name), parameter.name
    if kind in FORMAT_OF and parameter.product and parameter.keeps_blocks:
        if kind != "Q4_0":
            return FORMAT_OF[kind]
        with np.errstate(over="ignore"):
            minima = checkpoint.scales(name) * np.float16(-8)
        return "q4" if np.isfinite(minima).all() else "q8"
    if kind == "F16" or (_fits_f16(checkpoint.sample(name, SAMPLE)) and _fits_f16(checkpoint.read(name))):
        return "f16"
    return "f32"


def _fits_f16(values: NDArray[Any]) -> bool:
    """True if float16 holds all values exactly."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore"):
        parts = (flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK))
        return all(np.array_equal(part, part.astype(np.float16)) for part in parts)
