"""Tests that checkpoints made to hang or to fill the memory are refused in one line within two seconds.

See also tests/fuzz.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from glgpt.checkpoint.torch_file import torch_tensors

GOLDENS = Path(__file__).parents[1] / "goldens"
OPEN = """
import json, resource, sys, time
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.text.tokenizer import load_tokenizer
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for line in sys.stdin:
    start = time.process_time()
    answer = ""
    try:
        with Checkpoint.open(json.loads(line)) as checkpoint:
            load_tokenizer(checkpoint.path, checkpoint.config.vocab_size)
    except GlgptError as error:
        answer = str(error)
    print(json.dumps([answer, time.process_time() - start]), flush=True)
"""


Refused = Callable[[Path], str]


@pytest.fixture(scope="module")
def opener() -> Iterator[list[subprocess.Popen[str]]]:
    """Yields a list whose last item is the process that opens folders, with limited memory.

    `refused` starts this process, and starts another one when the process has ended.
    """
    running: list[subprocess.Popen[str]] = []
    yield running
    for child in running:
        child.kill()
        child.communicate()


@pytest.fixture
def refused(opener: list[subprocess.Popen[str]]) -> Callable[[Path], str]:
    """Returns a function that opens a folder in the process of `opener` and returns the error; there must be one."""
    return partial(refusal, opener)


def refusal(opener: list[subprocess.Popen[str]], folder: Path) -> str:
    if not opener or opener[-1].poll() is not None:
        pipe = subprocess.PIPE
        opener.append(subprocess.Popen([sys.executable, "-c", OPEN], stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    child = opener[-1]
    assert child.stdin and child.stdout and child.stderr
    child.stdin.write(json.dumps(str(folder)) + "\n")
    child.stdin.flush()
    if not select.select([child.stdout], [], [], 60)[0]:
        child.kill()
        pytest.fail("no answer within 60 s")
    answer = child.stdout.readline()
    assert answer, child.stderr.read()[-2000:]
    message, seconds = json.loads(answer)
    assert seconds < 2
    assert message.startswith(str(folder)) and len(message) < 400 and message.isprintable()
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDENS / "dhead3-relu", tmp_path / "model"))


def legacy(*state: bytes) -> bytes:
    head: list[object] = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    return b"".join(pickle.dumps(part, 2) for part in head) + b"\x80\x02" + b"".join(state) + b"." + pickle.dumps([], 2)


DOUBLING = b")" + b"q\x00h\x00\x86" * 60  # each tuple holds the previous tuple twice: 2^60 leaves
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
SHAPE = b"(" + b"K\x01" * 200_000 + b"t"
LONG_TEXT = b"X" + (1 << 22).to_bytes(4, "little") + b"x" * (1 << 22)
PAIRS = b"](" + b"X\x01\0\0\0aK\x01\x86" * 50_000 + b"eq\0"
PICKLES: dict[str, tuple[bytes, str]] = {
    "doubling key": (b"}" + DOUBLING + b"K\x01s", "a key is not a string"),
    "doubling key among others": (b"}(" + DOUBLING + b"K\x01u", "a key is not a string"),
    "doubling key of OrderedDict": (
        b"ccollections\nOrderedDict\n](" + DOUBLING + b"K\x01\x86e\x85R",
        "a key is not a string",
    ),
    "doubling name": (DOUBLING + DOUBLING + b"\x93", "a name that is not a string"),
    "doubling storage": (b"(X\x07\0\0\0storagectorch\nFloatStorage\n" + DOUBLING + b"X\0\0\0\0K\x04tQ", "storage"),
    "doubling value": (b"}X\x01\0\0\0a" + DOUBLING + b"s", "'a' is not a tensor"),
    "dimensions": (
        b"}X\x01\0\0\0a" + TENSOR + b"(" + STORAGE + b"K\0" + SHAPE * 2 + b"\x89}tRs",
        "too many dimensions, 200000",
    ),
    "marks": (b"(" * 10_000_000, "more than 524,288 operations"),
    "nones": (b"N" * 15_000_000, "more than 524,288 operations"),
    "a long number": (b"\x8b" + (8_000_000).to_bytes(4, "little") + b"\x7f" * 8_000_000, "an integer"),
    "even more nones": (b"N" * 30_000_000, "is refused: "),
    "copies of pairs": (
        PAIRS + b"(" + b"ccollections\nOrderedDict\nh\0\x85R" * 60_000 + b"}",
        "more than 524,288 operations",
    ),
    "copies of dimensions": (
        STORAGE + b"q\0](" + b"K\x01" * 100_000 + b"eq\x01" + (TENSOR + b"(h\0K\0h\1h\1tR") * 40_000 + b"}",
        "calls something that is not a function",
    ),
    "long keys": (
        b"}" + LONG_TEXT + b"q\0K\x01s" + LONG_TEXT + b"q\x01K\x01s" + b"h\0K\x01sh\x01K\x01s" * 60_000,
        "a string of 4,194,304 characters",
    ),
    "a long text": (b"X" + (20_000_000).to_bytes(4, "little") + b"x" * 20_000_000, "too long"),
}


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("kind", ["legacy", "zip"])
def test_pickles(name: str, kind: str, folder: Path, refused: Refused) -> None:
    state, said = PICKLES[name]
    path = folder / "pytorch_model.bin"
    if kind == "legacy":
        path.write_bytes(legacy(state))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", b"\x80\x02" + state + b".")
            archive.writestr("model/data/0", bytes(16))
    assert said in refused(folder)


def test_a_few_bytes_are_no_tensor_of_terabytes(folder: Path, refused: Refused) -> None:
    big = b"\x8a\x05" + (1 << 36).to_bytes(5, "little")
    state = b"}X\x01\0\0\0a" + TENSOR + b"(" + STORAGE + b"K\0" + big + b"\x85K\0\x85\x89}tRs."
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02" + state)
        archive.writestr("model/data/0", bytes(16))
    assert "repeats its elements" in refused(folder)


def test_the_stride_of_a_single_row_may_be_anything(folder: Path) -> None:
    far = b"\x8a\x08" + (1 << 62).to_bytes(8, "little")
    state = b"}X\x01\0\0\0a" + TENSOR + b"(" + STORAGE + b"K\0K\x01K\x04\x86" + far + b"K\x01\x86\x89}tRs"
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02" + state + b".")
        archive.writestr("model/data/0", np.arange(4, dtype="<f4").tobytes())
    stored = torch_tensors(path)["a"]
    assert stored.strides is None
    assert stored.map().tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("offset", [6, 8])
def test_an_encrypted_member_is_refused(offset: int, folder: Path, refused: Refused) -> None:
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "model/data.pkl", b"\x80\x02}X\x01\0\0\0a" + TENSOR + b"(" + STORAGE + b"K\0K\x04\x85K\x01\x85\x89}tRs."
        )
        archive.writestr("model/data/0", bytes(16))
    whole = bytearray(path.read_bytes())
    header = whole.rindex(b"PK\x03\x04") if offset == 6 else whole.rindex(b"PK\x01\x02")
    whole[header + offset] |= 1  # sets the encryption flag in the member's header, or in the zip directory
    path.write_bytes(whole)
    assert "model/data/0 is encrypted" in refused(folder)


@pytest.mark.slow
def test_a_zip_of_a_long_directory(folder: Path, refused: Refused) -> None:
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        for i in range(60_000):
            archive.writestr(zipfile.ZipInfo(f"model/data/{i}" + "x" * 50), b"")
    assert "too long" in refused(folder)


def safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


HEADERS = {
    "dimensions": (
        json.dumps({"a": {"dtype": "F32", "shape": [1] * 200_000, "data_offsets": [0, 0]}}).encode(),
        "not a valid safetensors file",
    ),
    "depth": (b'{"a":' * 200_000 + b"0" + b"}" * 200_000, "not a valid safetensors file"),
    "length": (b"{" + b" " * (17 << 20) + b"}", "its header takes 17,825,794 bytes"),
    "a long number": (
        b'{"a":{"dtype":"F32","shape":[' + b"9" * 1_000_000 + b'],"data_offsets":[0,0]}}',
        "not a valid safetensors file",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_safetensors(name: str, folder: Path, refused: Refused) -> None:
    header, said = HEADERS[name]
    (folder / "model.safetensors").write_bytes(safetensors(header))
    assert said in refused(folder)


JSONS = {
    "depth": (b'{"a":' * 100_000, "nested too deeply"),
    "size": (b'{"a":"' + b"x" * (33 << 20) + b'"}', "larger than the limit of 33,554,432 bytes"),
    "values": (b'{"a":[' + b"[]," * 5_000_000 + b"[]]}", "more than the limit of"),
    "a long number": (b'{"n_layer":' + b"9" * 4000 + b"}", "an integer of 4000 digits"),
    "control characters": (b'{"model_type":"\\u001b[31m\\n' + b"x" * 1000 + b'"}', r"model_type is '\x1b[31m\n"),
}


@pytest.mark.parametrize("name", JSONS)
def test_json(name: str, folder: Path, refused: Refused) -> None:
    content, said = JSONS[name]
    (folder / "config.json").write_bytes(content)
    assert said in refused(folder)


FILES = (
    "config.json",
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def no_file(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize("name", FILES)
def test_only_regular_files_are_read(name: str, kind: str, folder: Path, refused: Refused) -> None:
    if name in FILES[4:] and name != "vocab.json":
        for plain in ("vocab.json", "merges.txt"):
            shutil.copyfile(Path(__file__).parents[2] / "weights/shakespeare" / plain, folder / plain)
    elif name == "vocab.json":
        (folder / "merges.txt").write_text("")
    no_file(folder / name, kind)
    wanted = {"pipe": "a named pipe", "endless": "a device"}[kind]
    assert f"{name} is {wanted}; it must be a regular file" in refused(folder)


@pytest.mark.slow
def test_control_characters_of_a_tensors_name(folder: Path, refused: Refused) -> None:
    header = {"\x1b[2J\n" + "x" * 5000: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    (folder / "model.safetensors").write_bytes(safetensors(json.dumps(header).encode()) + bytes(4))
    refused(folder)
    index = {"weight_map": {"\x1b[2J\n": "\x1b[31m" * 500}}
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"\x1b[2J": "other.safetensors"}}))
    refused(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_reading_of_a_hostile_file(number: int, folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(legacy(b"}" + DOUBLING + b"K\x01s"))
    code = """
import sys
from glgpt.cli import main
print(1, flush=True)
while (code := main(["compare", "--model", sys.argv[1], "--reference", "gpt2"])) == 2: pass
sys.exit(code)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout
    child.stdout.readline()
    time.sleep(0.5)
    child.send_signal(number)
    try:
        assert child.wait(timeout=20) != -signal.SIGKILL
    finally:
        child.kill()
        child.communicate()
