"""Tests texts and batches: pieces give a whole text's ids, bad text is refused, seed and step determine batches."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glgpt.checkpoint.finding import embedded_weights
from glgpt.errors import FileError, GlgptError
from glgpt.text import dataset as module
from glgpt.text.dataset import batch, cache_folder, check_length, fixed_windows, load_data, starts, tokenised, windows
from glgpt.text.files import Text, cut
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.tokenizer_training import identity, make_tokenizer

EOS = "<|endoftext|>"
WORDS = [
    "To",
    " be",
    ",",
    "  ",
    "\n",
    "\n\n",
    " \n ",
    "\t",
    "'s",
    "'",
    " 12",
    "é",
    "\u00a0",
    "\u2003x",
    "日本",
    "🙂",
    EOS,
    "<|",
]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=40).map("".join)


@pytest.fixture(scope="module")
def shakespeare() -> Tokenizer:
    found = load_tokenizer(embedded_weights(), 1024)
    assert found
    return found


# Text


@given(text=TEXTS, block=st.integers(1, 9))
@example(text="a" + " " * 50 + "b\n" * 30, block=3)
def test_pieces_give_the_same_ids_as_the_text(shakespeare: Tokenizer, text: str, block: int) -> None:
    pieces = [p for p, _ in Text.of_string(text).pieces(shakespeare.special, block=block)] if text else []
    assert "".join(pieces) == text
    assert [i for p in pieces for i in shakespeare.encode(p)] == shakespeare.encode(text)


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("spaced")
    make_tokenizer("bpe:275", Text.of_string("to be or not to be that is the question " * 20), folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    found = load_tokenizer(folder, None)
    assert found and found.prefix_space and found.encode("a") == found.encode(" a")
    return found


@given(text=TEXTS.filter(bool), block=st.integers(1, 9))
@example(text="b\nc d\ne f", block=1)
def test_pieces_suit_a_tokenizer_that_puts_a_space_before_text(spaced: Tokenizer, text: str, block: int) -> None:
    pieces = [p for p, _ in Text.of_string(text).pieces(spaced.special, " ", block)]
    assert [i for p in pieces for i in spaced.encode(p)] == spaced.encode(text)


def test_a_special_token_with_blanks_is_never_cut() -> None:
    assert (
        cut("one <a b> two", ["<a b>"]) == 3
    )  # cuts neither before `b>` nor near the end, where a special token may have begun
    assert cut("one <a b> two and three", ["<a b>"]) == 17
    assert cut("<a b>", ["<a b>"]) == 0


def test_a_large_text_is_never_held_whole(tmp_path: Path, shakespeare: Tokenizer) -> None:
    file = tmp_path / "large.txt"
    file.write_text("Now is the winter of our discontent\n" * 400_000)  # 14 MB
    tracemalloc.start()
    total = sum(len(piece) for piece, _ in Text.of_files([file]).pieces(shakespeare.special))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == file.stat().st_size and peak < 6 << 20


def test_files_are_one_text(tmp_path: Path) -> None:
    for i, part in enumerate(("To be, ", "or not ", "to be")):
        (tmp_path / f"{i}").write_text(part)
    text = Text.of_files(sorted(tmp_path.iterdir()))
    assert "".join(piece for piece, _ in text.pieces()) == "To be, or not to be" and text.size == 19
    assert text.digest() == Text.of_string("To be, or not to be").digest()


@given(st.text(min_size=1, max_size=30), st.floats(0, 0.99))
def test_a_split_is_by_position_and_between_characters(text: str, last: float) -> None:
    first, second = ("".join(p for p, _ in part.pieces()) for part in Text.of_string(text).split(last))
    assert first + second == text
    at = int(len(text.encode()) * (1 - last))
    assert at <= len(first.encode()) < at + 4


def test_a_split_may_lie_in_any_file(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}").write_text("é" * 10)
    whole = Text.of_files(sorted(tmp_path.iterdir()))
    for last in (0.0, 0.1, 0.25, 0.3, 0.5, 0.9):
        first, second = whole.split(last)
        assert first.size + second.size == 80
        assert "".join(p for part in (first, second) for p, _ in part.pieces()) == "é" * 40
    assert [part.size for part in whole.split(0.25)] == [60, 20]


def test_the_usual_split_of_tinyshakespeare(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"x" * 1115394)
    assert [part.size for part in Text.of_files([tmp_path / "t"]).split(0.1)] == [1003854, 111540]


@pytest.mark.parametrize(
    "data, where", [(b"caf\xe9 is", 3), (b"a" * 3_000_000 + b"\xff", 3_000_000), (b"x\xe2\x82", 1)]
)
def test_what_is_no_utf8_is_refused_with_its_place(data: bytes, where: int, tmp_path: Path) -> None:
    (tmp_path / "good").write_text("good text")
    (tmp_path / "latin").write_bytes(data)
    text = Text.of_files([tmp_path / "good", tmp_path / "latin"])
    with pytest.raises(GlgptError, match=rf"latin is not UTF-8 text: .* at byte {where}; .* iconv -f LATIN1 "):
        list(text.pieces())


def test_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for files, why in (([], "no text"), ([tmp_path / "empty"], "empty is empty")):
        with pytest.raises(GlgptError, match=why):
            Text.of_files(files)
    with pytest.raises(GlgptError, match="empty"):
        Text.of_string("")
    with pytest.raises(GlgptError, match="surrogate"):
        Text.of_string("a\ud800")
    with pytest.raises(GlgptError, match="not a string"):
        Text.of_string(5)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Text.of_files([tmp_path / "none"])


# Ids


def test_ids_are_made_once_and_mapped(tmp_path: Path, shakespeare: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text, seen = "First Citizen:\nBefore we proceed any further, hear me speak.\n" * 200, []
    key = identity(embedded_weights())
    found = load_data(Text.of_string(text), 0.1, shakespeare, key, lambda *at: seen.append(at))
    middle = int(len(text) * 0.9)
    assert found.train.tolist() == shakespeare.encode(text[:middle])
    assert found.validation.tolist() == shakespeare.encode(text[middle:])
    assert isinstance(found.train, np.memmap) and found.train.dtype == np.uint16
    assert seen[-1] == (len(text), len(text))
    monkeypatch.setattr(shakespeare, "encode", None)  # the second time, nothing is tokenized
    again = load_data(Text.of_string(text), 0.1, shakespeare, key)
    assert again.train.tolist() == found.train.tolist() and again.key == found.key
    monkeypatch.undo()


def test_another_text_or_tokenizer_has_another_key(shakespeare: Tokenizer) -> None:
    keys = {load_data(Text.of_string(t), 0.5, shakespeare, k).key for t in ("to be", "to bee") for k in ("1", "2")}
    assert len(keys) == 4


def test_a_damaged_file_of_ids_is_made_anew(
    tmp_path: Path, shakespeare: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = Text.of_string("To be, or not to be")
    wanted = tokenised(text, shakespeare, "key").tolist()
    file = cache_folder() / "key.npy"
    for damage in (b"", b"no numpy file", file.read_bytes()[:-3]):
        file.write_bytes(damage)
        assert tokenised(text, shakespeare, "key").tolist() == wanted


def test_a_cache_that_cannot_be_written_names_the_remedy(
    tmp_path: Path, shakespeare: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(FileError, match=r"tokens, where .* cannot be written; set XDG_CACHE_HOME to a folder"):
            tokenised(Text.of_string("To be"), shakespeare, "key")


def test_an_interrupt_leaves_no_half_written_ids(
    tmp_path: Path, shakespeare: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenised(Text.of_string("To be, or not to be"), shakespeare, "key", stop)
    assert list(cache_folder().iterdir()) == []


def test_large_vocabularies_take_four_bytes(shakespeare: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shakespeare, "vocab_size", 70_000)
    monkeypatch.setattr(shakespeare, "encode", lambda text: [69_999, 3])
    ids = tokenised(Text.of_string("x"), shakespeare, "four")
    assert ids.dtype == np.uint32 and ids.tolist() == [69_999, 3]


def test_ids_beyond_the_vocabulary_are_refused(shakespeare: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shakespeare, "vocab_size", 300)
    with pytest.raises(GlgptError, match="the model's vocabulary ends at 299"):
        tokenised(Text.of_string("To be, or not to be"), shakespeare, "beyond")


# Batches


def test_batches_are_windows_and_what_follows_them() -> None:
    ids = np.arange(1000, dtype=np.uint16)
    inputs, targets = batch(ids, 1, 1, 64, 16)
    assert inputs.shape == targets.shape == (64, 16) and inputs.dtype == np.int32
    assert (targets == inputs + 1).all() and (np.diff(inputs, axis=1) == 1).all()


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    ids = np.arange(5000, dtype=np.uint16)
    first = {(seed, step): batch(ids, seed, step, 8, 16)[0].tobytes() for seed in (0, 1) for step in (1, 2, 3)}
    again = {(seed, step): batch(ids, seed, step, 8, 16)[0].tobytes() for seed, step in reversed(first)}
    assert first == again and len(set(first.values())) == 6


def test_windows_start_anywhere_alike() -> None:
    counts = np.bincount(np.concatenate([starts(7, step, 100, 50) for step in range(1, 501)]), minlength=50)
    assert len(counts) == 50  # the last position occurs, and no position beyond it
    assert ((counts - 1000) ** 2 / 1000).sum() < 86  # chi-squared of 49 degrees, p = 0.001
    assert (starts(7, 1, 1000, 1) == 0).all()


def test_starts_are_these_on_every_machine() -> None:
    assert starts(0, 1, 4, 1_003_790).tolist() == [187955, 637294, 155230, 801680]
    big = starts(2**32 - 1, 10**9, 5, 2**40)
    assert ((big >= 0) & (big < 2**40)).all() and len(set(big.tolist())) == 5


def test_fixed_windows_cover_the_text_once() -> None:
    ids = np.arange(100, dtype=np.uint16)
    first = fixed_windows(ids, 8, 0)
    inputs, targets = windows(ids, first, 8)
    assert inputs.ravel().tolist() == list(range(96)) and targets.ravel().tolist() == list(range(1, 97))
    some = fixed_windows(ids, 8, 24)
    assert some.tolist() == [0, 32, 64] and set(some) <= set(first)
    assert fixed_windows(np.arange(9), 8, 0).tolist() == [0]
    assert fixed_windows(ids, 8, 1).tolist() == [0]


def test_a_text_shorter_than_the_context_is_refused() -> None:
    check_length(np.zeros(9, np.uint16), 8, "training")
    with pytest.raises(GlgptError, match="8 tokens, too few for a context of 8: it needs 9"):
        check_length(np.zeros(8, np.uint16), 8, "training")


def test_the_header_is_of_one_length() -> None:
    assert len({len(module._header(np.dtype("<u2"), count)) for count in (0, 1, 10**6, 10**15)}) == 1
