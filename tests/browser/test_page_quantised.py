"""Tests pages of quantised models: they compute the desktop's numbers and show the dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import activation, preferring
from helpers.exports import export_few
from helpers.gguf_files import wide_llama
from helpers.reference import random_weights, save_checkpoint
from test_page_views import shows

from glgpt.checkpoint.opening import Checkpoint
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.export_options import ExportOptions


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        pytest.param("q8", "contiguous", marks=pytest.mark.soak),
        ("q4", "contiguous"),
        pytest.param("q8", "strided", marks=pytest.mark.soak),
        pytest.param("q4", "strided", marks=pytest.mark.soak),
    ],
)
def test_the_page_has_the_desktops_numbers(
    once: Callable[..., Path], serve: Callable[..., str], browse: Callable[..., Any], dtype: str, rows: str
) -> None:
    """Fails if a group gets another group's scales, a panel splits a group, or a picture shows integers as weights."""
    config = GPT2Config(vocab_size=300, n_positions=300, n_embd=192, n_layer=1, n_head=3)

    def fill(folder: Path) -> None:
        save_checkpoint(folder / "model", config, random_weights(config))
        export_few(folder / "model", folder / "page", ExportOptions(dtype), device="software")

    made = once(f"integers-{dtype}", fill)
    folder, name = made / "model", "h.0.mlp.c_fc.weight"  # has six groups of rows; q4 stores this weight in four bits
    address = serve(made / "page") + f"#view=textures&texture={name}&tokens=1"
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
        for kind, values in expected.items():
            atol = 2e-3 * float(np.abs(values).max())  # the page may round f16 differently
            np.testing.assert_allclose(activation(page, kind, ids), values, atol=atol, rtol=1e-5, err_msg=kind)
        layout = model.player.program.views[name]
        assert layout.dtype == dtype
        shows(page, name, layout.unpack(layout.pack(checkpoint.read(name))))
    page.get_by_label("memory layout").check()
    page.wait_for_function("/texel (sixteen bytes|32 numbers)/.test(document.body.textContent)")


@pytest.mark.soak
def test_the_page_keeps_every_type_of_a_gguf_file(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any]
) -> None:
    """Fails if the page reads or draws the scales, minima or integers of a type differently than the desktop."""
    kinds = {
        "token_embd": "Q6_K", "blk.0.attn_q": "Q5_1", "blk.0.attn_k": "Q4_0", "blk.0.attn_v": "Q8_0",
        "blk.0.attn_output": "Q5_0", "blk.0.ffn_up": "Q5_K", "blk.0.ffn_down": "F16",
    }  # fmt: skip
    model = wide_llama(tmp_path / "model.gguf", kinds, "Q4_K")
    export_few(model, tmp_path / "page", device="software")
    address = serve(tmp_path / "page") + "#tokens=1&view=textures&texture="
    names = ["embed_tokens", "layers.0.self_attn.q_proj", "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"]
    with Checkpoint.open(model) as checkpoint:
        for rows in ("strided", "contiguous"):
            page = browse(f"{address}{names[0]}.weight", preferring(rows), measures=True)
            page.evaluate("glgpt.ready")
            result = page.evaluate("glgpt.parity()")
            assert result["pass"] and result["greedyEqual"] and result["firstApart"] is None, result
            for name in (f"{name}.weight" for name in names):
                page.get_by_role("group", name="Block").get_by_role("button").nth(int("layers" in name)).click()
                page.get_by_role("button", name=f"{name.removeprefix('layers.0.')}", exact=True).click()
                shows(page, name, checkpoint.config.parameters[name].arrange(checkpoint.read(name)))
            page.close()


COUNTING = """
const store = WebGL2RenderingContext.prototype.texStorage3D;
globalThis.float16 = 0;
WebGL2RenderingContext.prototype.texStorage3D = function (target, levels, format, ...size) {
  if (format === this.RGBA16F) globalThis.float16++;
  return store.call(this, target, levels, format === this.RGBA16F ? this.%s : format, ...size);
};"""


def test_caches_are_half_floats_where_drawing_shows_that_they_work(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any]
) -> None:
    """Fails if caches are 32-bit floats on every device, or 16-bit floats on a device that stores only eight bits."""
    config = GPT2Config(vocab_size=300, n_positions=30, n_embd=64, n_layer=2, n_head=2)
    folder = save_checkpoint(tmp_path / "model", config, random_weights(config))
    export_few(folder, tmp_path / "page", ExportOptions("q8"), device="software")
    address = serve(tmp_path / "page") + "#tokens=1"
    # 1: the texture of the page's drawing test. 5: k and v of each of two layers, and one texture for q of all layers.
    for stored, textures in (("RGBA16F", 1 + 5), ("RGBA8", 1)):
        page = browse(address, COUNTING % stored, provokes="Invalid format and type combination")
        page.evaluate("glgpt.ready")
        assert page.evaluate("globalThis.float16") == textures
        assert page.evaluate("glgpt.parity().then((p) => p.pass)")
        page.close()


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_products_of_integers_are_measured(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any], dtype: str
) -> None:
    """Fails if the probe of kernels reads rows that the product did not write: it would report a product of zeros."""
    config = GPT2Config(vocab_size=300, n_positions=30, n_embd=192, n_layer=1, n_head=3)
    folder = save_checkpoint(tmp_path / "model", config, random_weights(config))
    export_few(folder, tmp_path / "page", ExportOptions(dtype), device="software")
    page = browse(serve(tmp_path / "page") + "#tokens=1", measures=True)
    page.evaluate("glgpt.warmUp()")
    measured = page.evaluate("glgpt.model.kernels.probe")
    assert {"strided texelFetch", "contiguous textureLod"} <= set(measured) and min(measured.values()) > 0
