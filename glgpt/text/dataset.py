"""Provides training data: the token ids of a text in a memory-mapped file, and random batches of these ids."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import FileError, GlgptError, quoted
from glgpt.system.files import cache_path, written_whole
from glgpt.text.files import Text
from glgpt.text.tokenizer import Tokenizer

Ids = NDArray[np.unsignedinteger[Any]]
Batch = tuple[NDArray[np.int32], NDArray[np.int32]]  # inputs and targets, [rows, context]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Data:
    """The ids of a text; its last part is held out as `validation`. `key` identifies the text and the tokenizer."""

    train: Ids
    validation: Ids
    key: str


def load_data(text: Text, last: float, tokenizer: Tokenizer, identity: str, progress: Progress | None = None) -> Data:
    """Tokenizes a text, or reads its ids from the cache; holds out the share `last` at the end for validation.

    `identity` identifies the tokenizer: see `tokenizer_training.identity`. Raises GlgptError if the text is not UTF-8
    or has a byte for which the vocabulary has no token.
    """
    parts = text.split(last)
    keys = [_key(part, tokenizer.vocab_size, identity) for part in parts]
    before, total = 0, text.size

    def show(done: int, _: int) -> None:
        if progress:
            progress(before + done, total)

    train = tokenised(parts[0], tokenizer, keys[0], show)
    before = parts[0].size
    return Data(train, tokenised(parts[1], tokenizer, keys[1], show), " ".join(keys))


def cache_folder() -> Path:
    """Returns the folder of cached token ids, `$XDG_CACHE_HOME/glgpt/tokens`; it may be deleted while no run trains."""
    return cache_path() / "tokens"


def data_key(text: Text, last: float, vocab_size: int, identity: str) -> str:
    """Returns the `key` of the `Data` that `load_data` would return for a text, without tokenizing the text."""
    return " ".join(_key(part, vocab_size, identity) for part in text.split(last))


def _key(text: Text, vocab_size: int, identity: str) -> str:
    return hashlib.sha256(f"1 {text.digest()} {identity} {vocab_size}".encode()).hexdigest()[:32]


def tokenised(text: Text, tokenizer: Tokenizer, key: str, progress: Progress | None = None) -> Ids:
    """Returns the ids of `text`, memory-mapped from the cache file of `key`; writes the file if missing or damaged."""
    if not text.size:
        return np.zeros(0, np.uint16)
    path = cache_folder() / f"{key}.npy"
    ids = _mapped(path)
    if ids is None:
        _make_writable(path.parent)
        _write(text, tokenizer, path, progress)
        ids = _mapped(path)
        if ids is None:
            raise GlgptError(f"{path} cannot be read back; delete it")
    return ids


def _make_writable(folder: Path) -> None:
    """Makes a folder of the cache. Raises FileError, naming the remedy, if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        why = "where the token ids of texts are cached, cannot be written"
        raise FileError(f"{quoted(folder, 300)}, {why}; set XDG_CACHE_HOME to a folder that can")


def _mapped(path: Path) -> Ids | None:
    try:
        found: Ids = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):  # damaged: the caller writes the file again
        return None
    return found if found.ndim == 1 and found.dtype in (np.uint16, np.uint32) else None


def _write(text: Text, tokenizer: Tokenizer, path: Path, progress: Progress | None) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32).newbyteorder("<")
    # With `prefix_space`, the tokenizer adds a space to a text that does not begin with one. The text is therefore
    # divided only before spaces.
    blanks = " " if tokenizer.prefix_space else " \n"
    with written_whole(path) as file:
        file.write(_header(dtype, 0))
        count = 0
        for piece, done in text.pieces(tokenizer.special, blanks):
            ids = np.asarray(tokenizer.encode(piece), dtype)
            file.write(ids.tobytes())
            count += len(ids)
            if progress:
                progress(done, text.size)
        file.seek(0)
        file.write(_header(dtype, count))  # has the same length as the first header, because the format pads headers


def _header(dtype: np.dtype[Any], count: int) -> bytes:
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def check_length(ids: Ids, context: int, what: str) -> None:
    """Raises GlgptError if there are too few ids for one window (`context` consecutive ids) and its targets."""
    if len(ids) <= context:
        raise GlgptError(
            f"the {what} text has {len(ids)} tokens, too few for a context of {context}: it needs {context + 1}; "
            "give more text or a smaller context"
        )


def batch(ids: Ids, seed: int, step: int, rows: int, context: int) -> Batch:
    """Returns the batch of one step: inputs and the targets that follow them, each `[rows, context]`.

    Each row is a window: `context` consecutive ids. Its start depends only on `seed`, `step` and the row's number.
    """
    return windows(ids, starts(seed, step, rows, len(ids) - context), context)


def starts(seed: int, step: int, rows: int, count: int) -> NDArray[np.int64]:
    """Returns `rows` integers from 0 to `count` - 1, hashed from (seed, step, row): the same on every machine."""
    share = shares(seed, np.array([step & 0xFFFFFFFF], np.uint32), np.arange(rows, dtype=np.uint32))
    found: NDArray[np.int64] = np.minimum(np.floor(share * count), count - 1).astype(np.int64)
    return found


def shares(seed: int, step: NDArray[np.uint32], row: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Returns numbers in [0, 1), hashed from `seed`, `step` and `row` (arrays of the same shape, or of one element)."""
    high = _hash(_hash(_hash(np.array([seed], np.uint32)) + step) + row)
    low = _hash(high + np.uint32(0x9E3779B9))
    share: NDArray[np.float64] = (high.astype(np.float64) * 2.0**21 + (low >> np.uint32(11))) * 2.0**-53
    return share


def mixed(seed: int, number: int) -> int:
    """Returns a seed below 2^32 that is hashed from a seed and a number: the same on every machine."""
    return int(_hash(_hash(np.array([seed], np.uint32)) + np.uint32(number & 0xFFFFFFFF))[0])


def _hash(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Hashes with MurmurHash3's finalizer: each bit of `x` changes about half the bits of the result."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def fixed_windows(ids: Ids, context: int, tokens: int) -> NDArray[np.int64]:
    """Returns the starts of an evaluation's windows of `context` ids.

    The windows do not overlap, so that an id is a target at most once.

    The windows together have at most `tokens` ids (0: no limit), but there is at least one window. If this excludes
    some windows of the text, the others are spread evenly over the text.
    """
    whole = (len(ids) - 1) // context
    some = min(whole, max(1, tokens // context)) if tokens else whole
    return np.arange(some, dtype=np.int64) * whole // max(1, some) * context


def windows(ids: Ids, first: NDArray[np.int64], context: int) -> Batch:
    """Returns the inputs and targets, each `[len(first), context]`, of the windows that start at `first`."""
    taken = ids[first[:, None] + np.arange(context + 1)].astype(np.int32)
    return np.ascontiguousarray(taken[:, :-1]), np.ascontiguousarray(taken[:, 1:])
