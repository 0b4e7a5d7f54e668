"""Writes types.npz: random blocks of every tensor type, and the values that ggml-org's `gguf` package computes.

pip install gguf && python tests/gguf/make.py
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

TYPES = {"F16": 2, "BF16": 2, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q4_K": 144, "Q5_K": 176,
         "Q6_K": 210, "Q2_K": 84, "Q3_K": 110, "IQ4_NL": 18, "IQ4_XS": 136}  # fmt: skip
ENCODED = ("F16", "BF16", "Q4_0", "Q4_1", "Q8_0")


def main() -> None:
    """Draws the blocks and writes the file next to this script."""
    draw = np.random.default_rng(5)
    plain = draw.standard_normal((4, 64)).astype(np.float32)
    plain[0, :32], plain[1, 32:], plain[2, 5] = 0, 0.75, 40
    found: dict[str, np.ndarray] = {"plain": plain}
    for name, size in TYPES.items():
        kind, raw = gguf.GGMLQuantizationType[name], np.zeros((0, 0), np.uint8)
        while not raw.size or not np.isfinite(gguf.dequantize(raw, kind)).all():
            raw = draw.integers(0, 256, (3, 2 * size), dtype=np.uint8)
        found |= {f"{name}.raw": raw, f"{name}.values": gguf.dequantize(raw, kind)}
        if name in ENCODED:
            found[f"{name}.encoded"] = gguf.quantize(plain, kind).view(np.uint8).reshape(4, -1)
    np.savez_compressed(Path(__file__).with_name("types.npz"), **found)


if __name__ == "__main__":
    main()
