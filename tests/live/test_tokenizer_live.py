"""Compares tokenizers with those of transformers: random texts, and the layouts of published tokenizer.json files."""

import json
from pathlib import Path

import pytest
from helpers.tokenizer_layouts import LAYOUTS, layout
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from glgpt.text.tokenizer import load_tokenizer

WEIGHTS = Path(__file__).parents[2] / "weights" / "shakespeare"
CORPUS = [path.read_text() for path in sorted(Path(__file__).parents[1].rglob("*.py"))]

PIECES = st.sampled_from(
    [
        "<|endoftext|>",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "'s",
        "'ll",
        " the",
        "O, ",
        "é",
        "\u00a0",
        "\u2003",
        "日本",
        "🙂",
        "<",
    ]
)
TEXTS = st.lists(st.text(max_size=12) | PIECES, max_size=8).map("".join)


def train(folder, *, prefix_space):
    """Trains a small byte-level BPE, saves its tokenizer.json in `folder`, and returns it as a `tokenizers` object."""
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken("<|endoftext|>", special=True), AddedToken("<pad>", special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.fixture(scope="module", params=["shakespeare", "trained", "trained, prefix space", "trained, shuffled ids"])
def pair(request, tmp_path_factory):
    """Returns our tokenizer and transformers', loaded from the same files."""
    if request.param == "shakespeare":
        return load_tokenizer(WEIGHTS, 1024), GPT2Tokenizer.from_pretrained(WEIGHTS)
    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = train(folder, prefix_space="prefix" in request.param)
    if "shuffled" not in request.param:
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        return load_tokenizer(folder, tokenizer.get_vocab_size()), theirs
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocab = {token: 599 - i for token, i in whole["model"]["vocab"].items()}
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    merges = "\n".join(" ".join(merge) for merge in whole["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    return load_tokenizer(folder, 600), GPT2Tokenizer.from_pretrained(folder)


@given(text=TEXTS)
@example(" " * 300 + "x")
@example("\u0085 \u200b\x1c\x1f a\r\n\r\nb")
@example("I'LL i'll it'S 12345 ½ ² ٣ don't")
@settings(max_examples=400, deadline=None)
def test_same_ids_and_text(pair, text):
    ours, theirs = pair
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False, skip_special_tokens=False)


@given(ids=st.lists(st.integers(0, 599), max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_ids_decode_alike(pair, ids):
    ours, theirs = pair
    assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False, skip_special_tokens=False)


def test_whole_play(pair):
    ours, theirs = pair
    text = "\n".join(CORPUS)
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.eos == theirs.convert_tokens_to_ids("<|endoftext|>")


# tokenizer.json in the layouts of published models

TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}


def loaded(folder, document, **config):
    """Returns our tokenizer and transformers', loaded from the same tokenizer.json."""
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder, None), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", LAYOUTS)
def test_prompts_are_neither_truncated_nor_padded(tmp_path, name):
    pad = layout(name)["added_tokens"][0]["content"]
    document = layout(name, truncation=TRUNCATION, padding=PADDING | {"pad_token": pad})
    ours, theirs = loaded(tmp_path, document)
    for text in (
        " in 1603  it was 42's\n\n\nYES'LL",
        " \t\r\n  a\u0085b naïve ☃ e\u0301",
        "<|end|> x</s>  <|im_end|>y",
    ):
        assert ours.prompt(text) == theirs(text).input_ids, text


FLAGS = [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_eos_token": False}]


@pytest.mark.parametrize("flags", FLAGS)
def test_a_template_decides_what_stands_around_a_prompt(tmp_path, flags):
    document = layout("tinyllama")
    _, text = document["post_processor"]["single"]
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    document["post_processor"] |= {"single": [text, end]}
    document["post_processor"]["special_tokens"] = {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}
    ours, theirs = loaded(tmp_path, document, bos_token="<s>", eos_token="</s>", **flags)
    assert ours.prompt("to be") == theirs("to be").input_ids


def test_added_tokens_are_renumbered_alike(tmp_path):
    document = layout("tinyllama")
    document["added_tokens"].append(document["added_tokens"][0] | {"content": "<end>", "id": 999})
    ours, theirs = loaded(tmp_path, document, eos_token="<end>")
    assert ours.eos == theirs.eos_token_id == len(document["model"]["vocab"])
    assert ours.encode("to<end>be") == theirs.encode("to<end>be", add_special_tokens=False)


@pytest.mark.parametrize("flags", FLAGS)
def test_plain_files_are_read_alike(tmp_path, flags):
    document = layout("gpt2")
    vocab = {token: i for token, i in document["model"]["vocab"].items() if token != "<|endoftext|>"}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(document["model"]["merges"]))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<b>": 900, "<a>": 800, "<c>": 700}))
    config = {"bos_token": "<a>", "eos_token": "<b>", "tokenizer_class": "GPT2Tokenizer", **flags}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = load_tokenizer(tmp_path, None), AutoTokenizer.from_pretrained(tmp_path)
    text = "to<a> be<b><c>"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False) and ours.eos == theirs.eos_token_id
    assert ours.prompt(text) == theirs(text).input_ids
