"""Compares how shaders decode and encode each format with numpy, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glgpt import ops
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.program.formats import ALL, FORMATS
from glgpt.program.layout import Layout
from glgpt.program.quantised import Blocks
from glgpt.program.recorder import Recorder

Array = NDArray[Any]
SIDE = 512  # columns of the matrices, which hold all 65,536 float16 numbers twice
PACKING = pytest.mark.parametrize("packing", [True, False], ids=["packHalf2x16", "integers"])
WAYS = [Options("300 es", "texelFetch", "uint"), Options("330", "textureLod", "float")]


def copied(device: Device, options: Options, layouts: tuple[Layout, Layout], matrix: Array | Blocks) -> Array:
    """Copies a matrix into another layout on the device. Returns the copy's texels."""
    rec = Recorder()
    with rec.entry("copy"):
        y = rec.output(ops.copy(rec, rec.fixed("x", layouts[0], "input"), layouts[1], "y"))
    with Player(device, rec.program(), options) as player:
        player.write_matrix("x", layouts[0], matrix)
        player.play("copy")
        return player.read(player.entry("copy").outputs[y.name].texture)


def bits(matrix: Array) -> Array:
    """Returns the bits of float32 values, with the same bits for every NaN."""
    return np.where(np.isnan(matrix), np.uint32(0x7FC00000), matrix.astype(np.float32).view(np.uint32))


@PACKING
@pytest.mark.parametrize("options", WAYS, ids=["uint", "float"])
def test_every_half_is_decoded_exactly(device: Device, options: Options, packing: bool) -> None:
    """Fails if a subnormal is flushed to zero, an infinity becomes 65536, or a sign is lost."""
    halves = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    matrix = np.concatenate([halves, np.roll(halves, 1)]).reshape(256, SIDE)  # each in the low and in the high 16 bits
    layouts = Layout(256, SIDE, (1, 2), "f16"), Layout(256, SIDE)
    chosen = Options(options.header, options.fetch, options.storage, packing)
    found = layouts[1].unpack(copied(device, chosen, layouts, matrix.astype(np.float32)).view(np.float32))
    assert np.array_equal(bits(found), bits(matrix))


def floats() -> Array:
    """Returns floats near every float16 number and every midpoint between two, and beyond the range of float16."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[1:] + halves[:-1]) / 2
    about = np.concatenate([halves, middles, [65520.0, 65519.99, 65536.0, 2.0**-25, 2.0**-26]]).astype(np.float32)
    around = [about, np.nextafter(about, np.float32(np.inf)), np.nextafter(about, np.float32(-1))]
    others = np.float32([np.inf, np.nan, 3.4e38, 1e30, 1e-30])
    values = np.concatenate([*around, others, np.random.default_rng(0).standard_normal(5000).astype(np.float32)])
    both = np.concatenate([values, -values])
    return np.pad(both, (0, -len(both) % SIDE)).reshape(-1, SIDE)


@PACKING
@pytest.mark.parametrize("options", WAYS, ids=["uint", "float"])
def test_floats_are_rounded_to_the_nearest_half(device: Device, options: Options, packing: bool) -> None:
    """Fails if a tie is not rounded to even, a subnormal is rounded too coarsely, or 65520 becomes finite."""
    matrix = floats()
    matrix[np.abs(matrix) < 2.0**-126] = 0  # software GL flushes subnormal floats to zero
    layouts = Layout(len(matrix), SIDE), Layout(len(matrix), SIDE, (1, 2), "f16")
    found = copied(device, Options(options.header, options.fetch, options.storage, packing), layouts, matrix)
    assert np.array_equal(bits(layouts[1].unpack(found)), bits(layouts[1].unpack(layouts[1].pack(matrix))))


@pytest.mark.parametrize("header", ["300 es", "330"])
def test_shaders_need_packing_only_where_it_is_asked_for(device: Device, header: str) -> None:
    """Fails if all shaders need packHalf2x16, which desktop OpenGL 4.1 lacks."""
    preamble = device.preamble(Options(header, packing=False))
    assert "packing" not in preamble and "#define NO_PACKING" in preamble
    rec = Recorder()
    with rec.entry("f32"):
        ops.matmul(rec, rec.fixed("x", Layout(8, 8), "input"), rec.fixed("w", Layout(8, 8), "weight"), None, "y")
    assert not any("Half2x16" in text for text in rec.program().shaders.values())


def blocks(name: str, rows: int, cols: int) -> Blocks:
    """Returns blocks with all integers (levels), and scales and minima of all magnitudes and signs, also subnormals."""
    coding, random = ALL[name].coding, np.random.default_rng(0)
    assert coding
    count, low = -(-rows // coding.group), 0 if coding.unsigned else -(2 ** (coding.bits - 1))
    levels = random.permuted(np.arange(rows * cols) % 2**coding.bits + low).reshape(rows, cols)

    def numbers() -> Array:
        if coding.wide:
            return (random.standard_normal((count, cols)) * 2.0 ** random.integers(-40, 30, (count, cols))).astype("f")
        return random.integers(0, 0x7C00, (2, count, cols)).astype(np.uint16).view(np.float16)[0] * random.choice(
            [-1, 1]
        )

    return Blocks(coding, levels, numbers(), numbers() if coding.minimum else None)


@PACKING
@pytest.mark.parametrize("options", WAYS, ids=["uint", "float"])
@pytest.mark.parametrize("name", [name for name, fmt in ALL.items() if fmt.quantised])
def test_blocks_are_decoded_exactly_in_every_column_tile(
    device: Device, options: Options, packing: bool, name: str
) -> None:
    """Fails if a sign is lost, a tile reads its neighbour's bits, or a scale of another group or column is used."""
    fmt = ALL[name]
    held = blocks(name, 2 * fmt.group + 12, 32 * fmt.column_tiles_per_texel)
    layouts = Layout(*held.shape, (1, fmt.column_tiles_per_texel), name), Layout(*held.shape)
    chosen = Options(options.header, options.fetch, options.storage, packing)
    found = layouts[1].unpack(copied(device, chosen, layouts, held).view(np.float32))
    assert np.array_equal(found, held[:, :]) and np.isfinite(found).all()


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if not fmt.quantised])
def test_a_format_is_rounded_within_its_spacing(name: str) -> None:
    """Fails if a format's spacing, from which tolerances are derived, does not bound the format's rounding."""
    fmt, random = FORMATS[name], np.random.default_rng(0)
    values = random.uniform(1, 2, (50, fmt.values_per_texel)).astype(np.float32)
    found = fmt.unpack(fmt.pack(values)).reshape(values.shape)
    assert np.abs(found - values).max() <= fmt.spacing / 2
    step = np.full((1, fmt.values_per_texel), 1 + fmt.spacing, np.float32)
    assert (fmt.unpack(fmt.pack(step)) == np.float32(1 + fmt.spacing)).all()
    largest = np.full((1, fmt.values_per_texel), fmt.largest, np.float32)
    assert (fmt.unpack(fmt.pack(largest)) == np.float32(fmt.largest)).all()
