"""Tests the config and tokenizer that a GGUF file's metadata give, and models opened from GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_files import KINDS, LETTERS, LLAMA, TOKENS, VOCAB, llama, llama_tensors, tokenizer

from glgpt import models
from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.generation_config import end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import FileError, GlgptError
from glgpt.gguf.block_types import F32
from glgpt.gguf.model_config import llama3_divisors, model_config
from glgpt.gguf.model_files import file_name, has_file, read_model_bytes, read_model_json, read_model_text
from glgpt.gguf.reader import GgufFile, open_gguf
from glgpt.gguf.tensor import GgufTensor
from glgpt.gguf.tokenizer_files import PRE_TOKENIZERS, tokenizer_files
from glgpt.gguf.writer import Tensor, write_gguf
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.tokenizer_training import copy_model_tokenizer
from glgpt.text.untrusted.chat import load_chat


def opened(tmp_path: Path, metadata: dict[str, Any], tensors: list[Tensor] | None = None) -> GgufFile:
    write_gguf(tmp_path / "a.gguf", metadata, llama_tensors() if tensors is None else tensors)
    return open_gguf(tmp_path / "a.gguf")


# Configurations


def test_a_llama_has_the_config_of_its_folder(tmp_path: Path) -> None:
    config = model_config(opened(tmp_path, LLAMA | {"general.name": "Tiny one"}))
    assert config == {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 2,
        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "vocab_size": VOCAB, "tie_word_embeddings": True, "_model_name_or_path": "Tiny one",
    }  # fmt: skip
    assert models.from_dict(config).parameter_count == sum(np.prod(t.shape) for t in llama_tensors())


@pytest.mark.parametrize(("rotated", "share"), [(4, 0.25), (16, 1.0), (None, 1.0)])
def test_the_rotated_share_of_a_neox_is_that_of_the_file(rotated: int | None, share: float) -> None:
    """Fails if a file that names no rotated share, or rotates whole heads, gets GPT-NeoX's default share, a quarter."""
    numbers: dict[str, Any] = {
        "context_length": 64, "embedding_length": 64, "block_count": 1, "feed_forward_length": 128,
        "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5, "use_parallel_residual": True,
    }  # fmt: skip
    metadata = {f"gptneox.{key}": value for key, value in (numbers | {"rope.dimension_count": rotated}).items()}
    given = {key: value for key, value in metadata.items() if value is not None}
    tensors = {"token_embd.weight": GgufTensor(Path("a"), F32, (100, 64), 0)}
    file = GgufFile(Path("a"), {"general.architecture": "gptneox", **given}, tensors)
    assert model_config(file)["rotary_pct"] == share


def test_numbers_of_a_list_must_agree(tmp_path: Path) -> None:
    key = "llama.feed_forward_length"
    assert model_config(opened(tmp_path, LLAMA | {key: np.array([96, 96])}))["intermediate_size"] == 96
    with pytest.raises(FileError, match=r"feed_forward_length is .*; glgpt supports one number"):
        model_config(opened(tmp_path, LLAMA | {key: np.array([96, 97])}))


def test_rotary_scaling_is_read(tmp_path: Path) -> None:
    scaled = LLAMA | {
        "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0, "llama.rope.dimension_count": 8
    }  # fmt: skip
    config = model_config(opened(tmp_path, scaled))
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    for key in ("scaling.factor", "scale_linear"):  # in older files, which have no type
        older = model_config(opened(tmp_path, LLAMA | {f"llama.rope.{key}": 2.0}))
        assert older["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert "rope_scaling" not in model_config(opened(tmp_path, LLAMA | {"llama.rope.scaling.factor": 1.0}))
    assert config["partial_rotary_factor"] == 0.5
    llama3 = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    divisors = llama3_divisors(llama3, 500000.0, 64).astype(np.float32)
    assert divisors.min() == 1 and divisors.max() == 32
    more = [*llama_tensors(), Tensor("rope_freqs.weight", F32, (64,), lambda: divisors)]
    config = model_config(opened(tmp_path, LLAMA | {"llama.rope.freq_base": 500000.0}, more))
    assert config["rope_scaling"] == llama3
    more[-1] = Tensor("rope_freqs.weight", F32, (64,), divisors[::-1].copy)
    with pytest.raises(FileError, match=r"rope_freqs\.weight does not hold the rotary scaling of Llama 3"):
        model_config(opened(tmp_path, LLAMA | {"llama.rope.freq_base": 500000.0}, more))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("attention.value_length", 8),
        ("attention.scale", 0.5),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.sliding_window", 63),
        ("attn_logit_softcapping", 30.0),
        ("logit_scale", 2.0),
    ],
)
def test_a_key_that_no_field_describes_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    """Fails if a file that needs another computation runs as an ordinary llama."""
    path = tmp_path / "a.gguf"
    with pytest.raises(FileError, match=rf"llama\.{key} is {value}; glgpt runs llama with"):
        Checkpoint.open(llama(path, metadata=LLAMA | tokenizer() | {f"llama.{key}": value}))


