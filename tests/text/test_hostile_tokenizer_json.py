"""Tests that crafted tokenizer.json files and texts are read correctly or refused, without a panic or a hang."""

from __future__ import annotations

import json
import time
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from helpers.soak import mostly_soak
from helpers.tokenizer_layouts import LAYOUTS, layout
from hypothesis import given
from hypothesis import strategies as st

from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.gguf.splits import DIGITS, GPT2, LLAMA3
from glgpt.text.runs import MAX_RUN_CHARACTERS, parts
from glgpt.text.token_ids import MAX_SPECIAL_TOKENS
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.untrusted.patterns import checked_pattern

TOO_MANY = range(MAX_SPECIAL_TOKENS + 1)


def load(folder: Path, document: dict[str, Any]) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(document))
    found = load_tokenizer(folder, None)
    assert found
    return found


def with_model(name: str, **changes: Any) -> dict[str, Any]:
    document = layout(name)
    document["model"] |= changes
    return document


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def regex(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        # These files made the library panic, or the process abort.
        (with_model("tinyllama", continuing_subword_prefix="##"), "continuing_subword_prefix"),
        (with_model("smollm", end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (layout("tinyllama", post_processor=layout("llama2")["post_processor"] | {"special_tokens": {}}), "no ids"),
        # These files took memory or time without bound.
        (layout("tinyllama", normalizer=sequence(*[replace("a", "aa")] * 40)), "normalizer.Sequence.*16 items"),
        (layout("tinyllama", normalizer=sequence(*[replace("a", "aa")] * 4)), "expand one character to more than 8"),
        (layout("tinyllama", normalizer=replace("a", "a" * 9)), "expand one character to more than 8"),
        (layout("tinyllama", normalizer={"type": "Prepend", "prepend": "x" * 10**6}), "at most 64 characters"),
        (layout("qwen2", pre_tokenizer=regex("(a+)*b")), "repeats a group of varying length, at character 4"),
        (layout("qwen2", pre_tokenizer=regex("(?<x>a)")), "is not supported from character 0"),
        (layout("gemma", added_tokens=[{"content": f"<{i}>"} for i in TOO_MANY]), "at most 10000 items"),
        (layout("gemma", added_tokens=[{"content": "x" * 257}]), "at most 256 characters"),
        # Unsupported parts are refused by name, with a list of supported parts.
        (layout("tinyllama", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
         "normalizer: Precompiled is not supported; supported are .*'NFC'"),
        (layout("tinyllama", pre_tokenizer={"type": "\x1b[2J"}), r"pre_tokenizer: \\x1b\[2J is not supported"),
        (layout("tinyllama", decoder={"type": "CTC"}), "decoder: CTC is not supported"),
        (layout("tinyllama", post_processor={"type": "Other"}), "post_processor: Other is not supported"),
        (layout("tinyllama", normalizer=sequence(sequence(replace("a", "b")))), "Sequence is not supported"),
        (layout("tinyllama", normalizer=5), "normalizer"),
        (with_model("tinyllama", unk_token="<nope>"), "unk_token <nope> is not in the vocabulary"),
        (with_model("tinyllama", merges=["t h e"]), "not laid out as a BPE"),
        (with_model("tinyllama", merges=[["q", "zz"]]), "tokenizers cannot read it"),
        (with_model("tinyllama", vocab={"a": 1, "b": 1}), "two tokens the same id"),
    ],
)  # fmt: skip
def test_a_crafted_file_is_refused_in_one_line(tmp_path: Path, document: dict[str, Any], why: str) -> None:
    with pytest.raises(GlgptError, match=rf"tokenizer\.json.*{why}") as caught:
        load(tmp_path, document)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700


def test_the_command_line_refuses_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(with_model("tinyllama", continuing_subword_prefix="##")))
    (tmp_path / "a.txt").write_text("to be " * 100)
    line = ["train", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(line) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"padding": {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": 2**63, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "x"}},
        {"truncation": {"direction": "Left", "max_length": 1, "strategy": "LongestFirst", "stride": 2**63}},
    ],
    ids=["padding", "truncation"],
)  # fmt: skip
def test_what_no_text_depends_on_is_not_read(tmp_path: Path, change: dict[str, Any]) -> None:
    assert load(tmp_path, layout("tinyllama", **change)).prompt("to") == [
        1,
        *load(tmp_path, layout("tinyllama")).encode("to"),
    ]


def test_ids_are_the_same_each_time(tmp_path: Path) -> None:
    """Fails if the file's dropout is applied: each merge would be skipped with this probability."""
    ours = load(tmp_path, with_model("tinyllama", dropout=0.9))
    assert len({tuple(ours.encode("to be or not to be, and the other")) for _ in range(20)}) == 1


def test_a_panic_of_the_engine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    ours: Any = load(tmp_path, layout("tinyllama"))

    class Panics:
        def encode(self, *_: object, **__: object) -> None:
            raise PanicException("retry-limit\nin match")

    ours._engine = Panics()
    with pytest.raises(GlgptError, match=r"tokenizers cannot encode the text: retry-limit\\nin match"):
        ours.encode("x")
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    with pytest.raises(GlgptError, match="tokenizers cannot read it"):
        load(tmp_path, layout("tinyllama"))


# Regular expressions

CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    "pattern",
    [
        GPT2.pattern, DIGITS.pattern, LLAMA3.pattern, CL100K, r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        O200K, r" ?[^(\s|[.,!?…。，、।۔،])]+", " {2,}", "[a&&[^b]]",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|\s?\p{L}+",
    ],
)  # fmt: skip
def test_patterns_of_published_models_are_supported(pattern: str) -> None:
    assert checked_pattern(pattern) == pattern


