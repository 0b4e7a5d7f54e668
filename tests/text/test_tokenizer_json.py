"""Compares tokenizer.json files in the layouts of published models with the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from helpers.tokenizer_layouts import LAYOUTS, layout

from glgpt.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "To be, or not to be",
    " in 1603  it was 42's\n\n\nYES'LL DON'T ſ",
    " \t\r\n  a\u0085b 12345 naïve café ☃ 日本 e\u0301",
    "<|end|> x</s>  y <|im_end|><|eot_id|>",
]


def load(folder: Path, document: dict[str, Any], **config: Any) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_tokenizer(folder, None)
    assert found
    return found


def engine(document: dict[str, Any]) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer.from_str(json.dumps(document))
    found.no_truncation()
    found.no_padding()
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_ids_are_the_librarys(tmp_path: Path, name: str) -> None:
    ours, reference = load(tmp_path, layout(name)), engine(layout(name))
    for text in TEXTS:
        assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids, text
        assert ours.prompt(text) == reference.encode(text).ids, text


def test_added_blanks_are_decoded_as_blanks(tmp_path: Path) -> None:
    """Fails if the decoder is not applied to an added token that is not special, such as Gemma's runs of blanks."""
    ours, reference = load(tmp_path, layout("gemma")), engine(layout("gemma"))
    text = "the  and    the"
    ids = ours.encode(text)
    assert ours.decode(ids) == text == reference.decode(ids) and len(ids) < len(text)


TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}


@pytest.mark.parametrize("name", ["tinyllama", "smollm"])
@pytest.mark.parametrize("option", [{"truncation": TRUNCATION}, {"padding": PADDING | {"pad_token": "</s>"}}])
def test_a_prompt_is_neither_truncated_nor_padded(tmp_path: Path, name: str, option: dict[str, Any]) -> None:
    (tmp_path / "plain").mkdir()
    plain = load(tmp_path / "plain", layout(name))
    assert load(tmp_path, layout(name, **option)).prompt(TEXTS[0]) == plain.prompt(TEXTS[0])


def template(*pieces: str) -> dict[str, Any]:
    """Returns a post-processor that adds special tokens to a text. The text is the piece `$A`."""
    kinds = [{"Sequence": {"id": "A"}} if piece == "$A" else {"SpecialToken": {"id": piece}} for piece in pieces]
    single = [{name: about | {"type_id": 0} for name, about in kind.items()} for kind in kinds]
    ids = {"<s>": 1, "</s>": 2, "<|im_start|>": 1, "<|im_end|>": 2}
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in set(pieces) - {"$A"}}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


@pytest.mark.parametrize("name, begin, end", [("tinyllama", "<s>", "</s>"), ("smollm", "<|im_start|>", "<|im_end|>")])
def test_special_tokens_stand_where_the_template_puts_them(tmp_path: Path, name: str, begin: str, end: str) -> None:
    cases = [template("$A", end), template(begin, begin, "$A", end), template("$A")]
    cases += [{"type": "RobertaProcessing", "sep": [end, 2], "cls": [begin, 1], "trim_offsets": True,
               "add_prefix_space": False}]  # fmt: skip
    for case in cases:
        document = layout(name, post_processor=case)
        assert load(tmp_path, document).prompt("to be") == engine(document).encode("to be").ids, case


@pytest.mark.parametrize("name", ["tinyllama", "smollm"])
def test_added_tokens_have_the_ids_that_the_library_gives_them(tmp_path: Path, name: str) -> None:
    """Fails if an added token keeps the file's id: the library uses the vocabulary's id, or the next free one."""
    document = layout(name)
    document["model"]["vocab"]["<far>"] = 900
    flags = document["added_tokens"][0]
    wanted = [("<end>", 700), ("</s>", 5), ("<far>", 3), ("", 8), ("<pad>", 1), ("<end>", 2)]
    document["added_tokens"] += [flags | {"content": content, "id": token} for content, token in wanted]
    ours, reference = load(tmp_path, document, eos_token="<end>"), engine(document)
    assert ours.special == {about.content: i for i, about in reference.get_added_tokens_decoder().items()}
    assert ours.eos == reference.token_to_id("<end>") == len(document["model"]["vocab"])
    assert ours.encode("to<end><far><pad>") == reference.encode("to<end><far><pad>", add_special_tokens=False).ids


def test_a_token_with_a_role_is_never_split(tmp_path: Path) -> None:
    """Fails if a token with a role, such as eos, is split because it is only in the vocabulary, not an added token."""
    document = layout("tinyllama") | {"added_tokens": []}
    ours = load(tmp_path, document, eos_token="</s>", pad_token="<nowhere>")
    assert ours.eos == 2 and ours.encode("x</s>")[-1] == 2 and "<nowhere>" not in ours.special


def test_ids_of_plain_files_are_renumbered_alike(tmp_path: Path) -> None:
    document = layout("gpt2")
    vocab = {token: i for token, i in document["model"]["vocab"].items() if token != "<|endoftext|>"}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("\n".join(document["model"]["merges"]))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<b>": 900, "t": 700}))
    config = {"added_tokens_decoder": {"800": {"content": "<a>"}}, "eos_token": "<b>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(tmp_path, None)
    assert ours and ours.prompt("be") == ours.encode("be")
    assert ours.special == {"t": vocab["t"], "<a>": len(vocab), "<b>": len(vocab) + 1}
    assert ours.eos == len(vocab) + 1


@pytest.mark.parametrize("flags, pieces", [((True, True), "<b>to<b>"), ((False, None), "to"), ((None, True), "to<b>")])
def test_plain_files_say_what_stands_around_a_prompt(tmp_path: Path, flags: Any, pieces: str) -> None:
    document = layout("gpt2")
    (tmp_path / "vocab.json").write_text(json.dumps(document["model"]["vocab"] | {"<b>": 300}))
    (tmp_path / "merges.txt").write_text("\n".join(document["model"]["merges"]))
    config = {"add_bos_token": flags[0], "add_eos_token": flags[1], "bos_token": "<b>", "eos_token": {"content": "<b>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(tmp_path, None)
    assert ours and ours.prompt("to") == ours.encode(pieces)


def test_a_tokenizer_json_comes_before_plain_files(tmp_path: Path) -> None:
    """Fails if vocab.json and merges.txt are read instead of tokenizer.json, which alone says that digits are split."""
    document = layout("smollm")
    (tmp_path / "vocab.json").write_text(json.dumps(document["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(document["model"]["merges"]))
    text = "in 1212"
    assert load(tmp_path, document).encode(text) == engine(document).encode(text).ids
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    ours = load_tokenizer(tmp_path, None)
    assert ours and ours.encode("in") == [document["model"]["vocab"]["in"]]
