"""Tests checkpoints in local folders: each layout loads with the right values; damage gives a one-line error."""

import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.soak import mostly_soak
from safetensors.numpy import load_file, save_file

from glgpt.checkpoint.finding import embedded_weights, model_name
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError

HERE = Path(__file__).parents[1]
GOLDENS = HERE / "goldens"
CHECKSUMS = json.loads((GOLDENS / "checksums.json").read_text())
DTYPES = {"bf16": "BF16", "llama3-untied": "BF16", "inverse-layer-f16": "F16", "one-f16": "F16"}


def refusal(folder, *parts):
    """Opens and reads a folder, which must be refused. Returns the one-line message, which must contain `parts`."""
    with pytest.raises(GlgptError) as caught, Checkpoint.open(folder) as checkpoint:
        for name in checkpoint.names:
            checkpoint.read(name)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


@pytest.fixture
def folder(tmp_path):
    """Returns a copy of a small test checkpoint with one safetensors file. Tests may damage the copy."""
    return Path(shutil.copytree(GOLDENS / "vocab3-untied", tmp_path / "model"))


def rewrite(folder, change):
    tensors = dict(load_file(folder / "model.safetensors"))
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def reconfigure(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


# Valid checkpoints


@pytest.mark.parametrize("name", CHECKSUMS)
def test_every_golden_loads_with_its_values(name):
    with Checkpoint.open(GOLDENS / name) as checkpoint:
        assert checkpoint.names == set(checkpoint.config.parameters) == set(CHECKSUMS[name])
        for tensor, parameter in checkpoint.config.parameters.items():
            values = checkpoint.read(tensor)
            assert values.shape == parameter.shape
            assert values.dtype == (np.float16 if DTYPES.get(name) == "F16" else np.float32)
            assert checkpoint.dtype(tensor) == DTYPES.get(name, "F32")
            digest = hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
            assert digest == CHECKSUMS[name][tensor], tensor


@pytest.mark.parametrize("name", CHECKSUMS)
def test_every_golden_has_every_activation(name):
    with np.load(GOLDENS / name / "reference.npz") as reference, Checkpoint.open(GOLDENS / name) as checkpoint:
        config = checkpoint.config
        count = len(reference["tokens"])
        assert set(reference) == {"tokens", "greedy", *config.activations}
        assert reference["logits"].shape == (count, config.vocab_size)
        assert reference["h.0.attn.scores"].shape == (config.n_head, count, count)
        assert reference["h.0.attn.k"].shape == (config.n_kv_head, count, config.d_head)
        assert reference["h.0.mlp.act"].shape == (count, config.activations["h.0.mlp.act"].width)
        assert np.array_equal(reference["tokens"][: len(reference["greedy"])][:1], reference["greedy"][:1])


def test_embedded_model():
    for name in (None, "shakespeare", embedded_weights()):
        with Checkpoint.open(name) as checkpoint:
            assert checkpoint.path == embedded_weights()
            assert checkpoint.config.vocab_size == 1024
            stored = load_file(embedded_weights() / "model.safetensors")
            assert np.array_equal(checkpoint.read("h.0.ln_1.bias"), stored["transformer.h.0.ln_1.bias"])


def test_closed_checkpoint_holds_nothing(folder):
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint.names
    assert checkpoint.names == set()


def test_bf16_is_widened_exactly(tmp_path):
    folder = Path(shutil.copytree(GOLDENS / "bf16", tmp_path / "model"))
    content = bytearray((folder / "model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    start, stop = json.loads(content[8 : 8 + length])["transformer.wte.weight"]["data_offsets"]
    bits = np.array(
        [0x3F80, 0x0001, 0x8000, 0xFF7F, 0x4049], "<u2"
    )  # includes a denormal, -0.0 and the lowest finite number
    raw = np.resize(bits, (18, 20))
    content[8 + length + start : 8 + length + stop] = raw.tobytes()
    (folder / "model.safetensors").write_bytes(content)
    with Checkpoint.open(folder) as checkpoint:
        assert np.array_equal(checkpoint.read("wte.weight").view("<u4"), raw.astype("<u4") << 16)


def rewrite_shapes(folder):
    """Writes weights of ones, in the shapes of the folder's config."""
    from glgpt.models.families.gpt2 import GPT2Config

    config = GPT2Config.from_dict(json.loads((folder / "config.json").read_text()))
    ones = {prefixed(name): np.ones(p.shape, "f4") for name, p in config.parameters.items()}
    save_file(ones, folder / "model.safetensors")


def prefixed(name):
    return name if name.startswith("lm_head") else "transformer." + name


def test_tied_copy_and_mask_buffers_are_passed_over(tmp_path):
    folder = Path(shutil.copytree(GOLDENS / "wide", tmp_path / "model"))

    def extend(tensors):
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
        tensors["transformer.h.0.attn.bias"] = np.ones((1, 1, 40, 40), bool)
        tensors["transformer.h.1.attn.masked_bias"] = np.array(-1e4, "f4")

    rewrite(folder, extend)
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint.names == set(CHECKSUMS["wide"])

    def differ(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + np.eye(130, 48, dtype="f4")

    rewrite(folder, differ)
    refusal(folder, "model.safetensors", "lm_head.weight", "differs from wte.weight")


def test_memory_is_given_back(tmp_path):
    # A new process reads 130 MB, tensor by tensor. Its memory may grow by the size of one tensor, not of all tensors.
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 512, "n_head": 8, "n_layer": 10, "vocab_size": 700})
    )
    rewrite_shapes(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size > 120e6
    script = (
        "import re, sys; from glgpt.checkpoint.opening import Checkpoint\n"
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak(); checkpoint = Checkpoint.open(sys.argv[1])\n"
        "total = sum(float(checkpoint.read(name).sum()) for name in checkpoint.names)\n"
        "print(peak() - before)"
    )
    grown = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True, cwd=HERE.parent
    )
    assert int(grown.stdout) < 20_000  # kB


# Refused checkpoints


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("transformer.h.1.mlp.c_fc.bias", None, "tensor h.1.mlp.c_fc.bias is missing"),
        ("transformer.h.0.attn.rotary", 3, "tensor h.0.attn.rotary is not part"),
        ("transformer.ln_f.bias", 13, "tensor ln_f.bias has shape [13]; config.json requires [12]"),
        ("ln_f.bias", 12, "ln_f.bias appears twice"),
        ("odd\nname", 1, "odd\\nname"),
    ],
)
def test_refuses_other_tensors(folder, name, shape, said):
    rewrite(
        folder, lambda tensors: tensors.pop(name) if shape is None else tensors.update({name: np.ones(shape, "f4")})
    )
    refusal(folder, "model.safetensors: ", said)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_non_finite_values(folder, bad):
    def spoil(tensors):
        tensors["transformer.h.1.attn.c_attn.weight"][5, 7] = bad

    rewrite(folder, spoil)
    refusal(folder, "model.safetensors", "h.1.attn.c_attn.weight", str(bad), "[5, 7]")


