"""A Llama in the page: nothing in it was written for the family, so its manifest and programs must suffice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import preferring

from glgpt.inference.model import GPT2
from glgpt.page.export import export


@pytest.mark.parametrize(("golden", "dtype"), [("llama-grouped", "f32"), ("llama3-untied", "f16")])
def test_a_llama_passes_parity(
    goldens: Path, tmp_path: Path, serve: Callable[..., str], browse: Callable[..., Any], golden: str, dtype: str
) -> None:
    """Shared key heads, rotary positions or another family's names come out otherwise in the page."""
    export(goldens / golden, tmp_path / "page", dtype, device="software")
    rows = "strided" if dtype == "f16" else "contiguous"
    page = browse(serve(tmp_path / "page") + "#tokens=1", preferring(rows), measures=True)
    page.evaluate("glgpt.ready")
    assert page.evaluate("glgpt.info().rows") == rows
    result = page.evaluate("glgpt.parity()")
    assert result["pass"] and result["greedyEqual"] and result["firstApart"] is None, result
    with GPT2.from_pretrained(goldens / golden, dtype, device="software") as model:
        ids = np.load(goldens / golden / "reference.npz")["tokens"].tolist()[:12]
        _, expected = model.run_with_cache(ids, ["h.0.attn.q", "h.1.attn.k", "h.1.attn.z", "h.0.mlp.gate"])
        for name, values in expected.items():
            script = "([name, ids]) => glgpt.activation(name, ids).then((a) => [a.shape, Array.from(a.data)])"
            shape, data = page.evaluate(script, [name, ids])
            atol = 1e-4 if dtype == "f32" else 2e-3 * float(np.abs(values).max())  # the page may round halves otherwise
            np.testing.assert_allclose(np.reshape(data, shape), values, atol=atol, rtol=1e-5, err_msg=name)
        started = ids[:6]
        text = page.evaluate("(ids) => glgpt.generate({ids, tokens: 8, temperature: 0}).then((r) => r.ids)", started)
        assert text == list(model.generate_ids(started, 8, temperature=0))
