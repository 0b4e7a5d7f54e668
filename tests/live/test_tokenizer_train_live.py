"""Tests that transformers loads the tokenizers that training writes to the run's folder."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from glgpt.text.files import Text
from glgpt.text.tokenizer_training import make_tokenizer

PLAY = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["To be, or\n\nnot  to be's", "日本 é🙂", "\t \r\n", "<|endoftext|>", "a<|end"]
)


@pytest.fixture(scope="module", params=["bytes", "bpe:600"])
def pair(request, tmp_path_factory):
    """Returns our tokenizer and transformers', loaded from the same folder."""
    folder = tmp_path_factory.mktemp("run")
    ours = make_tokenizer(request.param, Text.of_string(PLAY), folder)
    config = {"model_type": "gpt2", "vocab_size": ours.vocab_size, "bos_token_id": ours.eos, "eos_token_id": ours.eos}
    (folder / "config.json").write_text(json.dumps(config))
    return ours, AutoTokenizer.from_pretrained(folder)


def test_the_vocabulary_is_the_same(pair):
    ours, theirs = pair
    assert len(theirs) == theirs.vocab_size == ours.vocab_size
    assert theirs.eos_token_id == ours.eos


@given(text=TEXTS)
@example(text=PLAY[:3000])
@example(text="To be<|endoftext|>\n")
def test_ids_are_the_same_both_ways(pair, text):
    ours, theirs = pair
    ids = ours.encode(text)
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text
