"""Tests `glgpt convert`: GGUF files and folders hold the same model, or the conversion is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command_line import refused
from helpers.gguf_files import LLAMA, VOCAB, llama, tokenizer
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers

from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.finding import embedded_weights
from glgpt.checkpoint.generation_config import chat_sampling, end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli import main
from glgpt.errors import FileError, GlgptError
from glgpt.gguf.block_types import NUMBERS, TYPES
from glgpt.gguf.quantize import encode
from glgpt.gguf.reader import open_gguf
from glgpt.models import from_dict
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.untrusted.chat import load_chat

GOLDENS = Path(__file__).parents[1] / "goldens"
TEXT = "To be, or not to be:\n\n  don't 12345 <|endoftext|> naïve 日本 🙂"


def arrays(path: Path | str | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with Checkpoint.open(path) as checkpoint:
        return checkpoint.config.to_dict(), {name: np.array(checkpoint.read(name)) for name in checkpoint.names}


@pytest.mark.parametrize("name", ["wide", "vocab3-untied", "dhead3-relu", "llama-grouped", "bf16", "one-f16"])
def test_a_model_survives_both_formats(tmp_path: Path, name: str) -> None:
    source = GOLDENS / name
    config, wanted = arrays(source)
    if config.get("activation_function", "gelu_new") != "gelu_new":
        with pytest.raises(FileError, match="GGUF cannot hold its activation_function"):
            convert(source, tmp_path / "a.gguf")
        assert list(tmp_path.iterdir()) == []
        return
    found = convert(source, tmp_path / "a.gguf", "f32")
    assert found["bytes"] == (tmp_path / "a.gguf").stat().st_size
    convert(tmp_path / "a.gguf", tmp_path / "folder")
    for path in (tmp_path / "a.gguf", tmp_path / "folder"):
        again, tensors = arrays(path)
        assert tensors.keys() == wanted.keys()
        for tensor, values in wanted.items():
            np.testing.assert_array_equal(tensors[tensor], values.astype(np.float32))
        assert {k: v for k, v in again.items() if k != "n_inner"} == {k: v for k, v in config.items() if k != "n_inner"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "folder"]


@pytest.mark.parametrize(
    ("model_type", "setting"),
    [("llama", "mlp_bias"), ("olmo2", "attention_bias"), ("qwen3", "attention_bias"), ("gpt_neox", "attention_bias")],
)
def test_biases_that_gguf_cannot_hold_are_named(tmp_path: Path, model_type: str, setting: str) -> None:
    """Fails if the error does not name the setting in config.json, or if weights are written before the error."""
    fields = json.loads((GOLDENS / "llama-grouped/config.json").read_text())
    fields |= {"model_type": model_type, setting: model_type != "gpt_neox", "rotary_pct": 1.0}
    weights = {name: np.zeros(each.shape, np.float32) for name, each in from_dict(fields).file_tensors.items()}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(weights, folder / "model.safetensors")
    calls: list[tuple[int, int]] = []
    with pytest.raises(FileError, match=f"model: GGUF cannot hold its {setting}, {fields[setting]}"):
        convert(folder, tmp_path / "a.gguf", progress=lambda *counts: calls.append(counts))
    assert not calls and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(("dtype", "error"), [("f16", 1e-3), ("q8", 0.01), ("q4", 0.1)])
def test_narrow_formats_round_by_their_precision(tmp_path: Path, dtype: str, error: float) -> None:
    source = llama(tmp_path / "a.gguf")
    convert(source, tmp_path / "b.gguf", dtype)
    wanted, found = arrays(source)[1], arrays(tmp_path / "b.gguf")[1]
    for name, values in wanted.items():
        if values.ndim == 1:
            np.testing.assert_array_equal(found[name], values)
        else:
            worst = np.abs(found[name].astype(np.float32) - values).max() / np.abs(values).max()
            assert 0 < worst < error, name
    kinds = {name: tensor.dtype for name, tensor in open_gguf(tmp_path / "b.gguf").tensors.items()}
    plain, precise = {"f16": ("F16", "F16"), "q8": ("Q8_0", "Q8_0"), "q4": ("Q4_1", "Q8_0")}[dtype]
    assert kinds["blk.0.attn_q.weight"] == plain and kinds["output_norm.weight"] == "F32"
    for name in ("blk.1.attn_v.weight", "blk.1.ffn_down.weight", "token_embd.weight"):
        assert kinds[name] == precise


def test_rows_that_are_not_whole_blocks_are_f16(tmp_path: Path) -> None:
    convert(GOLDENS / "llama-grouped", tmp_path / "a.gguf", "q4")
    tensors = open_gguf(tmp_path / "a.gguf").tensors.values()
    assert {tensor.dtype for tensor in tensors if len(tensor.stored) > 1 and tensor.stored[-1] % 32} == {"F16"}


def test_the_embedded_model_keeps_ids_ends_and_prompts(tmp_path: Path) -> None:
    convert(None, tmp_path / "a.gguf")
    convert(tmp_path / "a.gguf", tmp_path / "folder")
    assert open_gguf(tmp_path / "a.gguf").tensors["blk.0.ffn_up.weight"].dtype == "F16"  # the model's own files are f16
    own = load_tokenizer(embedded_weights(), 1024)
    assert own
    for path in (tmp_path / "a.gguf", tmp_path / "folder"):
        found = load_tokenizer(path, 1024)
        assert found and found.encode(TEXT) == own.encode(TEXT) and found.prompt("a") == own.prompt("a")
        assert found.eos == own.eos and found.special == own.special
        assert end_of_text(path, 1024, found) == end_of_text(embedded_weights(), 1024, own)


def test_a_chat_template_and_its_tokens_are_kept(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
    recommended = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    metadata = (
        LLAMA | tokenizer(add_bos_token=True, eot_token_id=0) | {"tokenizer.chat_template": template} | recommended
    )
    source = llama(tmp_path / "a.gguf", metadata=metadata)
    convert(source, tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "b.gguf")
    for path in (source, tmp_path / "folder", tmp_path / "b.gguf"):
        found = load_tokenizer(path, VOCAB)
        chat = found and load_chat(path, found)
        assert chat and chat.pieces == (VOCAB - 3, None, VOCAB - 2)
        assert found and found.prompt("h")[0] == VOCAB - 3
        assert end_of_text(path, VOCAB, found) == (VOCAB - 2, 0)
        assert chat_sampling(path) == {"temperature": 0.5, "top_k": 20}
        assert found.encode("hello w<|end|><tool>") == load_tokenizer(source, VOCAB).encode("hello w<|end|><tool>")  # type: ignore[union-attr]
    types = [open_gguf(path).metadata["tokenizer.ggml.token_type"].tolist() for path in (source, tmp_path / "b.gguf")]
    assert types[0] == types[1]


def sentencepiece(folder: Path, merges: list[tuple[str, str]]) -> None:
    """Writes the files of a tokenizer like Gemma's, with as many tokens as the test model's vocabulary."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "ab", "▁a"]
    assert len(tokens) == VOCAB
    model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, unk_token="<unk>", fuse_unk=True,
                       byte_fallback=True)  # fmt: skip
    engine = Engine(model)
    engine.normalizer = normalizers.Replace(" ", "▁")
    engine.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    engine.add_special_tokens(["<s>", "</s>"])
    engine.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def test_a_sentencepiece_tokenizer_is_kept_by_its_scores(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    convert(llama(tmp_path / "a.gguf"), folder)
    (folder / "generation_config.json").unlink()
    merges = [("a", "b"), ("▁", "a")]
    sentencepiece(folder, merges)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5, 6, 7]}))
    with pytest.raises(GlgptError, match="GGUF has places for 3 of its 4 end-of-text tokens"):
        convert(folder, tmp_path / "ends.gguf")
    (folder / "generation_config.json").unlink()
    convert(folder, tmp_path / "b.gguf")
    own, found = load_tokenizer(folder, VOCAB), load_tokenizer(tmp_path / "b.gguf", VOCAB)
    assert own and found
    for text in ("ab ab", "a  b", "é<s>x", " a"):
        assert found.encode(text) == own.encode(text)
        assert found.decode(found.encode(text)) == own.decode(own.encode(text)) == text
    assert [len(own.encode(text)) for text in ("ab ab", " a")] == [3, 1]
    document = json.loads((folder / "tokenizer.json").read_text())
    blanks = {"id": document["model"]["vocab"]["<0x00>"], "content": "▁▁", "special": False, "normalized": False}
    vocab = {"▁▁" if token == "<0x00>" else token: i for token, i in document["model"]["vocab"].items()}
    merged = document["model"] | {"vocab": vocab, "merges": [["▁", "▁"], *document["model"]["merges"]]}
    added = {"added_tokens": [*document["added_tokens"], blanks], "model": merged}
    (folder / "tokenizer.json").write_text(json.dumps(document | added))
    convert(folder, tmp_path / "e.gguf")
    spaced, found = load_tokenizer(folder, VOCAB), load_tokenizer(tmp_path / "e.gguf", VOCAB)
    assert spaced and found and spaced.encode("ab  a") == found.encode("ab  a")
    assert spaced.decode([blanks["id"]]) == found.decode([blanks["id"]]) == "  "
    never = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
    (folder / "tokenizer.json").write_text(json.dumps(document | {"normalizer": None, "pre_tokenizer": never}))
    convert(folder, tmp_path / "d.gguf")
    found = load_tokenizer(tmp_path / "d.gguf", VOCAB)
    assert found and found.encode("ab ab") == own.encode("ab ab")
    (folder / "tokenizer.json").write_text(json.dumps(document | {"normalizer": {"type": "Lowercase"}}))
    with pytest.raises(GlgptError, match="GGUF cannot hold the step Lowercase"):
        convert(folder, tmp_path / "c.gguf")
    (folder / "tokenizer.json").write_text(json.dumps(document | {"normalizer": None}))
    with pytest.raises(GlgptError, match="byte_fallback tokenizer that does not replace blanks by ▁"):
        convert(folder, tmp_path / "c.gguf")
    sentencepiece(folder, merges[:1])  # a GGUF file cannot express that "▁" and "a" are never merged
    with pytest.raises(GlgptError, match="GGUF cannot hold the merges of its tokenizer"):
        convert(folder, tmp_path / "c.gguf")


