"""Tests which products of a model split K (their inner dimension), and which weights are first copied to f16."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glgpt.inference.programs import generation_program
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.training import page_training_program
from glgpt.program.kernel import KERNELS, Kernel
from glgpt.program.spec import Limits, Program
from glgpt.training.program import Recipe

NANO = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=1, n_head=4)
WIDE = GPT2Config(vocab_size=256, n_positions=512, n_embd=256, n_layer=1, n_head=4)
CONTIGUOUS = 4


def inputs(program: Program, entry: str) -> set[str]:
    return {name for made in program.entries[entry].passes for _, name in made.inputs}


def shaders(program: Program, entry: str) -> list[str]:
    """Returns the name of each pass's shader."""
    return [made.shader.rsplit("-", 1)[0] for made in program.entries[entry].passes]


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("kernel", [KERNELS["4x4"], KERNELS["8x4"]], ids=lambda k: k.name)
def test_training_splits_k_whatever_rows_read(kernel: Kernel, precision: str) -> None:
    """Fails if a page's program, which serves every device, never splits K, or if splits depend on panels."""
    recipe = Recipe(batch=12, context=64, precision=precision)
    strided, panels = (
        page_training_program(NANO, recipe, Limits(), replace(kernel, contiguous=n)) for n in (0, CONTIGUOUS)
    )
    for entry in ("backward", "update"):
        assert strided.entries[entry].passes == panels.entries[entry].passes
    assert shaders(panels, "backward").count("matmul_sum") > 4


@pytest.mark.parametrize("dtype", ["f16", "q8", "q4"])
def test_prompts_split_k_where_it_pays(dtype: str) -> None:
    """Fails if prompts on a GPU do not split K, or if packed products on software GL split K, which gains nothing."""
    gpu, software = (generation_program(WIDE, Limits(), Kernel(4, 1, n), dtype) for n in (0, CONTIGUOUS))
    assert "matmul_sum" in shaders(gpu, "prefill_16")
    assert "matmul_sum" not in shaders(software, "prefill_16")


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_long_prompts_decode_integers_once(dtype: str) -> None:
    """Fails if a GPU does not copy weights to f16 for a long prompt, or a short prompt or software GL uses copies."""
    gpu, software = (generation_program(WIDE, Limits(), Kernel(4, 1, n), dtype) for n in (0, CONTIGUOUS))
    names = gpu.entries["prefill_256"].passes
    assert sum(made.label.endswith(".weight.halves") for made in names) == 4
    for program, entry in ((gpu, "prefill_64"), (gpu, "decode"), (software, "prefill_256")):
        assert not any(made.label.endswith(".halves") for made in program.entries[entry].passes)