def test_refuses_dtypes_it_cannot_read(folder):
    rewrite(folder, lambda tensors: tensors.update({"transformer.ln_f.bias": np.ones(12)}))
    refusal(folder, "model.safetensors", "ln_f.bias has dtype F64")


def test_refuses_damaged_safetensors(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-4], whole[:300], whole[:7], b"", b"\xff" * 200, whole + b"more"):
        path.write_bytes(content)
        refusal(folder, "model.safetensors is not a valid safetensors file")


def test_refuses_a_file_that_shrinks_after_opening(folder):
    checkpoint = Checkpoint.open(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(GlgptError, match=r"model.safetensors changed after it was opened; run the command again"):
        checkpoint.read("wte.weight")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_refuses_lfs_pointers(folder, name):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refusal(folder, name, "run git lfs pull")


def test_refuses_config_faults(folder):
    config = folder / "config.json"
    reconfigure(folder, model_type="bert")
    refusal(folder, "config.json", "model_type is 'bert'")
    reconfigure(folder, model_type="gpt2", n_layer=10**9)
    refusal(folder, "config.json", "n_layer")
    for text in ("{", "[1]", "\xff", "", "null", "[" * 100_000):
        config.write_text(text, encoding="latin-1")
        refusal(folder, "config.json")
    config.unlink()
    refusal(folder, "it has no config.json and no .gguf file")


def test_a_file_that_is_replaced_is_not_mixed_with_the_earlier_one(folder):
    file = folder / "model.safetensors"
    with Checkpoint.open(folder) as checkpoint:
        other = Path(shutil.copy(file, folder / "other"))
        os.utime(other, (1, 1))
        other.replace(file)
        for opened in (checkpoint, checkpoint.shortened(4)):
            with pytest.raises(GlgptError, match=r"safetensors changed after it was opened; run the command again"):
                opened.read("wte.weight")


def test_refuses_unreadable_files(folder):
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        (folder / name).mkdir()
        refusal(folder, name, "is a folder; it must be a regular file")
        (folder / name).rmdir()
        shutil.copy(GOLDENS / "vocab3-untied" / name, folder / name)
        (folder / name).chmod(0)
        if not os.access(folder / name, os.R_OK):  # root can read every file
            refusal(folder, name, "cannot be read: Permission denied")
        (folder / name).chmod(0o644)


def test_refuses_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    refusal(folder, "holds no weights", "model.safetensors", "pytorch_model.bin")
    save_file({}, folder / "model.safetensors")
    refusal(folder, "model.safetensors holds no tensors")


def test_refuses_checksums_that_are_no_texts(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", {"glgpt.sha256": json.dumps({"transformer.wte.weight": []})})
    refusal(folder, "model.safetensors: its list of checksums is damaged")


def test_refuses_what_is_no_folder(folder, tmp_path):
    refusal(folder / "model.safetensors", "is a file")
    for name in (str(tmp_path / "absent"), "./absent", tmp_path / "absent", "a/b/c"):
        refusal(name, f"'{name}' is neither a folder nor a valid model name on the Hugging Face Hub")
    refusal("~nobody-of-that-name/model", "cannot be looked up")
    refusal("nul\0name", "'nul\\x00name'")
    assert len(refusal("x" * 5000, "'xxxxxx", "xxxxxx'")) < 200


def test_refuses_index_faults(tmp_path):
    folder = Path(shutil.copytree(GOLDENS / "dhead2-gelu", tmp_path / "model"))
    index = folder / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    for shard in ("../other.safetensors", "/etc/passwd", 3, "a/b.safetensors", "", None):
        index.write_text(json.dumps({"weight_map": whole["weight_map"] | {"wte.weight": shard}}))
        refusal(folder, "model.safetensors.index.json", "wte.weight")
    for content in ({}, {"weight_map": []}, {"weight_map": {}}):
        index.write_text(json.dumps(content))
        refusal(folder, "model.safetensors.index.json has no weight_map")
    index.write_text(json.dumps({"weight_map": whole["weight_map"] | {"h.7.x": "model-00001-of-00002.safetensors"}}))
    refusal(folder, "model-00001-of-00002.safetensors lacks tensor 'h.7.x'")
    index.write_text(json.dumps(whole))
    (folder / "model-00002-of-00002.safetensors").unlink()
    refusal(folder, "model-00002-of-00002.safetensors is missing")


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_soak(["bf16", "dhead2-gelu", "dhead3-relu", "legacy-untied"], ("bf16",)))
def test_flipped_bytes_give_an_error_or_a_model(tmp_path, name):
    chance = random.Random(name)
    folder = Path(shutil.copytree(GOLDENS / name, tmp_path / "model", ignore=shutil.ignore_patterns("*.npz")))
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            for _ in range(chance.choice((1, 1, 2, 8))):
                reach = len(content) if chance.random() < 0.3 else min(len(content), 2600)  # mostly in the header
                content[chance.randrange(reach)] = chance.randrange(256)
            path.write_bytes(content)
            try:
                with Checkpoint.open(folder) as checkpoint:
                    for tensor in checkpoint.names:
                        checkpoint.read(tensor)
            except GlgptError as error:
                assert "\n" not in str(error)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("given", "fields", "name"),
    [
        ("folder", {}, "folder"),
        ("folder", {"_name_or_path": "owner/model-1B"}, "owner/model-1B"),
        ("folder", {"_name_or_path": "/home/someone/model"}, "folder"),
        ("folder", {"_name_or_path": "./out"}, "folder"),
        ("folder", {"_name_or_path": "/tmp/x", "_model_name_or_path": "Model 1B (v2)"}, "Model 1B (v2)"),
        ("folder", {"_name_or_path": 5, "_model_name_or_path": "\x1b[2J"}, "folder"),
        ("other/fine-tuned", {"_name_or_path": "owner/model-1B"}, "other/fine-tuned"),
        (None, {}, "folder"),
    ],
)
def test_a_model_is_called_as_its_authors_call_it(tmp_path, given, fields, name):
    """Regression: a page and `glgpt info` named a model after the folder that the model had been copied to."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert model_name(str(folder) if given == "folder" else given, folder, fields) == name
