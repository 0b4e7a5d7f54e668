"""Tests the encoding of vectors as bytes, and the messages that a client may send."""

from __future__ import annotations

import json

import numpy as np
import pytest

from glgpt.errors import GlgptError
from glgpt.federation import protocol

RNG = np.random.default_rng(3)
BEFORE = RNG.normal(size=2500).astype(np.float32)
AFTER = BEFORE + (RNG.normal(size=2500) * 1e-5).astype(np.float32)  # changes are smaller than f16's normal numbers


@pytest.mark.parametrize(("dtype", "off"), [("exact", 0), ("f32", 2e-7), ("f16", 5e-4), ("int8", 8e-3)])
def test_a_change_arrives(dtype, off):
    data, scale = protocol.encode(dtype, AFTER, BEFORE)
    assert len(data) == protocol.encoded_size(dtype, len(BEFORE))
    found = protocol.decode(dtype, data, scale, BEFORE)
    greatest = np.abs(AFTER - BEFORE).max()
    assert np.abs(found - AFTER).max() <= max(off * greatest, 1.2e-7 * np.abs(AFTER).max() * (dtype != "exact"))


def test_exact_keeps_every_bit():
    after = np.float32([1e-7, -0.0, 3.3333333, -1e20])
    before = np.float32([0.02, 1.0, -3.0, 1e20])
    data, scale = protocol.encode("exact", after, before)
    assert protocol.decode("exact", data, scale, before).tobytes() == after.tobytes()


@pytest.mark.parametrize("dtype", protocol.DTYPES)
def test_no_change_is_no_change(dtype):
    data, scale = protocol.encode(dtype, BEFORE, BEFORE)
    assert np.array_equal(protocol.decode(dtype, data, scale, BEFORE), BEFORE)


@pytest.mark.parametrize("dtype", protocol.DTYPES)
def test_another_size_is_refused(dtype):
    data, scale = protocol.encode(dtype, AFTER, BEFORE)
    with pytest.raises(GlgptError, match="received"):
        protocol.decode(dtype, data[:-1], scale, BEFORE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["exact", "f32", "f16"])
def test_a_value_that_is_not_finite_is_refused(dtype, bad):
    size = "<f2" if dtype == "f16" else "<f4"
    data = np.full(len(BEFORE), 0.5, size)
    data[7] = bad
    with pytest.raises(GlgptError, match="NaN or an infinity"):
        protocol.decode(dtype, data.tobytes(), 1.0, BEFORE)


def test_a_vector_is_the_parameters_in_their_order():
    arrays = {"b": np.float32([[1, 2], [3, 4]]), "a": np.float32([5])}
    vector = protocol.flatten(arrays)
    assert vector.tolist() == [1, 2, 3, 4, 5]
    back = protocol.unflatten(vector, {"b": (2, 2), "a": (1,)})
    assert back["b"].tolist() == [[1, 2], [3, 4]] and back["a"].tolist() == [5]
    with pytest.raises(GlgptError, match="received 4 values; the model has 5"):
        protocol.unflatten(vector[:4], {"b": (2, 2), "a": (1,)})


def test_frames_are_a_mebibyte_at_most():
    data = bytes(range(256)) * 10000
    cut = list(protocol.frames(data))
    assert b"".join(cut) == data
    assert [len(frame) for frame in cut] == [1 << 20, 1 << 20, len(data) - (2 << 20)]
    assert len(cut) == protocol.frame_count(len(data))


JOIN = {"type": "join", "version": 1, "token": "a.b", "digest": "0" * 64, "tokenizer": "1" * 64}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"type": "other"}, "tag"), ({"version": 2}, "version"), ({"digest": "x"}, "digest"),
        ({"name": "n" * 41}, "name"), ({"more": 1}, "more"), ({"token": 5}, "token"), ({"own_text": "yes"}, "own_text"),
    ],
)  # fmt: skip
def test_a_message_that_is_none_is_refused(change, why):
    with pytest.raises(GlgptError, match=why):
        protocol.parsed(json.dumps(JOIN | change))


def test_a_message_is_read():
    assert isinstance(protocol.parsed(json.dumps(JOIN)), protocol.Join)
    with pytest.raises(GlgptError):
        protocol.parsed("[" * 5000)


# viewer/test/exchange.test.ts has the same table, since a page must round to f16 as NumPy does.
HALVES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1 / 3,
    65504.0,
    65520.0,
    6.1e-5,
    6.0e-5,
    5.9e-8,
    2.9e-8,
    3.0e-8,
    1.00048828125,
    1.0014648,
]


def test_the_table_of_halves_is_numpys():
    with np.errstate(over="ignore"):
        bits = np.array(HALVES, np.float32).astype(np.float16).view(np.uint16)
    assert bits.tolist() == [0, 32768, 15360, 48128, 13653, 31743, 31744, 1023, 1007, 1, 0, 1, 15360, 15362]
