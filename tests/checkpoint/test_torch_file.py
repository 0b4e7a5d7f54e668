"""Tests reading pytorch_model.bin without PyTorch: both of its formats, and pickles that hold more than tensors."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from glgpt.checkpoint.torch_file import torch_tensors
from glgpt.errors import GlgptError

GOLDENS = Path(__file__).parents[1] / "goldens"


def refusal(path, said=""):
    with pytest.raises(GlgptError) as caught:
        torch_tensors(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "tensor"), [("dhead3-relu", "transformer.h.0.attn.c_attn.weight"), ("one-f16", "wte.weight")]
)
def test_places(name, tensor):
    # c_attn was saved as a transposed view, so its strides are not contiguous.
    stored = torch_tensors(GOLDENS / name / "pytorch_model.bin")[tensor]
    assert stored.map().shape == stored.shape
    assert (stored.strides is None) == (tensor == "wte.weight")
    assert not stored.map().flags.writeable


def pickled(*parts):
    """Returns a pickle of protocol 2 with these opcodes, given as bytes."""
    return b"\x80\x02" + b"".join(parts) + b"."


def legacy(state):
    head = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    return b"".join(pickle.dumps(part, 2) for part in head) + state + pickle.dumps([], 2)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (pickled(b"cos\nsystem\nX\x04\0\0\0true\x85R"), "'os.system'"),
        (pickled(b"cbuiltins\neval\nX\x01\0\0\x00x\x85R"), "'builtins.eval'"),
        (pickled(b"X\x02\0\0\0osX\x06\0\0\0system\x93)R"), "'os.system'"),
        (pickled(b"(cos\nsystem\no"), "'os.system'"),
        (pickled(b"]"), "does not hold a dictionary of tensors"),
        (pickled(b"}X\x01\0\0\0aK\x01s"), "'a' is not a tensor"),
        (pickled(b"}K\x01K\x01s"), "a key is not a string"),
        (pickled(b"(i__main__\nx\n"), "uses INST"),
        (pickled(b"ccollections\nOrderedDict\n)\x81"), "uses NEWOBJ"),
        (pickled(b"K\x01K\x02R"), "calls something that is not a function"),
        (b"\x80\x02}", "not a valid PyTorch file"),
    ],
)
def test_pickles_are_never_obeyed(tmp_path, state, said, monkeypatch):
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("the pickle ran a command"))
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(legacy(state))
    refusal(path, said)


@pytest.mark.parametrize("name", ["dhead3-relu", "legacy-untied"])
def test_refuses_damaged_files(tmp_path, name):
    path = tmp_path / "pytorch_model.bin"
    whole = (GOLDENS / name / "pytorch_model.bin").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-30], whole[:100], b"", b"garbage" * 9, whole[:3], b"PK\x03\x04"):
        path.write_bytes(content)
        refusal(path)


def test_refuses_a_tensor_beyond_its_storage(tmp_path):
    whole = (GOLDENS / "legacy-untied" / "pytorch_model.bin").read_bytes()
    # The pickle's opcodes for the shape of wte are BININT1 29, BININT1 14. This changes the shape to [99, 14].
    assert whole.count(b"K\x1dK\x0e\x86") >= 1
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(whole.replace(b"K\x1dK\x0e\x86", b"K\x63K\x0e\x86"))
    refusal(path, "reaches beyond its storage")


def rezipped(path, change):
    """Copies a valid PyTorch file, a zip archive, to `path`, and changes its entries by `change(name, content)`.

    `change` returns the entry's (content, compression), or None to drop the entry.
    """
    with zipfile.ZipFile(GOLDENS / "dhead3-relu" / "pytorch_model.bin") as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            changed = change(info.filename, old.read(info))
            if changed:
                new.writestr(info.filename, changed[0], changed[1])


def test_zip_faults(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    whole = torch_tensors(GOLDENS / "dhead3-relu" / "pytorch_model.bin")
    stored, deflated = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
    rezipped(path, lambda name, content: (content, stored))
    again = torch_tensors(path)
    assert again.keys() == whole.keys()
    assert all(np.array_equal(again[name].map(), whole[name].map()) for name in whole)
    rezipped(path, lambda name, content: (content, deflated))
    refusal(path, "compressed")
    rezipped(path, lambda name, content: None if name.endswith("data/3") else (content, stored))
    refusal(path, "data/3 is missing")
    rezipped(path, lambda name, content: (b"big" if "byteorder" in name else content, stored))
    refusal(path, "big-endian")
    rezipped(path, lambda name, content: None if name.endswith("data.pkl") else (content, stored))
    refusal(path, "no data.pkl")
