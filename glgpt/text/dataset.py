"""Text as training data: ids tokenised once into a memory-mapped file, and the batches drawn from them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.system.files import cache_path, written_whole
from glgpt.text.files import Text
from glgpt.text.tokenizer import Tokenizer

Ids = NDArray[np.unsignedinteger[Any]]
Batch = tuple[NDArray[np.int32], NDArray[np.int32]]  # inputs and targets, [rows, context]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Data:
    """A text's ids, the last share of it held out for validation; `key` tells another text or tokenizer."""

    train: Ids
    validation: Ids
    key: str


def load_data(text: Text, last: float, tokenizer: Tokenizer, identity: str, progress: Progress | None = None) -> Data:
    """Tokenises both parts of `text`, or finds their ids in the cache; the `last` share of the bytes validates.

    `identity` stands for the tokenizer: see `tokenizer_train.identity`. Raises GlgptError for text that is no UTF-8 or
    that the tokenizer cannot hold.
    """
    parts = text.split(last)
    keys = [_key(part, tokenizer, identity) for part in parts]
    before, total = 0, text.size

    def show(done: int, _: int) -> None:
        if progress:
            progress(before + done, total)

    train = tokenised(parts[0], tokenizer, keys[0], show)
    before = parts[0].size
    return Data(train, tokenised(parts[1], tokenizer, keys[1], show), " ".join(keys))


def cache_folder() -> Path:
    """Where ids are kept: `$XDG_CACHE_HOME/glgpt/tokens`; it may be deleted whenever nothing trains."""
    return cache_path() / "tokens"


def _key(text: Text, tokenizer: Tokenizer, identity: str) -> str:
    return hashlib.sha256(f"1 {text.digest()} {identity} {tokenizer.vocab_size}".encode()).hexdigest()[:32]


def tokenised(text: Text, tokenizer: Tokenizer, key: str, progress: Progress | None = None) -> Ids:
    """The ids of `text`, mapped from the file `key` in the cache; made where it is missing or damaged."""
    if not text.size:
        return np.zeros(0, np.uint16)
    path = cache_folder() / f"{key}.npy"
    ids = _mapped(path)
    if ids is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(text, tokenizer, path, progress)
        ids = _mapped(path)
        if ids is None:
            raise GlgptError(f"{path} cannot be read back; delete it")
    return ids


def _mapped(path: Path) -> Ids | None:
    try:
        found: Ids = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):  # damaged: made anew
        return None
    return found if found.ndim == 1 and found.dtype in (np.uint16, np.uint32) else None


def _write(text: Text, tokenizer: Tokenizer, path: Path, progress: Progress | None) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32).newbyteorder("<")
    blanks = " " if tokenizer.prefix_space else " \n"  # such a tokenizer puts a space before any other start of text
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
        file.write(_header(dtype, count))  # of the same length: the format leaves room for any number


def _header(dtype: np.dtype[Any], count: int) -> bytes:
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def check_length(ids: Ids, context: int, what: str) -> None:
    """Raises GlgptError for too few ids to fill one window and its targets."""
    if len(ids) <= context:
        raise GlgptError(
            f"the {what} text has {len(ids)} tokens, too few for a context of {context}: it takes {context + 1}; "
            "give more text or a smaller context"
        )


def batch(ids: Ids, seed: int, step: int, rows: int, context: int) -> Batch:
    """The windows of one step, [rows, context]: inputs, and the targets that follow each of them.

    Where they start depends on `seed`, `step` and the row alone.
    """
    return windows(ids, starts(seed, step, rows, len(ids) - context), context)


def starts(seed: int, step: int, rows: int, count: int) -> NDArray[np.int64]:
    """`rows` numbers from 0 to `count` - 1, drawn by hashing (seed, step, row): the same on every machine."""
    share = shares(seed, np.array([step & 0xFFFFFFFF], np.uint32), np.arange(rows, dtype=np.uint32))
    found: NDArray[np.int64] = np.minimum(np.floor(share * count), count - 1).astype(np.int64)
    return found


def shares(seed: int, step: NDArray[np.uint32], row: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Numbers in [0, 1), hashed from the seed and from `step` and `row`, arrays of one shape, or of one number."""
    high = _hash(_hash(_hash(np.array([seed], np.uint32)) + step) + row)
    low = _hash(high + np.uint32(0x9E3779B9))
    share: NDArray[np.float64] = (high.astype(np.float64) * 2.0**21 + (low >> np.uint32(11))) * 2.0**-53
    return share


def mixed(seed: int, number: int) -> int:
    """A seed below 2^32 for each number of a seed: the same on every machine."""
    return int(_hash(_hash(np.array([seed], np.uint32)) + np.uint32(number & 0xFFFFFFFF))[0])


def _hash(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's finalizer: every bit of `x` flips about half the bits of the result."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def fixed_windows(ids: Ids, context: int, tokens: int) -> NDArray[np.int64]:
    """Where the windows of an evaluation start: back to back from the first id on, each id a target at most once.

    Where they would take more than `tokens` ids, as many as that allows, spread evenly; 0 allows all.
    """
    whole = (len(ids) - 1) // context
    some = min(whole, max(1, tokens // context)) if tokens else whole
    return np.arange(some, dtype=np.int64) * whole // max(1, some) * context


def windows(ids: Ids, first: NDArray[np.int64], context: int) -> Batch:
    """The inputs and targets, [len(first), context], of the windows that start at `first`."""
    taken = ids[first[:, None] + np.arange(context + 1)].astype(np.int32)
    return np.ascontiguousarray(taken[:, :-1]), np.ascontiguousarray(taken[:, 1:])
