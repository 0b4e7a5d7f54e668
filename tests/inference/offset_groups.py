"""Writes an equivalent Llama checkpoint with the inputs of every weight rotated by 16 places.

python tests/inference/offset_groups.py FOLDER OUT

If the weights of a checkpoint were already rounded in blocks of 32, as in a GGUF file, rounding the same blocks again
loses nothing. In the rotated checkpoint, each group of q8 and q4 holds 16 weights of each of two such blocks, so that
rounding changes the weights and its cost can be measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

PLACES = 16


def rotated(name: str, weight: NDArray[Any], head: int) -> NDArray[Any]:
    """Returns a weight, rotated along the axes of the residual stream, the MLP's hidden layer and each head's values.

    The rows of `q_proj`, `k_proj`, `embed_tokens` and `lm_head` keep their places.
    """
    for axis in range(weight.ndim):
        output = axis == 0 and weight.ndim == 2
        if output and ("q_proj" in name or "k_proj" in name or "embed_tokens" in name or "lm_head" in name):
            continue
        if ("v_proj" in name and output) or ("o_proj" in name and not output):
            shape = weight.shape
            split = weight.reshape(*shape[:axis], shape[axis] // head, head, *shape[axis + 1 :])
            weight = np.roll(split, PLACES, axis + 1).reshape(shape)
        else:
            weight = np.roll(weight, PLACES, axis)
    return np.ascontiguousarray(weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    args.out.mkdir()
    weights = load_file(args.folder / "model.safetensors")
    found = {name: rotated(name, weight, head) for name, weight in weights.items()}
    save_file(found, args.out / "model.safetensors", {"format": "pt"})
    for path in args.folder.iterdir():
        if path.name != "model.safetensors":
            shutil.copy(path, args.out)


if __name__ == "__main__":
    main()