def test_the_tokenizer_must_be_one_that_gguf_can_hold(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    convert(llama(tmp_path / "a.gguf"), folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    for change in (
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"normalizer": {"type": "Lowercase"}},
        {"model": document["model"] | {"ignore_merges": True}},
    ):
        (folder / "tokenizer.json").write_text(json.dumps(document | change))
        with pytest.raises(GlgptError, match="GGUF has no name for its normalizer, pre-tokenizer and ignore_merges"):
            convert(folder, tmp_path / "b.gguf")
    around = {"type": "BertProcessing", "cls": ["h", 5], "sep": ["e", 6]}
    (folder / "tokenizer.json").write_text(json.dumps(document | {"post_processor": around}))
    with pytest.raises(GlgptError, match="adds more than BOS and EOS"):
        convert(folder, tmp_path / "b.gguf")
    shutil.rmtree(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_a_sequence_of_one_normalizer_is_that_normalizer(tmp_path: Path) -> None:
    """Regression: Qwen's tokenizer was refused if its normalizer was a sequence that holds only NFC."""
    folder = tmp_path / "folder"
    convert(llama(tmp_path / "a.gguf", metadata=LLAMA | tokenizer(pre="qwen2")), folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    assert document["normalizer"] == {"type": "NFC"}
    sequence = {"type": "Sequence", "normalizers": [document["normalizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(document | {"normalizer": sequence}))
    convert(folder, tmp_path / "b.gguf")
    assert open_gguf(tmp_path / "b.gguf").metadata["tokenizer.ggml.pre"] == "qwen2"


def test_llama3_scaling_has_the_published_numbers(tmp_path: Path) -> None:
    with pytest.raises(GlgptError, match="GGUF cannot hold rotary scaling with"):
        convert(GOLDENS / "llama3-untied", tmp_path / "a.gguf")
    folder = tmp_path / "folder"
    shutil.copytree(GOLDENS / "llama3-untied", folder)
    config = json.loads((folder / "config.json").read_text())
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 500000.0, "rope_parameters": llama3}))
    convert(folder, tmp_path / "a.gguf", "f32")
    assert arrays(tmp_path / "a.gguf")[0] == arrays(folder)[0]


def test_values_beyond_float16_need_f32(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "folder"
    convert(llama(tmp_path / "source.gguf"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][1, 1] = -70000
    save_file(tensors, folder / "model.safetensors")
    for dtype, out in (("f16", "a.gguf"), ("q8", "a.gguf"), ("f16", "out")):
        with pytest.raises(GlgptError, match=r"up_proj\.weight has values beyond float16; use --dtype f32"):
            convert(folder, tmp_path / out, dtype)
    convert(folder, tmp_path / "a.gguf", "f32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "folder", "source.gguf"]


# The command


def test_the_command_reports_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = llama(tmp_path / "a.gguf")
    out = tmp_path / "b.gguf"
    assert main(["convert", str(path), "--to", str(out), "--dtype", "q8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"path": str(out), "format": "gguf", "dtype": "q8", "bytes": out.stat().st_size}
    folder = tmp_path / "my folder"
    assert main(["convert", str(out), "--to", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"my folder: f32, 0 MB; run it with: glgpt generate --model '{folder}'\n" in shown


def test_a_suffix_in_capitals_is_a_file_too(tmp_path: Path) -> None:
    found = convert(llama(tmp_path / "a.gguf"), tmp_path / "B.GGUF")
    assert found["format"] == "gguf" and (tmp_path / "B.GGUF").is_file()


def test_bad_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(llama(tmp_path / "a.gguf"))
    folder = str(tmp_path / "folder")
    cases = {
        (path, "--to", path): "exists; give another file, or remove it",
        (path, "--to", folder, "--dtype", "q8"): "--dtype q8 needs a .gguf file as --to; a folder holds f32 or f16",
        (path, "--to", str(tmp_path / "no/b.gguf")): "cannot be created: there is no folder",
        (path, "--to", str(tmp_path)): "is not empty; give another folder",
        (str(tmp_path / "none.gguf"), "--to", folder): "none.gguf does not exist; give a GGUF file, or OWNER/NAME:FILE",
        (path, "--to", folder, "--dtype", "q5"): "invalid choice: 'q5'",
        (path,): "the following arguments are required: --to",
    }
    for words, message in cases.items():
        assert message in refused(capsys, "convert", *words), words
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = llama(tmp_path / "a.gguf")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("glgpt.gguf.writer.encode", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        convert(source, tmp_path / "b.gguf")
    assert error.value.filename == str(tmp_path / "b.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_q4_loses_less_than_the_range_of_each_block(tmp_path: Path) -> None:
    """Fails if q4 derives a block's scale from its smallest and largest weight instead of searching for the best."""
    path = tmp_path / "q4.gguf"
    convert("shakespeare", path, "q4")
    name, kind = "h.2.mlp.c_fc.weight", TYPES[NUMBERS["Q4_1"]]
    with Checkpoint.open("shakespeare") as checkpoint, Checkpoint.open(path) as narrow:
        assert narrow.dtype(name) == "Q4_1"
        values = checkpoint.read(name).astype(np.float32)
        by_range = kind.values(encode(kind, values.T)).T
        lost, plainly = (float(((found - values) ** 2).sum()) for found in (narrow.read(name), by_range))
    assert 0.5 * plainly < lost < 0.95 * plainly
