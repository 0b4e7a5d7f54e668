"""Defines the parsers to fuzz and the libraries that they are compared with. No parser needs a graphics device."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from adapter_targets import ADAPTERS
from gguf_targets import GGUF
from harness import Difference, Parser
from mutations import Files
from tokenizer_targets import TOKENIZERS

from glgpt import models
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.torch_file import READABLE, torch_tensors
from glgpt.cli.parser import build_parser
from glgpt.data.cleaning import clean
from glgpt.data.inspecting import inspect
from glgpt.errors import GlgptError
from glgpt.inspection.dump import checked_out as dump_out
from glgpt.inspection.reference import load_reference
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.output.destination import checked_out as export_out
from glgpt.page.output.schemas import validate
from glgpt.page.serve import application
from glgpt.program.spec import Program, check
from glgpt.system.files import read_json
from glgpt.text.files import Text
from glgpt.training import state as training_state
from glgpt.training.program import MOMENTS
from glgpt.training.run_folder import RunFolder
from glgpt.training.settings import settings_for
from glgpt.tuning import kernel_selection
from glgpt.wire import hidden, messages

GOLDENS = Path(__file__).parents[1] / "goldens"


def _folder(*names: str, keep: str = "") -> Callable[[], list[Files]]:
    """Returns a function that returns the files of test checkpoints, without their reference results."""
    return lambda: [
        {p.name: p.read_bytes() for p in sorted((GOLDENS / n).iterdir()) if p.suffix != ".npz" and keep in p.name}
        for n in names
    ]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )


# Checkpoints


def _checkpoint(folder: Path) -> None:
    with Checkpoint.open(folder) as checkpoint:
        found = {name: checkpoint.read(name) for name in checkpoint.names}
        reference = _by_library(folder)
        for name, array in found.items():
            other = reference.get(checkpoint.config.stored_name(name), reference.get(name))
            if other is None or not same_bits(array, other):
                raise Difference(f"tensor {name} is not what the library reads")


def _by_library(folder: Path) -> dict[str, np.ndarray]:
    plain = folder / "model.safetensors"
    if plain.exists():
        return _loaded(plain)
    shards = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    loaded = {shard: _loaded(folder / shard) for shard in set(shards.values())}
    return {name: loaded[shard][name] for name, shard in shards.items()}


def _loaded(path: Path) -> dict[str, np.ndarray]:
    """Returns a file's tensors as the library reads them. Converts bf16, which NumPy does not have, to f32."""
    from safetensors import deserialize

    found = {}
    for name, entry in deserialize(path.read_bytes()):
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(entry["dtype"])
        if kind:
            array = np.frombuffer(entry["data"], kind).reshape(entry["shape"])
            found[name] = (array.astype("<u4") << 16).view("<f4") if entry["dtype"] == "BF16" else array
    return found


