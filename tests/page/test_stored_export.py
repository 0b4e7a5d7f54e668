"""Tests pages of GGUF files: weights stay as stored where a page can read their formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.gguf_files import llama
from helpers.small_page import small_page

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import weight_formats
from glgpt.errors import GlgptError
from glgpt.page import programs
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.page.programs import page_formats
from glgpt.program.layout import Layout
from glgpt.program.weight_formats import StoredFormats


def test_a_gguf_file_is_exported_as_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if weights are rounded again, or programs and shards of a page have other formats than the desktop."""
    page = small_page(tmp_path / "dist")
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: page)
    model = llama(tmp_path / "model.gguf", "Q4_1")
    manifest = export(model, tmp_path / "out", ExportOptions("stored"), device="software")
    assert manifest["dtype"] == "q4"
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


def test_types_that_pages_lack_are_refused(tmp_path: Path) -> None:
    """Fails if a page has a texture in a format that it cannot read; without a dtype, q8 is taken."""
    model = llama(tmp_path / "model.gguf", "Q8_0")
    with Checkpoint.open(model) as checkpoint:
        assert str(page_formats(checkpoint, None)) == "stored (Q8_0)"
        held = weight_formats(checkpoint, None)
        assert isinstance(held, StoredFormats)
        wider = replace(held, formats=tuple((name, "q5_1") for name, _ in held.formats), types=("Q5_1",))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(programs, "weight_formats", lambda *_: wider)
            assert page_formats(checkpoint, None) == "q8"
            with pytest.raises(GlgptError, match=r"cannot hold weights as stored \(Q5_1\); export with --dtype q8"):
                page_formats(checkpoint, "stored")
