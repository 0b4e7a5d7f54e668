"""Writes a Hugging Face model as the ONNX files that transformers.js reads, in q8 and q4, for `run.py --onnx`.

    python -m venv .venv-onnx && .venv-onnx/bin/pip install -r benchmarks/chat/requirements-onnx.txt
    glgpt convert smollm2 --to smollm2-hf
    .venv-onnx/bin/python benchmarks/chat/onnx_model.py smollm2-hf smollm2-onnx

In q8, weights are 8-bit integers, and the inputs of matrix products are quantised while the model runs. In q4, the
weights of products are 4-bit integers with one scale for 32 weights; the embedding, which is also the head, stays f32.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from optimum.exporters.onnx import main_export


def main(model: Path, out: Path) -> None:
    """Writes the folder `out` from the model in the folder `model`."""
    (out / "onnx").mkdir(parents=True, exist_ok=True)
    for file in (*model.glob("*.json"), *model.glob("*.jinja")):
        shutil.copy(file, out)
    with tempfile.TemporaryDirectory() as work:
        main_export(str(model), work, task="text-generation-with-past")
        whole = Path(work) / "model.onnx"
        quantize_dynamic(whole, out / "onnx/model_quantized.onnx", weight_type=QuantType.QInt8)
        narrow = MatMulNBitsQuantizer(onnx.load(whole), block_size=32, is_symmetric=True, accuracy_level=4)
        narrow.process()
        narrow.model.save_model_to_file(str(out / "onnx/model_q4.onnx"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
