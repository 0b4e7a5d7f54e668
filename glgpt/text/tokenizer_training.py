"""Writes the tokenizer of a training run: GPT-2's, single bytes, a BPE trained on the text, or that of a folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.gguf.model_files import has_file, read_model_bytes
from glgpt.system.files import read_bytes, written_whole
from glgpt.text import bpe_process
from glgpt.text.files import Text
from glgpt.text.token_ids import MAX_MERGES
from glgpt.text.tokenizer import (
    COMBINED,
    EOS,
    GPT2_VOCAB_SIZE,
    LETTER_BYTE,
    TOKENIZER_EXTRAS,
    Tokenizer,
    gpt2_tokenizer,
    load_tokenizer,
    spelled_of,
)
from glgpt.text.untrusted.chat import TEMPLATE

FILES = ("vocab.json", "merges.txt", "tokenizer.json", *TOKENIZER_EXTRAS)
MIN_BPE_SIZE = 257  # size of a BPE vocabulary without merges: the token for the end of text, and the 256 bytes
MAX_BPE_SIZE = MAX_MERGES
_PIECE = 1 << 16  # bytes sent to the trainer at a time; the trainer buffers hundreds of pieces before it counts them
_LETTERS = sorted(LETTER_BYTE, key=LETTER_BYTE.__getitem__)  # by the byte that each represents

Progress = Callable[[int, int], None]


def make_tokenizer(kind: str, text: Text, folder: Path, progress: Progress | None = None) -> Tokenizer:
    """Writes a tokenizer to `folder` and loads it.

    `kind` is `gpt2`, `bytes`, `bpe:N` (trained on `text`) or another folder, whose tokenizer is copied. Raises
    GlgptError for any other `kind`, and if the tokenizer cannot be made.
    """
    number = bpe_size(kind)
    if number is not None:
        train_bpe(text, number, folder, progress)
    elif kind == "bytes":
        _write(folder, {letter: byte for byte, letter in enumerate(_LETTERS)}, [], None)
    elif kind == "gpt2":
        _write_gpt2(folder)
    else:
        source = Path(kind).expanduser()
        if not source.is_dir():
            raise GlgptError(
                f"tokenizer {written(kind)} is not gpt2, bytes, bpe:N or a folder with vocab.json and merges.txt"
            )
        copy_tokenizer(source, folder)
        _loaded(source, kind)  # loads the source first, so that errors name its folder
    return _loaded(folder, kind)


def bpe_size(kind: str) -> int | None:
    """Returns the N of `bpe:N`, or None for another kind. Raises GlgptError for an invalid N."""
    name, colon, number = kind.partition(":")
    if name != "bpe":
        return None
    if not colon or not number.isdecimal() or len(number) > 20:
        raise GlgptError(f"tokenizer {written(kind)}: write bpe:N with the size of the vocabulary, such as bpe:1024")
    return checked_size(int(number))


def checked_size(size: int) -> int:
    """Returns the `size` of a BPE vocabulary unchanged. Raises GlgptError outside `MIN_BPE_SIZE` .. `MAX_BPE_SIZE`."""
    if size < MIN_BPE_SIZE:
        raise GlgptError(
            f"a vocabulary of {size} is too small: 256 bytes and {EOS} make {MIN_BPE_SIZE} before any merge"
        )
    if size > MAX_BPE_SIZE:
        raise GlgptError(f"a vocabulary of {written(size)} is too large: at most {MAX_BPE_SIZE} are supported")
    return size


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copies the tokenizer files of a folder, or of a GGUF file. Raises GlgptError if there are none."""
    found = [name for name in FILES if has_file(source, name)]
    if not {"vocab.json", "merges.txt"} <= set(found) and COMBINED not in found:
        raise FileError(
            f"{quoted(source, 300)} holds no tokenizer: neither vocab.json with merges.txt nor tokenizer.json"
        )
    for name in found:
        _copy(source, name, folder)


def _copy(source: Path, name: str, folder: Path) -> None:
    with written_whole(folder / name) as file:
        file.write(read_model_bytes(source, name))


def copy_model_tokenizer(model: Path, vocab_size: int, folder: Path) -> Tokenizer:
    """Copies the tokenizer of a checkpoint, and its chat template if it has one, to `folder`; loads the tokenizer.

    If the checkpoint has no tokenizer files and its vocabulary has GPT-2's size, writes GPT-2's tokenizer.
    """
    if vocab_size == GPT2_VOCAB_SIZE and not any(has_file(model, name) for name in FILES[:3]):
        _write_gpt2(folder)
    else:
        copy_tokenizer(model, folder)
    if has_file(model, TEMPLATE):
        _copy(model, TEMPLATE, folder)
    return _loaded(folder, str(model), vocab_size)


def _loaded(folder: Path, kind: str, vocab_size: int | None = None) -> Tokenizer:
    tokenizer = load_tokenizer(folder, vocab_size)
    if tokenizer is None:
        raise FileError(f"{quoted(kind, 300)}: its tokenizer.json is not a BPE tokenizer, such as GPT-2's")
    return tokenizer


def identity(folder: Path) -> str:
    """Returns the SHA-256 of a folder's tokenizer files: tokenizers with the same SHA-256 give the same ids."""
    found = hashlib.sha256()
    for name in FILES:
        if (folder / name).is_file():
            data = read_bytes(folder / name)
            found.update(f"{name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def train_bpe(text: Text, size: int, folder: Path, progress: Progress | None = None) -> None:
    """Trains a byte-level BPE of `size` tokens and writes it in GPT-2's file format.

    Id 0 is the end of text. The ids of the bytes follow, sorted by the Unicode letters that represent the bytes in
    vocab.json, and then the ids of the merges. Pairs that occur at least twice are merged; of equally frequent pairs,
    the pair with the smaller ids is merged first. Words are divided after `bpe_process.MAX_WORD_BYTES` bytes. The same
    text gives the same files. Raises GlgptError if the size is too small, or larger than the text allows.
    """
    checked_size(size)
    learned = bpe_process.train(_counted(text, progress), size, [EOS], _LETTERS)
    got = len(learned["vocab"])
    if got < size:
        raise GlgptError(f"a vocabulary of {size} is too large for this text, which gives at most {got} tokens")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in learned["merges"]]
    merges = [(pair[0], pair[1]) for pair in pairs]
    _write(folder, learned["vocab"], merges, EOS)


def _counted(text: Text, progress: Progress | None) -> Iterator[str]:
    for piece, done in text.pieces(whole=[EOS], block=_PIECE):
        if progress:
            progress(done, text.size)
        yield from piece.split(EOS)  # so that the BPE is not trained on the characters of this token


def _write_gpt2(folder: Path) -> None:
    tokenizer = gpt2_tokenizer()
    if tokenizer is None:
        raise GlgptError("GPT-2's tokenizer is not in tiktoken's cache and cannot be downloaded: check the network")
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size - 1)]  # without the end of text
    vocab, merges = spelled_of(tokens)
    _write(folder, vocab | {EOS: len(tokens)}, merges, EOS)


def _write(folder: Path, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], eos: str | None) -> None:
    """Writes a tokenizer's files.

    Without `eos`, tokenizer_config.json sets it to null, since transformers would otherwise add an end-of-text token.
    """
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    config |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), eos)
    ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
    texts = {
        "vocab.json": json.dumps(ordered, ensure_ascii=False, separators=(",", ":")),
        "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges),
        "tokenizer_config.json": json.dumps(config, indent=1) + "\n",
    }
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, content in texts.items():
            with written_whole(folder / name) as file:
                file.write(content.encode())
    except BaseException:  # an incomplete tokenizer is useless
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
