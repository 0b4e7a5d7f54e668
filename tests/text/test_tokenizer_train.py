"""Tests tokenizers made for training: their files load, have the requested size, and are the same each time."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.soak import mostly_soak
from hypothesis import given
from hypothesis import strategies as st

from glgpt.checkpoint.finding import embedded_weights
from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.system.signals import Terminated
from glgpt.text import bpe_process
from glgpt.text.bpe_process import MAX_WORD_BYTES
from glgpt.text.files import Text
from glgpt.text.tokenizer import Tokenizer, load_tokenizer, merges_of, spell
from glgpt.text.tokenizer_training import (
    EOS,
    FILES,
    bpe_size,
    copy_model_tokenizer,
    identity,
    make_tokenizer,
    train_bpe,
)

PLAY = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer("bytes", Text.of_string("x"), tmp_path_factory.mktemp("bytes"))


@given(text=st.text())
def test_bytes_are_their_own_ids(plain: Tokenizer, text: str) -> None:
    assert plain.encode(text) == list(text.encode())
    assert plain.decode(text.encode()) == text


def test_a_vocabulary_of_bytes_has_no_end_of_text(plain: Tokenizer) -> None:
    assert (plain.vocab_size, plain.eos) == (256, None)
    assert plain.encode(EOS) == list(EOS.encode())
    assert [plain.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


def test_a_bpe_has_the_size_asked_for(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("bpe:400", Text.of_string(PLAY), tmp_path)
    assert (tokenizer.vocab_size, tokenizer.eos) == (400, 0)
    vocab = json.loads((tmp_path / "vocab.json").read_bytes())
    assert sorted(vocab.values()) == list(range(400)) and vocab[EOS] == 0
    lines = (tmp_path / "merges.txt").read_text().splitlines()
    assert lines[0] == "#version: 0.2" and len(lines) == 1 + 400 - 257
    assert [vocab[line.replace(" ", "")] for line in lines[1:]] == list(
        range(257, 400)
    )  # each merge has one id, in order
    ids = tokenizer.encode(PLAY)
    assert tokenizer.decode(ids) == PLAY and len(ids) < 0.6 * len(PLAY)


def test_the_merges_are_those_of_the_definition(tmp_path: Path) -> None:
    """Compares merges with a simple loop that merges the most frequent pair; among equals, the one with smaller ids."""
    text = "low low low lower lower newest newest widest"
    make_tokenizer("bpe:263", Text.of_string(text), tmp_path)
    words = [(" " if i else "") + word for i, word in enumerate(text.split())]
    letters = sorted(spell(bytes([b])) for b in range(256))
    ids = {letter: i + 1 for i, letter in enumerate(letters)}
    split = [[spell(c.encode()) for c in word] for word in words]
    merges = []
    for _ in range(6):
        counts: dict[tuple[str, str], int] = {}
        for word in split:
            for pair in itertools.pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        merges.append(" ".join(best))
        ids["".join(best)] = len(ids) + 1
        for word in split:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = ["".join(best)]
                i += 1
    assert (tmp_path / "merges.txt").read_text().splitlines()[1:] == merges


def test_the_same_text_gives_the_same_files(tmp_path: Path) -> None:
    keys = set()
    for i, parts in enumerate(([PLAY], [PLAY], [PLAY[:1000], PLAY[1000:]])):  # the division into files has no effect
        files = []
        for j, part in enumerate(parts):
            files.append(tmp_path / f"{i}-{j}.txt")
            files[-1].write_text(part)
        train_bpe(Text.of_files(files), 600, tmp_path / str(i))
        keys.add(identity(tmp_path / str(i)))
    assert len(keys) == 1


def test_the_end_of_text_written_out_is_not_learnt_from(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(
        "bpe:266", Text.of_string(f"ab ab ab ab{EOS}cd cd cd{EOS}" * 50 + "efgh ijkl" * 30), tmp_path
    )
    assert not any(EOS[2:8].encode() in tokenizer.token_bytes(i) for i in range(1, 266))
    assert tokenizer.encode(f"ab{EOS}")[-1] == 0


@pytest.mark.parametrize(
    "kind, why",
    [
        ("bpe:256", "too small"), ("bpe:5000", "too large for this text, which gives"), ("bpe:x", "write bpe:N"),
        ("bpe:", "write bpe:N"), ("bpe", "write bpe:N"), ("byte", "is not gpt2, bytes, bpe:N or a folder"),
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_refused(kind: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(GlgptError, match=why):
        make_tokenizer(kind, Text.of_string(PLAY[:2000]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_no_utf8_is_refused_while_training(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"abc " * 50_000 + b"\xff")
    with pytest.raises(GlgptError, match=r"latin is not UTF-8 text: .* at byte 200000"):
        train_bpe(Text.of_files([tmp_path / "latin"]), 300, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_is_copied(tmp_path: Path) -> None:
    source = embedded_weights()
    tokenizer = make_tokenizer(str(source), Text.of_string("x"), tmp_path)
    assert tokenizer.vocab_size == 1024 and tokenizer.encode("To be") == [397, 305]
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in source.iterdir()} & set(FILES)
    assert identity(tmp_path) == identity(source)
    with pytest.raises(GlgptError, match="holds no tokenizer"):
        make_tokenizer(str(Path(__file__).parents[1] / "data"), Text.of_string("x"), tmp_path)


def test_a_models_tokenizer_is_cut_to_its_vocabulary(tmp_path: Path) -> None:
    tokenizer = copy_model_tokenizer(embedded_weights(), 1024, tmp_path)
    assert tokenizer.vocab_size == 1024 and tokenizer.eos == 0
    with pytest.raises(GlgptError, match="holds no tokenizer"):
        copy_model_tokenizer(Path(__file__).parents[1] / "goldens/wide", 77, tmp_path)


def test_merges_are_found_again_from_the_tokens() -> None:
    """Fails if merges cannot be derived from tokens: tiktoken stores only the tokens of GPT-2's tokenizer."""
    lines = (embedded_weights() / "merges.txt").read_text().splitlines()
    tokenizer = load_tokenizer(embedded_weights(), 1024)
    assert tokenizer
    tokens = [tokenizer.token_bytes(i) for i in range(1, 1024)]
    assert [f"{spell(a)} {spell(b)}" for a, b in merges_of(tokens)] == [
        x for x in lines if not x.startswith("#version")
    ]


