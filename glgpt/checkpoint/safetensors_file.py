"""Locates the tensors in a safetensors file, and writes such files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from glgpt.checkpoint.files import first_line
from glgpt.checkpoint.torch_file import MAX_DIMENSIONS, Stored
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.system.files import open_input, parsed_json, written_whole

CHECKSUMS = "glgpt.sha256"  # key of the metadata that holds each tensor's SHA-256, as JSON
MAX_HEADER_BYTES = 16 << 20  # a model of 1000 layers has a header of two million bytes


def safetensors_places(path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Returns where each tensor is in a safetensors file (`Stored`), by name, and the file's metadata.

    The safetensors library only checks the file. Tensors are mapped with NumPy, because the library cannot return bf16
    as NumPy arrays. Raises FileError, naming the file, if the file is missing or damaged, its header is longer than
    `MAX_HEADER_BYTES`, or a tensor has more than `MAX_DIMENSIONS` dimensions.
    """
    name = quoted(path, 300)
    with open_input(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise FileError(f"{name} is not a valid safetensors file: its header takes {length:,} bytes")
        text = file.read(length)
    try:
        with safe_open(path, framework="np"):
            pass
    except Exception as error:  # SafetensorError has no narrower base class
        raise FileError(f"{name} is not a valid safetensors file: {first_line(error)}") from None
    try:
        header = parsed_json(text.decode("utf-8"), f"{name}: its header")
        metadata = header.pop("__metadata__", {})
        sums = parsed_json((metadata or {}).get(CHECKSUMS, "{}"), f"{name}: its list of checksums")
        if not all(isinstance(value, str) for value in sums.values()):
            raise FileError(f"{name}: its list of checksums is damaged")
        places = {
            tensor: Stored(
                path,
                entry["dtype"],
                tuple(entry["shape"]),
                8 + length + entry["data_offsets"][0],
                sha256=sums.get(tensor),
            )
            for tensor, entry in header.items()
        }
    except GlgptError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FileError(f"{name} is not a valid safetensors file ({type(error).__name__})") from None
    for tensor, place in places.items():
        if len(place.shape) > MAX_DIMENSIONS:
            raise FileError(f"{name}: tensor {written(tensor)} has too many dimensions, {len(place.shape)}")
    return places, metadata or {}


def write_safetensors(
    path: Path,
    dtype: np.dtype[Any],
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], NDArray[Any]],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes tensors of one dtype, float32 or float16; keeps one at a time in memory. Returns the file's size in bytes.

    `read` returns a tensor by name. `progress` is called with the bytes written so far and the bytes of all tensors.
    """
    kind, at = {4: "F32", 2: "F16"}[dtype.itemsize], 0
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, shape in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with written_whole(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in shapes:
            file.write(np.ascontiguousarray(read(name), dtype.newbyteorder("<")).data)
            if progress:
                progress(entries[name]["data_offsets"][1], at)
        return file.tell()


def sha256(array: NDArray[Any]) -> str:
    """Returns 64 hexadecimal digits: the SHA-256 of an array's bytes, in row-major order and little-endian."""
    return hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data).hexdigest()