@pytest.mark.parametrize("window", [0, 64])
def test_a_window_that_holds_all_positions_changes_nothing(tmp_path: Path, window: int) -> None:
    plain = model_config(opened(tmp_path, LLAMA))
    assert model_config(opened(tmp_path, LLAMA | {"llama.attention.sliding_window": window})) == plain


def test_an_architecture_that_is_not_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="architecture 'mamba'; glgpt reads gpt2, llama, qwen2"):
        model_config(opened(tmp_path, LLAMA | {"general.architecture": "mamba"}))
    with pytest.raises(FileError, match=r"general\.architecture is missing"):
        model_config(opened(tmp_path, {}))
    with pytest.raises(FileError, match=r"token_embd\.weight is missing"):
        model_config(opened(tmp_path, LLAMA, []))


def test_a_file_lacks_a_tensor_or_has_another(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, LLAMA | tokenizer(), llama_tensors()[:-1])
    with pytest.raises(GlgptError, match=r"a\.gguf: tensor layers\.1\.mlp\.down_proj\.weight is missing"):
        Checkpoint.open(path)
    extra = Tensor("blk.7.odd.weight", F32, (4,), lambda: np.zeros(4, np.float32))
    write_gguf(path, LLAMA | tokenizer(), [*llama_tensors(), extra])
    with pytest.raises(GlgptError, match=r"tensor blk\.7\.odd\.weight is not part of the model"):
        Checkpoint.open(path)