@pytest.mark.parametrize(
    "pattern",
    ["(a+)*b", "(a|a)*b", "(a|ab)+", "(?:(?:a{99}){99}){99}", "a*a*a*a*b", "a?" * 30 + "a" * 30, "(a|a)" * 12, r"(a)\1",
     r"\g<0>", "(?~ab)", "(?(1)a|b)", "(?<n>a)", "(", "a)", "[a", "a{1000}", "(a?){2,}", "x" * 10_001,
     "a{0,999}a{0,999}", "((a)*)*", "(?=a*)*", r"\X*", "(?:a|b|c){9}", "a+*", "a{1,3}+", "(?x:a+ )", "[ab]{999}" * 3,
     "(?=a)*"],
)  # fmt: skip
def test_patterns_that_could_take_long_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="the regular expression"):
        checked_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"[ab]+[ac]+\p{N}", r"[ab]+[ac]+\p{N}|[ab]+", r"\p{L}+\p{N}", r"\s+$", r"\s+(?=\p{N})", r"\s+?(?!\S)",
     "[ab]+c|a|[ab]+",
     "[ab]+c|[ab]+?", "[ab]+c|[ab]{2,}", "[ab]+c|x[ab]+", "[ab]+c|[ab]+d", "[ab]++c", "a*a*b|a+",
     r"\d{1,3}(?=(?:\d{3})*\b)"],
)  # fmt: skip
def test_patterns_that_scan_a_run_again_from_each_position_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"scan a run|for each length of another|within a group"):
        checked_pattern(pattern)


@pytest.mark.parametrize("unit", ["a", "A", "1", " ", "-", "\u02b0", "\u0301"])
def test_a_failed_scan_is_not_repeated(unit: str) -> None:
    """Fails if a pattern needs more than 5 s.

    In some patterns, an alternative scans a run of characters and fails, and a later alternative matches the run.
    """
    from tokenizers import Regex, pre_tokenizers

    for pattern in (
        O200K,
        CL100K,
        LLAMA3.pattern,
        DIGITS.pattern,
        GPT2.pattern,
        r"x?[a ]+[b\n]{1,3}|[a ]+|\p{L}+\p{N}|\p{L}+",
    ):
        split = pre_tokenizers.Split(Regex(checked_pattern(pattern)), "isolated")
        start = time.process_time()
        split.pre_tokenize_str(unit * 100_000 + "x")
        assert time.process_time() - start < 5


# Texts


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_soak(LAYOUTS, ("gpt2", "smollm", "llama3", "llama2")))
@pytest.mark.parametrize("unit", [" ", "\n", "a", "1", "-", "🙂", "e\u0301", " \n"])
def test_a_long_run_takes_time_by_its_length(tmp_path: Path, name: str, unit: str) -> None:
    """Fails if the time grows with the square of a run's length, or decoding does not restore the run."""
    ours, took = load(tmp_path, layout(name)), []
    for count in (10_000, 80_000):
        text, start = unit * (count // len(unit)), time.process_time()
        ids = ours.encode(text)
        took.append(time.process_time() - start)
        if ours.split:
            assert ours.decode(ids) == text
    assert took[1] < 40 * took[0] + 1  # the text is 8 times as long; quadratic time would give a factor of 64


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_soak(["gpt2", "smollm", "llama3"], ("smollm",)))
def test_a_million_blanks_are_no_panic(tmp_path: Path, name: str) -> None:
    """Regression: tiktoken panicked from 999,999 blanks on. It stores a state per character, at most a million."""
    ours = load(tmp_path, layout(name))
    for text in (" " * 1_200_000, "x" + "\n" * 1_200_000 + "y", "\u3000\t" * 600_000 + "1"):
        assert ours.decode(ours.encode(text)) == text
    text = "a" + " " * (MAX_RUN_CHARACTERS - 1) + "b"  # a run of this length is not divided
    assert (
        ours.encode(text)
        == tokenizers.Tokenizer.from_str(json.dumps(layout(name))).encode(text, add_special_tokens=False).ids
    )


@given(st.text("ab \n\u3000\x1c🙂", max_size=40), st.integers(1, 6))
def test_runs_are_parted_by_their_length(text: str, most: int) -> None:
    found = parts(text, most)
    assert "".join(found) == text
    runs = [(key, len(list(run))) for key, run in groupby(text, key=lambda c: c in " \n\u3000")]
    ends = list(accumulate(count for _, count in runs))
    wanted = [end - count + at for (_, count), end in zip(runs, ends, strict=True) for at in range(most, count, most)]
    assert list(accumulate(map(len, found)))[:-1] == wanted
