"""Tests pages of models in q8 and q4: they compute the desktop's numbers and show the dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import preferring
from helpers.reference import random_weights, save_checkpoint
from test_page_views import shows

from glgpt.checkpoint.opening import Checkpoint
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions


@pytest.mark.parametrize(
    ("dtype", "rows"), [("q8", "strided"), ("q4", "contiguous"), ("q8", "contiguous"), ("q4", "strided")]
)
def test_the_page_has_the_desktops_numbers(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any], dtype: str, rows: str
) -> None:
    """Catches: scales of the wrong group, panels that split a group, or a picture of integers instead of weights."""
    config = GPT2Config(vocab_size=300, n_positions=300, n_embd=192, n_layer=1, n_head=3)
    folder = save_checkpoint(tmp_path / "model", config, random_weights(config))
    export(folder, tmp_path / "page", ExportOptions(dtype), device="software")
    name = "h.0.mlp.c_fc.weight"  # six groups of rows, stored in four bits in q4
    address = serve(tmp_path / "page") + f"#view=textures&texture={name}&tokens=1"
    page = browse(address, preferring(rows), measures=True)
    page.evaluate("glgpt.ready")
    assert page.evaluate("glgpt.info().rows") == rows
    result = page.evaluate("glgpt.parity()")
    assert result["pass"] and result["greedyEqual"] and result["firstApart"] is None, result
    with (
        LanguageModel.from_pretrained(folder, dtype, device="software") as model,
        Checkpoint.open(folder) as checkpoint,
    ):
        ids = np.random.default_rng(0).integers(0, 300, 140).tolist()
        _, expected = model.run_with_cache(ids, ["embed", "h.0.mlp.act"])
        for activation, values in expected.items():
            script = "([name, ids]) => glgpt.activation(name, ids).then((a) => [a.shape, Array.from(a.data)])"
            shape, data = page.evaluate(script, [activation, ids])
            atol = 2e-3 * float(np.abs(values).max())  # the page may round f16 differently
            np.testing.assert_allclose(np.reshape(data, shape), values, atol=atol, rtol=1e-5, err_msg=activation)
        layout = model.player.program.views[name]
        assert layout.dtype == dtype
        shows(page, name, layout.unpack(layout.pack(checkpoint.read(name))))
    page.get_by_label("memory layout").check()
    page.wait_for_function("/texel (sixteen bytes|32 numbers)/.test(document.body.textContent)")


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_products_of_integers_are_measured(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any], dtype: str
) -> None:
    """Catches: the probe reads empty rows of a product and takes them for a product of zeros."""
    config = GPT2Config(vocab_size=300, n_positions=30, n_embd=192, n_layer=1, n_head=3)
    folder = save_checkpoint(tmp_path / "model", config, random_weights(config))
    export(folder, tmp_path / "page", ExportOptions(dtype), device="software")
    page = browse(serve(tmp_path / "page") + "#tokens=1", measures=True)
    page.evaluate("glgpt.warmUp()")
    measured = page.evaluate("glgpt.model.kernels.probe")
    assert {"strided texelFetch", "contiguous textureLod"} <= set(measured) and min(measured.values()) > 0