def test_blocks_and_digest_of_a_checkpoint(tmp_path: Path) -> None:
    llama(tmp_path / "plain.gguf")
    with (
        Checkpoint.open(llama(tmp_path / "q8.gguf", "Q8_0")) as narrow,
        Checkpoint.open(tmp_path / "plain.gguf") as one,
    ):
        name = "layers.1.self_attn.q_proj.weight"
        blocks = narrow.blocks(name)
        assert blocks and blocks.group == 32
        np.testing.assert_array_equal(blocks.values(), narrow.read(name))
        np.testing.assert_allclose(narrow.read(name), one.read(name), atol=0.01)
        assert narrow.blocks("norm.weight") is None and one.blocks(name) is None
        assert narrow.dtype(name) == "Q8_0"
        flat = narrow.read(name).ravel()
        np.testing.assert_array_equal(narrow.sample(name, 100), flat[:: flat.size // 100][:100])
        assert model_digest(narrow) != model_digest(one)
    shown = llama_tensors("Q8_0")[0]
    assert shown.type is KINDS["Q8_0"]


# Tokenizers


def test_ids_special_tokens_and_ends(tmp_path: Path) -> None:
    path = llama(tmp_path / "a.gguf")
    found = load_tokenizer(path, VOCAB)
    assert found
    ids = found.encode("hello w<|end|>x<tool>")
    assert [TOKENS[i] for i in ids] == ["hello", "Ġw", "<|end|>", "x", "<tool>"]
    assert found.decode(ids) == "hello w<|end|>x<tool>"
    assert found.eos == VOCAB - 2 and found.prompt("h") == [LETTERS.index("h")]
    assert end_of_text(path, VOCAB, found) == (VOCAB - 2,)
    assert load_chat(path, found) is None


def test_a_control_token_without_a_role_is_one_id(tmp_path: Path) -> None:
    types = np.ones(VOCAB, np.int32)
    types[-1] = 3
    found = load_tokenizer(llama(tmp_path / "a.gguf", metadata=LLAMA | tokenizer(token_type=types)), VOCAB)
    assert found and found.encode("h<tool>") == [LETTERS.index("h"), VOCAB - 1]


def test_tokens_around_a_text_and_a_chat(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}{{ bos_token }}"
    more = {"add_bos_token": True, "add_eos_token": True, "eot_token_id": VOCAB - 1}
    metadata = LLAMA | tokenizer(**more) | {"tokenizer.chat_template": template}
    path = llama(tmp_path / "a.gguf", metadata=metadata)
    found = load_tokenizer(path, VOCAB)
    assert found and found.prompt("w") == [VOCAB - 3, LETTERS.index("w"), VOCAB - 2]
    assert end_of_text(path, VOCAB, found) == (VOCAB - 2, VOCAB - 1)
    chat = load_chat(path, found)
    assert chat and chat.pieces == (VOCAB - 3, None, VOCAB - 2, VOCAB - 3)


def test_known_end_tokens_end_a_message_only_as_control_tokens(tmp_path: Path) -> None:
    tokens = [*TOKENS[:-3], "<|im_end|>", "<end_of_turn>", "<|eot_id|>"]
    types = np.ones(VOCAB, np.int32)
    types[-3:-1] = 3
    file = opened(tmp_path, LLAMA | tokenizer(tokens=tokens, token_type=types, eos_token_id=0))
    assert tokenizer_files(file)["generation_config.json"] == {"eos_token_id": [0, VOCAB - 3, VOCAB - 2]}


def test_sampling_that_the_author_recommends_is_read(tmp_path: Path) -> None:
    recommended = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    found = tokenizer_files(opened(tmp_path, LLAMA | tokenizer() | recommended))["generation_config.json"]
    assert (found["temperature"], found["top_k"]) == (0.5, 20) and type(found["top_k"]) is int


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_is_accepted(tmp_path: Path, pre: str) -> None:
    path = llama(tmp_path / "a.gguf", metadata=LLAMA | tokenizer(pre=pre))
    found = load_tokenizer(path, VOCAB)
    text = "hello w  12345 Don't\n\n日本 «x»"
    assert found and found.decode(found.encode(text)) == text
    begins = pre in ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
    assert found.prompt("h")[:1] == [VOCAB - 3] if begins else found.prompt("h") == found.encode("h")
    digits = [TOKENS[i] for i in found.encode("123")]
    assert digits == ["1", "2", "3"]


def test_sentencepiece_merges_follow_the_scores(tmp_path: Path) -> None:
    letters = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters]
    types = np.array([2, 3, 3, *[6] * 256, *[1] * 8], np.int32)
    scores = np.array([0, 0, 0, *[0] * 256, -9, -9, -9, -9, -2, -1, -3, -4], np.float32)
    more = {
        "model": "llama", "tokens": pieces, "token_type": types, "scores": scores, "bos_token_id": 1, "eos_token_id": 2,
        "unknown_token_id": 0,
    }  # fmt: skip
    metadata = {key: value for key, value in tokenizer(**more).items() if not key.endswith((".pre", ".merges"))}
    file = opened(tmp_path, LLAMA | metadata)
    merges = tokenizer_files(file)["tokenizer.json"]["model"]["merges"]
    assert merges == [["b", "c"], ["a", "b"], ["a", "bc"], ["ab", "c"], ["▁", "a"]]
    found = load_tokenizer(tmp_path / "a.gguf", len(pieces))
    assert found
    assert [pieces[i] for i in found.prompt("abc ab")] == ["<s>", "▁", "abc", "▁", "ab"]
    assert found.decode(found.encode("é a")) == " é a"
    assert [pieces[i] for i in found.encode("é")] == ["▁", "<0xC3>", "<0xA9>"]
    write_gguf(tmp_path / "a.gguf", LLAMA | metadata | {"tokenizer.ggml.add_space_prefix": False}, llama_tensors())
    found = load_tokenizer(tmp_path / "a.gguf", len(pieces))
    assert found and [pieces[i] for i in found.encode("abc")] == ["abc"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"model": "t5"}, "the tokenizer is of kind 't5'; glgpt reads 'gpt2' and 'llama'"),
    "pre": ({"pre": "bloom"}, "pre-tokenizer 'bloom' is not supported; supported are gpt-2"),
    "tokens": ({"tokens": 3}, "tokens is not a list of strings"),
    "twice": ({"tokens": [*TOKENS[:-1], "h"]}, "tokens has 'h' twice"),
    "types": ({"token_type": np.ones(3, np.int32)}, "token_type is not a list of"),
    "float types": ({"token_type": np.ones(VOCAB, np.float32)}, "token_type is not a list of"),
    "merges": ({"merges": 5}, "merges is not a list of strings"),
    "merge": ({"merges": ["h"]}, "is damaged: it is not laid out as a BPE tokenizer"),
    "unknown merge": ({"merges": ["h o"]}, "the merge 'h' 'o' needs a token that the vocabulary lacks"),
    "eos": ({"eos_token_id": VOCAB}, f"eos_token_id is {VOCAB}, not 0 to {VOCAB - 1}"),
    "scores": ({"model": "llama"}, "scores is not a list of"),
    "finite": ({"model": "llama", "scores": np.full(VOCAB, np.nan, np.float32)}, "scores is not a list of"),
    "long": (
        {"model": "llama", "scores": np.zeros(VOCAB, np.float32), "tokens": [*TOKENS[:-1], "x" * 300]},
        "tokens that are too long; at most 256 characters",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, name: str) -> None:
    more, match = BAD[name]
    path = llama(tmp_path / "a.gguf", metadata=LLAMA | tokenizer(**more))
    with pytest.raises(FileError, match=match) as error:
        load_tokenizer(path, VOCAB)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