def test_sizes_of_bpe() -> None:
    assert (bpe_size("bpe:1024"), bpe_size("gpt2"), bpe_size("bytes")) == (1024, None, None)


# The command


def test_the_command_trains_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "play.txt").write_text(PLAY)
    out = tmp_path / "made/tokenizer"
    assert main(["tokenizer", "train", str(tmp_path / "play.txt"), "--vocab", "300", "--out", str(out), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == {"out": str(out), "vocab_size": 300, "text_bytes": len(PLAY)}
    tokenizer = load_tokenizer(out, None)
    assert tokenizer and tokenizer.vocab_size == 300
    assert main(["tokenizer", "train", str(tmp_path / "play.txt"), "--vocab", "300", "--out", str(out)]) == 2
    assert "holds a tokenizer" in capsys.readouterr().err


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "play.txt").write_text(PLAY[:3000])
    for vocab, out, why in (("100", "a", "too small"), ("9999", "b", "too large"), ("300", "play.txt", "is a file")):
        assert (
            main(["tokenizer", "train", str(tmp_path / "play.txt"), "--vocab", vocab, "--out", str(tmp_path / out)])
            == 2
        )
        err = capsys.readouterr().err
        assert why in err and err.count("\n") == 1
    assert main(["tokenizer", "train", str(tmp_path / "none"), "--vocab", "300", "--out", str(tmp_path / "c")]) == 2
    assert "none" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["play.txt"]


@pytest.mark.parametrize("size", [1 << 21, 99999999999, 10**5000], ids=["2^21", "terabytes", "long"])
def test_a_size_beyond_reason_is_refused(size: int, tmp_path: Path) -> None:
    """Fails if the library receives the size: it would try to allocate terabytes and abort the process."""
    with pytest.raises(GlgptError, match="is too large"):
        train_bpe(Text.of_string("to be " * 100), size, tmp_path / "out")
    kind = f"bpe:{size}" if size < 10**100 else "bpe:" + "9" * 5000
    with pytest.raises(GlgptError, match=r"is too large|write bpe:N"):
        make_tokenizer(kind, Text.of_string("to be " * 100), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_no_folder_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "umask", full)  # called after a file has been written
    with pytest.raises(OSError, match="No space left") as caught:
        make_tokenizer("bytes", Text.of_string("x"), tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out/vocab.json")
    assert not (tmp_path / "out").exists()


# Long words, signals


def test_a_long_run_of_one_character_is_learnt_from_in_parts(tmp_path: Path) -> None:
    """Regression: 80,000 blanks took more than a minute, and a million blanks took 27 minutes."""
    train_bpe(Text.of_string("to be " * 40 + " " * 1_000_000 + "x"), 266, tmp_path / "long")
    lines = (tmp_path / "long/merges.txt").read_text().splitlines()
    assert lines[1:6] == [f"{'Ġ' * n} {'Ġ' * n}" for n in (1, 2, 4, 8, 16)]
    train_bpe(
        Text.of_string("to be " * 40 + " " * (1_000_000 % MAX_WORD_BYTES + 1000 * MAX_WORD_BYTES) + "x"),
        266,
        tmp_path / "as",
    )
    assert identity(tmp_path / "as") == identity(tmp_path / "long")  # both texts give the same parts


SLOW = """
import random, sys
from collections.abc import Iterator
from pathlib import Path
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import train_bpe

def show(done, size):
    print("read" if done == size else "", flush=True)

text = "".join(random.Random(1).choices("abcdefgh", k=4_000_000))
train_bpe(Text.of_string(text), 20_000, Path(sys.argv[1]), show)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are read from /proc")
@pytest.mark.parametrize("number", mostly_soak([signal.SIGTERM, signal.SIGINT], (signal.SIGINT,)))
def test_a_signal_ends_training_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """Regression: SIGTERM was ignored until the library had learned its last merge."""
    handled = "import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler)\n"
    command = [sys.executable, "-c", handled + SLOW, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout and any(line.strip() == "read" for line in process.stdout)
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        time.sleep(1)  # the process is learning merges
        sent = time.monotonic()
        process.send_signal(number)
        assert process.wait(60) != 0 and time.monotonic() - sent < 20
    assert not Path(f"/proc/{child}").exists() and not (tmp_path / "out").exists()


def test_a_process_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bpe_process, "_COMMAND", "raise MemoryError('no\\x1b room')")
    with pytest.raises(GlgptError, match=r"^the tokenizer cannot be trained: MemoryError: no\\x1b room$"):
        train_bpe(Text.of_string("to be " * 100_000), 260, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_is_not_replaced_by_an_error_of_the_pipe() -> None:
    """Fails if unsent bytes raise BrokenPipeError, which would replace the interrupt and give a wrong exit code."""

    def pieces() -> Iterator[str]:
        yield "to be"
        raise Terminated

    with pytest.raises(Terminated):
        bpe_process.train(pieces(), 260, [], [])


def test_the_folder_one_stands_in_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    train_bpe(Text.of_string("to be " * 100), 260, tmp_path / "out")
