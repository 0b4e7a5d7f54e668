"""Tests a Llama in the page. The page has no code for this family, so the manifest and the programs must suffice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import activation, preferring
from helpers.exports import export_few
from helpers.gguf_files import llama
from helpers.soak import mostly_soak

from glgpt.inference.model import LanguageModel
from glgpt.page.export_options import ExportOptions


@pytest.mark.parametrize(
    ("kind", "rows"),
    mostly_soak([("Q4_1", "strided"), ("Q8_0", "contiguous"), ("BF16", "strided")], [("Q4_1", "strided")]),
)
def test_a_gguf_file_as_it_is_stored_passes_parity(
    tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any], kind: str, rows: str
) -> None:
    """Fails if the page reads every weight in the same format, although the file has several."""
    model = llama(tmp_path / "model.gguf", kind)
    export_few(model, tmp_path / "page", ExportOptions("stored"), device="software")
    page = browse(serve(tmp_path / "page") + "#tokens=1", preferring(rows), measures=True)
    page.evaluate("glgpt.ready")
    result = page.evaluate("glgpt.parity()")
    assert result["pass"] and result["greedyEqual"] and result["firstApart"] is None, result


@pytest.mark.parametrize(("golden", "dtype"), [("llama-grouped", "f32"), ("llama3-untied", "f16")])
def test_a_llama_passes_parity(
    goldens: Path, tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any], golden: str, dtype: str
) -> None:
    """Fails if the page treats shared key heads, rotary positions or Llama's names differently than the desktop."""
    export_few(goldens / golden, tmp_path / "page", ExportOptions(dtype), device="software")
    rows = "strided" if dtype == "f16" else "contiguous"
    page = browse(serve(tmp_path / "page") + "#tokens=1", preferring(rows), measures=True)
    page.evaluate("glgpt.ready")
    assert page.evaluate("glgpt.info().rows") == rows
    result = page.evaluate("glgpt.parity()")
    assert result["pass"] and result["greedyEqual"] and result["firstApart"] is None, result
    with LanguageModel.from_pretrained(goldens / golden, dtype, device="software") as model:
        ids = np.load(goldens / golden / "reference.npz")["tokens"].tolist()[:12]
        _, expected = model.run_with_cache(ids, ["h.0.attn.q", "h.1.attn.k", "h.1.attn.z", "h.0.mlp.gate"])
        for name, values in expected.items():
            atol = 1e-4 if dtype == "f32" else 2e-3 * float(np.abs(values).max())  # the page may round f16 differently
            np.testing.assert_allclose(activation(page, name, ids), values, atol=atol, rtol=1e-5, err_msg=name)
        started = ids[:6]
        text = page.evaluate("(ids) => glgpt.generate({ids, tokens: 8, temperature: 0}).then((r) => r.ids)", started)
        assert text == list(model.generate_ids(started, 8, temperature=0))


def test_a_text_ends_at_any_of_several_tokens(
    goldens: Path, tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any]
) -> None:
    """Fails if an end token of generation_config.json does not end a single text, or one of several continuations."""
    folder = shutil.copytree(goldens / "llama-grouped", tmp_path / "model")
    ids, path = [2, 5, 9], folder / "generation_config.json"
    with LanguageModel.from_pretrained(folder, device="software") as model:
        made = list(model.generate_ids(ids, 12, temperature=0, eos=False))
    ends = [*dict.fromkeys(made)][:1:-1]
    path.write_text(json.dumps({"eos_token_id": ends}))
    export_few(folder, tmp_path / "page", device="software")
    page = browse(serve(tmp_path / "page") + "#tokens=1")
    page.evaluate("glgpt.ready")
    options, wanted = {"ids": ids, "tokens": 12, "temperature": 0}, made[: made.index(ends[-1])]
    text = page.evaluate("(o) => glgpt.generate(o)", options)
    assert (text["ids"], text["stopped"]) == (wanted, "eos")
    assert page.evaluate("(o) => glgpt.generate(o).then((r) => r.ids)", options | {"eos": False}) == made
    for text in page.evaluate("(o) => glgpt.continuations(o)", options):
        assert (text["ids"], text["stopped"]) == (wanted, "eos")
