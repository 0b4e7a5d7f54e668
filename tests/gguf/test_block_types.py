"""Compares the tensor types with values and bytes that ggml-org's `gguf` package has computed (see make.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.gguf_files import KINDS

from glgpt.gguf.quantize import WRITABLE, encode

with np.load(Path(__file__).with_name("types.npz")) as _file:
    FILE = dict(_file)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"F32"}))
def test_values_have_the_same_bits_as_those_of_gguf(name: str) -> None:
    found = KINDS[name].values(FILE[f"{name}.raw"])
    assert found.dtype == np.float32
    assert found.tobytes() == FILE[f"{name}.values"].tobytes()


@pytest.mark.parametrize("name", sorted(name for name, kind in KINDS.items() if kind.unpack))
def test_blocks_are_scales_minima_and_levels(name: str) -> None:
    kind, raw = KINDS[name], FILE[f"{name}.raw"]
    blocks = kind.blocks(raw)
    rows, columns = blocks.levels.shape
    assert (rows, columns) == (3, raw.shape[1] // kind.nbytes * kind.block)
    assert blocks.scale.shape == (rows, columns // blocks.group)
    assert blocks.levels.dtype in (np.int8, np.uint8)
    assert (blocks.minimum is not None) == (name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"))
    bits = 8 if name == "Q8_0" or name.startswith("IQ") else int(name[1])
    assert np.ptp(blocks.levels.astype(int)) < 1 << bits
    assert (blocks.scale.dtype == np.float16) == (not name.endswith(("K", "XS")))
    by_hand = blocks.scale.astype(np.float64).repeat(blocks.group, axis=1) * blocks.levels
    if blocks.minimum is not None:
        by_hand += blocks.minimum.astype(np.float64).repeat(blocks.group, axis=1)
    np.testing.assert_allclose(FILE[f"{name}.values"], by_hand, rtol=1e-5, atol=1e-4 * np.abs(by_hand).max())


@pytest.mark.parametrize("name", sorted(set(WRITABLE) - {"F32"}))
def test_encoding_has_the_same_bits_as_that_of_gguf(name: str) -> None:
    assert encode(KINDS[name], FILE["plain"]).tobytes() == FILE[f"{name}.encoded"].tobytes()
