"""Tests programs for models of real sizes: limits of devices, and the cost of a token and of a download."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.soak import mostly_soak

from glgpt.inference.programs import capture_program, generation_program
from glgpt.models.families.gpt2 import SIZES, GPT2Config
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import KERNELS
from glgpt.program.spec import Limits

SHAKESPEARE = GPT2Config(vocab_size=1024, n_positions=256, n_embd=256, n_layer=6, n_head=8)

BUILDS = [(k, d) for k in KERNELS for d in FORMATS]

MODEST = {"guaranteed": Limits(max_texture_size=2048), "four targets": Limits(max_draw_buffers=4), "usual": Limits()}


def fits(kernel: str, limits: Limits) -> bool:
    return KERNELS[kernel].tile_rows * KERNELS[kernel].tile_cols <= limits.max_draw_buffers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "dtype", "limits"),
    [(k, d, name) for name, limits in MODEST.items() for k, d in BUILDS if k == "4x4" or fits(k, limits)],
)
def test_real_models_fit_modest_devices(kernel: str, dtype: str, limits: str) -> None:
    """Fails if a model's program exceeds the limits that it is recorded for. `check` tests this during the recording.

    Two blocks are enough, since a texture's size does not depend on their number.
    """
    for config in (replace(SHAKESPEARE, n_layer=2), GPT2Config(n_layer=2)):
        for record, more in ((generation_program, ()), (capture_program, ((), (256, 64, 16, 1)))):
            program = record(config, MODEST[limits], KERNELS[kernel], dtype, *more)
            assert all(t.width <= MODEST[limits].max_texture_size for t in program.textures.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(FORMATS, ("q4",)))
def test_the_largest_gpt2_fits(dtype: str) -> None:
    """Fails if gpt2-xl, with 25 heads and 48 layers, exceeds the usual limits."""
    assert "decode" in generation_program(SIZES["1558M"], Limits(), KERNELS["4x8"], dtype).entries


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(FORMATS, ("f32", "q4")))
@pytest.mark.parametrize(("kernel", "size"), [("4x4", 4096), ("4x4", 16384), ("4x8", 4096), ("8x4", 4096)])
def test_a_token_of_124m_takes_few_passes(kernel: str, dtype: str, size: int) -> None:
    """Fails if decoding a token takes more than 130 draw calls."""
    program = generation_program(GPT2Config(), Limits(max_texture_size=size), KERNELS[kernel], dtype)
    assert len(program.entries["decode"].passes) <= 130


def test_the_weights_of_124m_are_a_quick_download() -> None:
    """Fails if scales, or weights that are not quantised, make q8 and q4 larger than necessary."""
    for dtype, most in (("q8", 133e6), ("q4", 108e6)):
        program = generation_program(GPT2Config(), Limits(), KERNELS["4x4"], dtype)
        assert 0.98 * most < program.nbytes(("weight",)) <= most


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("f16", 2)])
def test_memory_is_that_of_weights_caches_and_little_scratch(dtype: str, size: int) -> None:
    """Fails if padding, or scratch that is not reused, takes memory that the model does not need."""
    config = GPT2Config()
    program = generation_program(config, Limits(max_texture_size=16384), KERNELS["4x4"], dtype)
    values = sum(p.count for p in config.parameters.values())
    assert size * values <= program.nbytes(("weight",)) <= 1.02 * size * values
    caches = 4 * config.n_positions * config.n_embd * (2 * config.n_layer + 1)
    assert caches <= program.nbytes(("state",)) <= 1.02 * caches
    assert program.nbytes() == sum(t.nbytes for t in program.textures.values())