ARRAYS: list[Any] = [np.array([1, 2]), np.array([], np.int32), np.array([0.5, np.nan]), ["a", "b"], []]
VALUES = [*ARRAYS, "", "x", True, False, -1, 0, 1 << 63, float("nan"), float("inf"), -0.5]


@pytest.mark.soak
@pytest.mark.slow
def test_any_value_of_any_key_is_read_or_refused(tmp_path: Path) -> None:
    """Fails if a value of an unexpected type raises anything but a GlgptError with one printable line."""
    path = tmp_path / "a.gguf"
    scores = {"scores": np.zeros(VOCAB, np.float32), "add_space_prefix": True, "unknown_token_id": 0}
    scaling = {f"llama.rope.scaling.{key}": 1.0 for key in ("type", "factor", "original_context_length")}
    split = {"split.count": 1, "split.no": 0, "general.alignment": 32, "tokenizer.chat_template": "x"}
    divisors = Tensor("rope_freqs.weight", F32, (8,), lambda: np.ones(8, np.float32))
    plain = llama_tensors("Q8_0")
    for kind in ("gpt2", "llama"):
        more = {"model": kind, "add_bos_token": True, "eot_token_id": 1, **scores}
        whole = LLAMA | tokenizer(**more) | split | {"general.name": "a"}
        for key in whole | scaling:
            for value in VALUES:
                write_gguf(path, whole | {key: value}, [*plain, divisors] if "freq_base" in key else plain)
                try:
                    with Checkpoint.open(path) as checkpoint:
                        found = load_tokenizer(path, checkpoint.config.vocab_size)
                    end_of_text(path, VOCAB, found)
                except GlgptError as error:
                    assert str(error).isprintable() and len(str(error)) < 1000, (key, value)


def test_a_file_without_a_tokenizer_runs_on_ids(tmp_path: Path) -> None:
    for metadata in (LLAMA, LLAMA | tokenizer(model="no_vocab")):
        path = llama(tmp_path / "a.gguf", metadata=metadata)
        assert load_tokenizer(path, VOCAB) is None
        assert end_of_text(path, VOCAB, None) == ()


# Files


def test_a_file_and_a_folder_are_read_alike(tmp_path: Path) -> None:
    path, folder = llama(tmp_path / "a.gguf"), tmp_path / "folder"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert has_file(path, name) and not has_file(folder, name)
        (folder / name).write_bytes(read_model_bytes(path, name))
        assert read_model_json(folder, name) == read_model_json(path, name)
        assert read_model_bytes(folder, name) == read_model_bytes(path, name)
    assert file_name(path, "config.json") == path and file_name(folder, "config.json") == folder / "config.json"
    assert not has_file(path, "vocab.json")
    with pytest.raises(FileError, match=r"a\.gguf has no vocab\.json"):
        read_model_json(path, "vocab.json")


def test_a_template_has_a_limit(tmp_path: Path) -> None:
    path = llama(tmp_path / "a.gguf", metadata=LLAMA | tokenizer() | {"tokenizer.chat_template": "x" * 100})
    assert read_model_text(path, "chat_template.jinja", 100) == "x" * 100
    with pytest.raises(FileError, match=r"chat_template\.jinja is larger than the limit of 99 bytes"):
        read_model_text(path, "chat_template.jinja", 99)


def test_a_run_copies_the_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    found = copy_model_tokenizer(llama(tmp_path / "a.gguf"), VOCAB, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    again = load_tokenizer(folder, VOCAB)
    assert again and again.encode("hello w<|end|>") == found.encode("hello w<|end|>")
