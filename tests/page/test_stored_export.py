"""Tests pages of GGUF files: the page's weights have the formats of the file if a page can read these formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.exports import few_recordings
from helpers.gguf_files import llama, wide_llama
from helpers.small_page import small_page

from glgpt.checkpoint.opening import Checkpoint
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.page.split import SplitPage
from glgpt.program.layout import Layout


@pytest.mark.slow
def test_a_gguf_file_is_exported_as_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if weights are rounded again, or a page's programs or shards have other formats than the desktop."""
    page = small_page(tmp_path / "dist")
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: page)
    model = llama(tmp_path / "model.gguf", "Q4_1")
    with few_recordings("4x4"):
        manifest = export(model, tmp_path / "out", ExportOptions("stored"), device="software")
        split = SplitPage(1, "ws://127.0.0.1:8043")
        halved = export(model, tmp_path / "split", ExportOptions(split=split), device="software")
    assert manifest["dtype"] == halved["dtype"] == "q4"  # a split model's page also keeps the file's types
    program = json.loads((tmp_path / "out" / manifest["recordings"][0]["generate"]).read_text())
    view = program["views"]["embed_tokens.weight"]
    assert view["dtype"] == "q4"
    with Checkpoint.open(model) as checkpoint:
        wanted = checkpoint.read("embed_tokens.weight")
    layout = Layout(view["rows"], view["cols"], tuple(view["tiles"]), "q4")
    texels = np.zeros((layout.layers, layout.texture_height, layout.texture_width, 4), np.uint32)
    for shard in manifest["shards"]:
        data, at = np.fromfile(tmp_path / "out" / shard["file"], np.uint32).reshape(-1, 4), 0
        for name, layer, y, rows in shard["pieces"]:
            texture = program["textures"].get(name)
            count = rows * texture["width"]
            if name == "embed_tokens.weight":
                texels[layer, y : y + rows] = data[at : at + count].reshape(rows, -1, 4)
            at += count
    assert np.array_equal(layout.unpack(texels)[:, : len(wanted)], wanted.T)


@pytest.mark.slow
def test_each_tensor_of_a_mixed_file_has_its_own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a page refuses a type that the desktop reads, or names the wrong type as the most common one."""
    page = small_page(tmp_path / "dist")
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: page)
    kinds = {"token_embd": "Q6_K", "blk.0.attn_q": "Q5_1", "blk.0.attn_v": "Q8_0", "blk.0.ffn_up": "Q5_K"}
    model = wide_llama(tmp_path / "model.gguf", kinds, "Q4_K")
    with few_recordings("4x4"):
        manifest = export(model, tmp_path / "out", device="software")
    assert manifest["dtype"] == "q4_k" and manifest["stored"] == ["Q4_K", "Q5_K", "Q6_K", "Q5_1", "Q8_0"]
    views = json.loads((tmp_path / "out" / manifest["recordings"][0]["generate"]).read_text())["views"]
    formats = {views[f"layers.0.{name}.weight"]["dtype"] for name in ("self_attn.q_proj", "mlp.up_proj")}
    assert formats == {"q5_1", "q5_k"} and views["embed_tokens.weight"]["dtype"] == "q6_k"
