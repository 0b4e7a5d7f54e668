"""Tests reading GGUF files: metadata, tensors in the checkpoint's order, split files, and damaged files."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_files import KINDS, LLAMA, llama, llama_tensors, tensor, tokenizer

from glgpt.errors import FileError
from glgpt.gguf.block_types import BF16, F16, F32
from glgpt.gguf.quantize import WRITABLE, encode
from glgpt.gguf.reader import all_parts, later_part, open_gguf
from glgpt.gguf.tensor import GgufTensor
from glgpt.gguf.writer import Tensor, header, write_gguf


def test_metadata_is_read_as_written(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "text": "naïve 日本", "flag": True, "off": False, "small": 7, "negative": -3, "large": 1 << 40, "third": 1 / 3,
        "words": ["a", "", "ü"], "numbers": np.arange(5, dtype=np.int32),
        "scores": np.linspace(0, 1, 4, dtype=np.float32),
        "flags": np.array([True, False]), "none": [],
    }  # fmt: skip
    write_gguf(tmp_path / "a.gguf", given, [])
    found = open_gguf(tmp_path / "a.gguf").metadata
    assert list(found) == list(given)
    for key, value in given.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[key], value)
        elif isinstance(value, float):
            assert np.float32(found[key]) == np.float32(value)
        else:
            assert found[key] == value and type(found[key]) is type(value)


def test_a_float_is_the_shortest_that_rounds_to_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"eps": 1e-5, "theta": 500000.0}, [])
    assert open_gguf(tmp_path / "a.gguf").metadata == {"eps": 1e-5, "theta": 500000.0}


@pytest.mark.parametrize("name", sorted(WRITABLE))
@pytest.mark.parametrize("shape", [(1, 32), (5, 96), (3, 2, 64), (32,)])
def test_tensors_are_decoded(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    write_gguf(tmp_path / "a.gguf", {}, [Tensor("a", F32, (3,), lambda: np.arange(3, dtype=np.float32)),
                                         Tensor("b", KINDS[name], shape, lambda: values)])  # fmt: skip
    found = open_gguf(tmp_path / "a.gguf").tensors["b"]
    wanted = KINDS[name].values(encode(KINDS[name], values.reshape(-1, shape[-1]))).reshape(shape)
    array = found.map()
    assert (found.dtype, found.shape, array.dtype) == (name, shape, np.float16 if name == "F16" else np.float32)
    np.testing.assert_array_equal(array.astype(np.float32), wanted)
    assert not array.flags.writeable
    some = np.array([0, values.size // 2, values.size - 1])
    np.testing.assert_array_equal(found.sample(some), wanted.ravel()[some])


def test_odd_columns_need_a_type_without_blocks(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    made = [tensor("a", draw, (3, 7), "F16"), tensor("b", draw, (5,), "BF16"), tensor("c", draw, (1, 1, 3))]
    write_gguf(tmp_path / "a.gguf", {}, made)
    found = open_gguf(tmp_path / "a.gguf").tensors
    for one in made:
        np.testing.assert_allclose(found[one.name].map(), one.read(), rtol=1e-2)
    broken = header({}, [Tensor("a", KINDS["Q8_0"], (3, 7), np.zeros)])
    (tmp_path / "b.gguf").write_bytes(broken + bytes(1000))
    with pytest.raises(FileError, match=r"tensor a has shape \[3, 7\], which Q8_0 cannot hold"):
        open_gguf(tmp_path / "b.gguf")


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_rows_are_those_of_the_checkpoint(tmp_path: Path, kind: str) -> None:
    """Fails if rows of rotary pairs, which the file interleaves, are not separated, or blocks and samples are wrong."""
    path = llama(tmp_path / "a.gguf", kind)
    stored = open_gguf(path).tensors["blk.0.attn_k.weight"]
    arranged = stored.arranged((2, 8, 2, 1))
    plain, found = stored.map(), arranged.map()
    for head in range(2):
        for row in range(8):
            np.testing.assert_array_equal(found[head * 16 + row], plain[head * 16 + 2 * row])
            np.testing.assert_array_equal(found[head * 16 + 8 + row], plain[head * 16 + 2 * row + 1])
    at = np.arange(0, found.size, 37)
    np.testing.assert_array_equal(arranged.sample(at), found.ravel()[at])
    turned = stored.arranged((2, 8, 2, 1), transposed=True, shift=-1.0)
    np.testing.assert_array_equal(turned.map(), (found.astype(np.float32) - np.float32(1)).T)
    np.testing.assert_array_equal(turned.sample(at), turned.map().ravel()[at])
    if kind == "Q8_0":
        np.testing.assert_array_equal(arranged.blocks().values(), found)
    else:
        with pytest.raises(ValueError, match="has no blocks"):
            arranged.blocks()


def test_a_vector_is_reordered_like_rows(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {}, [Tensor("a", F32, (8,), lambda: np.arange(8, dtype=np.float32))])
    found = open_gguf(tmp_path / "a.gguf").tensors["a"].arranged((2, 2, 2, 1))
    assert found.map().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert found.sample(np.array([1, 2])).tolist() == [2, 1]


def test_a_large_tensor_is_decoded_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glgpt.gguf.tensor.CHUNK", 256)
    values = np.random.default_rng(0).standard_normal((50, 96)).astype(np.float32)
    write_gguf(tmp_path / "a.gguf", {}, [Tensor("a", KINDS["Q8_0"], (50, 96), lambda: values)])
    np.testing.assert_allclose(open_gguf(tmp_path / "a.gguf").tensors["a"].map(), values, atol=0.03)


# Parts


def split(folder: Path, count: int = 3) -> list[Path]:
    """Writes a llama split into `count` files; returns their paths."""
    made, paths = llama_tensors(), []
    for i in range(count):
        metadata = LLAMA | tokenizer() if i == 0 else {}
        paths.append(folder / f"m-{i + 1:05d}-of-{count:05d}.gguf")
        write_gguf(paths[-1], metadata | {"split.count": count, "split.no": i}, made[i::count])
    return paths


def test_a_split_file_is_read_from_its_first_part(tmp_path: Path) -> None:
    paths = split(tmp_path)
    whole = open_gguf(llama(tmp_path / "whole.gguf"))
    found = open_gguf(paths[0])
    assert found.tensors.keys() == whole.tensors.keys()
    for name, one in found.tensors.items():
        np.testing.assert_array_equal(one.map(), whole.tensors[name].map())
    assert all_parts(paths[0].name) == [path.name for path in paths]
    assert [later_part(path) for path in paths] == [False, True, True]
    with pytest.raises(FileError, match=r"is part 2 of 3; give the first, m-00001-of-00003\.gguf"):
        open_gguf(paths[1])
    paths[2].unlink()
    with pytest.raises(FileError, match=r"m-00003-of-00003\.gguf is missing"):
        open_gguf(paths[0])
    paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(FileError, match="is one of 3 parts; its name must end in"):
        open_gguf(tmp_path / "renamed.gguf")


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for text in ("one", "other"):
        write_gguf(path, {"text": text}, [])
        assert open_gguf(path).metadata == {"text": text}


# Damaged files


def refused(tmp_path: Path, data: bytes, match: str) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(FileError, match=match) as error:
        open_gguf(tmp_path / "x.gguf")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def start(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def described(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty; download it again"),
    "short": (b"GG", "is truncated"),
    "other": (b"GGML" + bytes(20), "it begins with 'GGML.*', not with GGUF$"),
    "text": (b"To be", "it begins with 'To be', not with GGUF$"),
    "page": (b"\n<!DOCTYPE html>", "not with GGUF; it may be an HTML page"),
    "zip": (b"PK\3\4" + bytes(99), "it may be a zip file"),
    "safetensors": (b"\x40" + bytes(7) + b'{"a":', "it may be a safetensors file"),
    "old": (b"tjgg" + bytes(99), "it may be in the GGML format"),
    "version 1": (start(version=1), "GGUF file of version 1; glgpt reads versions 2 and 3"),
    "version 9": (start(version=9), "GGUF file of version 9"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "many tensors": (start(tensors=1 << 40), "1,099,511,627,776 tensors; at most 65,536"),
    "many keys": (start(keys=1 << 63), "keys; at most 65,536"),
    "long key": (start(keys=1) + struct.pack("<Q", 1 << 62), "a name has .* bytes; at most 256"),
    "long string": (start(keys=1) + text("a") + struct.pack("<IQ", 8, 1 << 60), "is truncated"),
    "no value": (start(keys=1) + text("a"), "is truncated"),
    "unknown type": (start(keys=1) + text("a") + struct.pack("<IQ", 99, 1), "unknown type 99"),
    "twice": (start(keys=2) + (text("a") + struct.pack("<II", 4, 1)) * 2, "key 'a' appears twice"),
    "nested": (start(keys=1) + text("a") + struct.pack("<IIQ", 9, 9, 1 << 30), "an array of arrays"),
    "huge array": (start(keys=1) + text("a") + struct.pack("<IIQ", 9, 6, 1 << 61), "is truncated"),
    "many strings": (start(keys=1) + text("a") + struct.pack("<IIQ", 9, 8, 1 << 30), "more than 1,048,576 strings"),
    "array of 99": (start(keys=1) + text("a") + struct.pack("<IIQ", 9, 99, 2), "array of the unknown type 99"),
    "key not UTF-8": (start(keys=1) + struct.pack("<Q", 1) + b"\xff", "a name is not UTF-8"),
    "alignment": (start(keys=1) + text("general.alignment") + struct.pack("<II", 4, 24), "general.alignment is 24"),
    "alignment 0": (start(keys=1) + text("general.alignment") + struct.pack("<II", 4, 0), "general.alignment is 0"),
    "dimensions": (start(tensors=1) + text("a") + struct.pack("<I", 5), "tensor 'a' has 5 dimensions"),
    "scalar": (start(tensors=1) + described("a", ()), r"tensor a has shape \[\], which F32 cannot hold"),
    "zero": (start(tensors=1) + described("a", (4, 0)), r"tensor a has shape \[0, 4\]"),
    "type": (start(tensors=1) + described("a", (32,), 21), "tensor a has type IQ3_S; glgpt reads F32, F16, Q4_0"),
    "type number": (start(tensors=1) + described("a", (32,), 77), "tensor a has type number 77"),
    "beyond": (start(tensors=1) + described("a", (8,)), "tensor a ends 39 bytes after the end of the file"),
    "enormous": (start(tensors=1) + described("a", (1 << 62, 1 << 62)), "a ends .* bytes after the end of the file"),
    "unaligned": (start(tensors=1) + described("a", (8,), offset=8) + bytes(99), "not at a multiple of 32 bytes"),
    "overlap": (
        start(tensors=2) + described("a", (16,)) + described("b", (8,), offset=32) + bytes(199),
        "tensor b overlaps a",
    ),
    "same name": (
        start(tensors=2) + described("a", (8,)) + described("a", (8,), offset=32) + bytes(199),
        "tensor a appears twice",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, *BAD[name])


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = llama(tmp_path / "a.gguf").read_bytes()
    for size in [*range(0, 400, 13), *range(400, len(data) - 64, len(data) // 40)]:
        (tmp_path / "x.gguf").write_bytes(data[:size])
        with pytest.raises(FileError, match=re.escape("x.gguf is not a valid GGUF file")):
            open_gguf(tmp_path / "x.gguf")


def test_a_file_that_shrinks_is_reported(tmp_path: Path) -> None:
    from glgpt.checkpoint.opening import Checkpoint

    path = llama(tmp_path / "a.gguf", "Q8_0")
    with Checkpoint.open(path) as checkpoint:
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(FileError, match=r"a\.gguf changed after it was opened; run the command again"):
            checkpoint.read("norm.weight")


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.gguf is missing"):
        open_gguf(tmp_path / "none.gguf")
    refused(tmp_path, b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer")


def test_the_types_without_blocks_are_plain(tmp_path: Path) -> None:
    assert [kind.block for kind in (F32, F16, BF16)] == [1, 1, 1]
    assert isinstance(open_gguf(llama(tmp_path / "a.gguf", "BF16")).tensors["token_embd.weight"], GgufTensor)
