"""Tests that weights, read by name, equal those of the checkpoint, whatever the layout of their textures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel

DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")


@pytest.mark.parametrize("name", ["dhead3-relu", "vocab3-untied", "llama-grouped", "one-f16"])
def test_parameters_are_the_checkpoints(goldens: Path, name: str) -> None:
    """Fails if padding of heads, or a transposed or folded layout, changes a weight, or a name is missing."""
    with (
        LanguageModel.from_pretrained(goldens / name, device=DEVICE) as model,
        Checkpoint.open(goldens / name) as checkpoint,
    ):
        found = model.parameters()
        assert list(found) == list(checkpoint.config.parameters) and set(found) == checkpoint.names
        assert len(found) == len(found.shapes)
        for parameter, array in found.items():
            assert array.dtype == np.float32 and array.shape == found.shapes[parameter]
            np.testing.assert_array_equal(array, checkpoint.read(parameter))
        np.testing.assert_array_equal(model.parameter("lm_head.weight"), found[model.config.output])


@pytest.mark.parametrize(("dtype", "off"), [("f16", 1e-3), ("q8", 0.02), ("q4", 0.3)])
def test_narrow_formats_give_what_is_computed_with(goldens: Path, dtype: str, off: float) -> None:
    with LanguageModel.from_pretrained(goldens / "wide", dtype, device=DEVICE) as model:
        with Checkpoint.open(goldens / "wide") as checkpoint:
            exact = checkpoint.read("h.1.mlp.c_fc.weight")
        found = model.parameter("h.1.mlp.c_fc.weight")
        assert 0 < np.abs(found - exact).max() < off * np.abs(exact).max()


def test_an_unknown_parameter_is_refused_with_those_near(goldens: Path) -> None:
    with LanguageModel.from_pretrained(goldens / "llama-grouped", device=DEVICE) as model:
        with pytest.raises(GlgptError, match=r"is not a parameter of llama-grouped; parameters include norm\.weight"):
            model.parameter("norm.wieght")
        assert "ln_f.weight" not in model.parameters()
    with pytest.raises(GlgptError, match="is closed"):
        model.parameters()