@functools.cache
def torch_library() -> Any:
    """Returns torch, or None if it is not installed; `make test` does not need it."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    return torch


def _pickled(*names: str) -> Callable[[], list[Files]]:
    """Returns a function that imports torch, for which a case has no time, and returns weights of checkpoints."""

    def files() -> list[Files]:
        torch_library()
        return _folder(*names, keep="pytorch")()

    return files


def _torch(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    found = torch_tensors(path)
    arrays = {
        name: place.map().copy() for name, place in found.items() if place.dtype in READABLE and 0 not in place.shape
    }
    torch = torch_library()
    if torch is None:
        return
    try:
        reference = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch also checks fields that no tensor needs, such as the version
        return
    for name, array in arrays.items():
        other = reference[name].detach()
        bits = other.view(torch.uint16).numpy() if other.dtype is torch.bfloat16 else other.numpy()
        if not same_bits(array, bits):
            raise Difference(f"tensor {name} is not what torch reads")


def _config(folder: Path) -> None:
    fields = read_json(folder / "config.json")
    config = models.from_dict(fields)
    for name, value in (config.fields() if isinstance(config, GPT2Config) else {}).items():
        if name in fields and fields[name] != value:
            raise Difference(f"{name} is {value!r}, not {fields[name]!r}")


# Programs and pages


def _programs() -> list[Files]:
    from glgpt.program.kernel import KERNELS
    from glgpt.program.spec import Limits

    program = kernel_selection.product_program(Limits(), KERNELS["4x4"])
    return [{"program.json": program.to_json().encode()}]


def _program(folder: Path) -> None:
    text = (folder / "program.json").read_text(encoding="utf-8", errors="replace")
    program = Program.from_json(text)
    check(program)
    if Program.from_json(program.to_json()) != program:
        raise Difference("a program changes when it is written and read again")


MANIFEST = Path(__file__).parent / "manifest.json"


def _manifest(folder: Path) -> None:
    validate("manifest", read_json(folder / "manifest.json"), "manifest.json")


# Runs and caches


def _run_folders() -> list[Files]:
    config = GPT2Config(vocab_size=5, n_positions=4, n_embd=4, n_layer=1, n_head=1, n_inner=4)
    draw = np.random.default_rng(0)
    arrays = {name: draw.standard_normal(p.shape, np.float32) for name, p in config.parameters.items()}
    moments = {f"{name}.{m}": np.abs(array) for name, array in arrays.items() for m in MOMENTS}
    recipe = {"batch": 2, "context": 4, "accumulate": 1, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1,
              "clip": 1.0, "dropout": 0.0, "recompute": False}  # fmt: skip
    made = {"on": "llvmpipe", "kernel": "4x4", "fetch": "texelFetch"}
    about = {"config": config.fields(), "recipe": recipe, "lr": 1e-3, "seed": 1, "step": 3, "made": made}
    settings = settings_for("nano", None, {"n_embd": 4, "n_layer": 1, "n_head": 1, "context": 4})
    record = {"glgpt": "0", "files": ["play.txt"], "preset": "nano", "init": None, "vocab_size": 5, "data": "x",
              "tokenizer": "0" * 64, "settings": vars(settings)}  # fmt: skip
    lines = [{"step": 0, "validation_loss": 2.0, "validation_bits_per_byte": 3.0}]
    lines += [{"step": i, "loss": 2.0, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 3.5} for i in range(1, 4)]
    open_shape = about | {"recipe": recipe | {"batch": None, "context": None}, "shape": [2, 4]}
    texts = {
        "run/train.json": json.dumps(record).encode(),
        "run/metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode(),
    }
    found = []
    for said in (about, open_shape):
        with tempfile.TemporaryDirectory() as name:
            training_state.write(Path(name), config, arrays, moments, said)
            found.append(texts | {"run/state.safetensors": (Path(name) / "state.safetensors").read_bytes()})
    return found


def _run(folder: Path) -> None:
    from safetensors.numpy import load_file

    with RunFolder(folder / "run") as run:
        lines = run.lines()
        about, tensor = training_state.read(run.path)
        reference = load_file(run.path / "state.safetensors")
        for name in models.from_fields(about.config).parameters:
            for key in (name, *(f"{name}.{m}" for m in MOMENTS)):
                if not same_bits(tensor(key), reference[key]):
                    raise Difference(f"tensor {key} is not what the library reads")
        run.rewind(about.step)
        if run.lines() != [line for line in lines if line["step"] <= about.step]:
            raise Difference("the metrics changed in rewinding")


def _caches() -> list[Files]:
    times = {f"{k} {f}": 1.5 for k in ("4x4", "8x1") for f in kernel_selection.FETCHES}
    return [{"glgpt/probe.json": json.dumps({"10 llvmpipe": times, "10 other": times}).encode()}]


def _cache(folder: Path) -> None:
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        for found in kernel_selection.remembered_probes().values():
            if not all(0 < float(v) < 1e9 for v in found.values()):
                raise Difference("a probe's time is not between 0 and 1e9")
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


# Requests and arguments


def _requests() -> list[Files]:
    asked = [
        {"method": "GET", "path": "/", "headers": [["host", "localhost"]]},
        {
            "method": "HEAD",
            "path": "/a.bin",
            "headers": [["host", "127.0.0.1"], ["range", "bytes=0-3"], ["if-range", '"x"']],
        },
        {
            "method": "GET",
            "path": "/sub/../a.bin",
            "headers": [["host", "[::1]:80"], ["range", "bytes=-2,0-1"], ["if-none-match", "*"]],
        },
        {
            "method": "GET",
            "path": "/%2e%2e/secret",
            "headers": [["host", "localhost"], ["if-modified-since", "Sat, 01 Jan 2022 00:00:00 X"]],
        },
    ]
    return [{"request.http": json.dumps(request).encode()} for request in asked]


@functools.cache
def _site() -> Any:
    top = Path(tempfile.mkdtemp(prefix="glgpt-fuzz-site-"))
    (top / "site").mkdir()
    (top / "site/index.html").write_text("<!doctype html><title>x</title>")
    (top / "site/a.bin").write_bytes(b"0123456789")
    (top / "secret").write_text("secret")
    (top / "site/out").symlink_to(top / "secret")
    return application(top / "site")


def _request(folder: Path) -> None:
    try:
        asked = json.loads((folder / "request.http").read_bytes())
        path = str(asked["path"])
        headers = [(str(k).lower().encode("latin-1"), str(v).encode("latin-1")) for k, v in asked["headers"]]
        method = str(asked["method"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise GlgptError("no request") from None
    sent: list[dict[str, Any]] = []

    coming = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not coming:
            await asyncio.Event().wait()  # the client stays connected
        return coming.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(dict(message))

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode("utf-8", "replace"), "query_string": b"", "headers": headers, "scheme": "http",
        "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip
    asyncio.run(_site()(scope, receive, send))
    status = sent[0]["status"]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    if not 200 <= status < 500 or b"secret" in body:
        raise Difference(f"{method} {path!r} is answered {status}")
    said = dict(sent[0]["headers"])
    if (
        method == "GET"
        and b"content-length" in said
        and status not in (304,)
        and int(said[b"content-length"]) != len(body)
    ):
        raise Difference(f"{said[b'content-length']!r} bytes were promised and {len(body)} sent")


def _arguments() -> list[Files]:
    lines = [
        ["generate", "To be", "--tokens", "5", "--seed", "1", "--temperature", "0.7", "--stop", "x", "--dtype", "f16"],
        ["train", "a.txt", "--out", "run", "--n-embd", "64", "--tokenizer", "bpe:512", "--lr", "0.001"],
        ["eval", "a.txt", "--model", "m", "--window=64", "--json"],
        ["export", "--out", "page", "--shard-size", "1MiB", "--device", "software"],
        ["logits", "--ids", "1,2,3", "--out", "x.npy"],
        ["serve", "page", "--port", "8000"],
    ]
    return [{"line.argv": json.dumps(line).encode()} for line in lines]


def _argument(folder: Path) -> None:
    try:
        line = [str(word) for word in json.loads((folder / "line.argv").read_bytes())]
    except (ValueError, TypeError, RecursionError):
        raise GlgptError("no arguments") from None
    with contextlib.redirect_stdout(None):
        build_parser().parse_args(line)


def _references() -> list[Files]:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((4, 7)).astype(np.float32)
    several = {"0.tokens": np.arange(4), "0.logits": logits, "0.greedy": np.arange(6)}
    seeds: list[dict[str, np.ndarray]] = [
        several | {"1.tokens": np.arange(2), "1.logits": np.zeros((2, 7), np.float32)},
        {"tokens": np.arange(3), "logits": np.zeros((3, 7)), "attention": np.zeros((2, 2, 3, 3), np.float16)},
    ]
    found = []
    for arrays in seeds:
        with io.BytesIO() as file:
            np.savez(file, allow_pickle=False, **arrays)
            found.append({"reference.npz": file.getvalue()})
    return found


def _reference(folder: Path) -> None:
    load_reference(folder / "reference.npz")


def _texts() -> list[Files]:
    play = (GOLDENS.parent / "data/shakespeare-validation.txt").read_bytes()[:3000]
    return [{"a.txt": play, "b.txt": b"\xef\xbb\xbf" + "naïve café 日本 🙂\r\n\x0cend".encode()}]


def _text(folder: Path) -> None:
    files = sorted(folder.iterdir())
    text = Text.of_files(files)
    found = "".join(piece for piece, _ in text.pieces(block=100))
    whole = "".join(file.read_bytes().decode("utf-8-sig") for file in files)
    if found != whole:
        raise Difference("the joined pieces differ from the text")
    clean(found)
    inspect(text, 0.1)


def _earlier() -> list[Files]:
    ours = json.dumps({"glgpt": "1", "tokens": [], "labels": [], "files": [{"file": "index.html"}]}).encode()
    return [{"manifest.json": ours, "index.html": b"<!doctype html>"}]


def _output(folder: Path) -> None:
    """Checks a folder as the value of `--out`: its content decides whether it may be replaced."""
    dump_out(folder)
    export_out(folder, False)


def _messages() -> list[Files]:
    ask = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 3, "draw": 2, "guesses": [1, 2], "alternatives": 4}
    states = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    asked: list[dict[str, Any]] = [
        {"op": "open", "protocol": 1, "token": "t", "model": "d", "session": "s", "wire": "f16", "part": "4-11"},
        {"op": "step", "seq": 0, "pos": 3, "n": 2, "ask": ask},
        {"op": "look", "seq": 1, "n": 2, "names": ["h.4.attn.pattern"], "head": True},
    ]
    opened = {"session": "s", "held": 0, "seq": -1, "holds": "4-11", "model": "m", "digest": "d", "sizes": [64, 1]}
    said: list[dict[str, Any]] = [
        {"op": "opened", **opened, "shape": {"n_embd": WIDTH}, "dtype": "f32", "sessions": 8},
        {"op": "stepped", "seq": 0, "n": 2, "ms": 1.5, "tokens": [3], "top": [[[3, 0.5, 0.25], [4, 0.125, 0.75]]]},
        {"op": "looked", "seq": 1, "arrays": [["logits", [2, 4]]], "ms": 2.0},
        {"op": "error", "code": "evicted", "message": "gone"},
    ]
    rows = {f"{kind}.bin": hidden.pack(states, kind) for kind in hidden.FORMATS}
    return [
        {"asked.json": json.dumps(a).encode(), "said.json": json.dumps(s).encode(), **rows}
        for a, s in zip(asked * 2, said * 2, strict=False)
    ]


WIDTH = 8  # width of the hidden states of `_messages`


def _message(folder: Path) -> None:
    """Reads the messages of client and server, and hidden states."""
    for kind in hidden.FORMATS:
        data = (folder / f"{kind}.bin").read_bytes()
        with contextlib.suppress(GlgptError):
            states = hidden.unpack(data, 2, WIDTH, kind)
            if states.shape != (2, WIDTH) or not np.isfinite(states).all():
                raise Difference("hidden states of another shape, or not finite")
            if kind == "f32" and hidden.pack(states, kind) != data:
                raise Difference("hidden states, packed again, differ from the bytes read")
    refused = 0
    for name, decode in (("asked", messages.decode_request), ("said", messages.decode_answer)):
        text = (folder / f"{name}.json").read_bytes()
        try:
            found, _ = decode(len(text).to_bytes(4, "little") + text + b"rest")
        except GlgptError:
            refused += 1
            continue
        again, rest = decode(messages.encode(found, b"rest"))
        if again != found or bytes(rest) != b"rest":
            raise Difference("a message changes when it is encoded and decoded again")
    if refused:
        raise GlgptError("no message")


TARGETS = [
    Parser("safetensors", _folder("vocab3-untied", "inverse-layer-f16"), _checkpoint),
    Parser("shards", _folder("dhead2-gelu", "llama-grouped"), _checkpoint),
    Parser("torch-zip", _pickled("dhead3-relu"), _torch),
    Parser("torch-legacy", _pickled("legacy-untied", "one-f16"), _torch),
    Parser("config", _folder("wide", "dhead3-relu", "llama3-untied", "llama-grouped", keep="config"), _config),
    GGUF,
    ADAPTERS,
    *TOKENIZERS,
    Parser("program", _programs, _program),
    Parser("manifest", lambda: [{"manifest.json": MANIFEST.read_bytes()}], _manifest),
    Parser("run", _run_folders, _run),
    Parser("probe-cache", _caches, _cache),
    Parser("http", _requests, _request),
    Parser("arguments", _arguments, _argument),
    Parser("reference", _references, _reference),
    Parser("text", _texts, _text),
    Parser("earlier-output", _earlier, _output),
    Parser("wire", _messages, _message),
]
