"""The tokenizer against transformers' GPT2Tokenizer, on any text."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast

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
    """A small byte-level BPE in `folder`, in both file layouts; returns it as the tokenizers library has it."""
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
    """Ours and transformers', of the same files."""
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
