"""Compares how the page and the desktop read model files: headers, and weights as texels of every format."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_files import KINDS, LLAMA, VOCAB, llama, llama_tensors, tokenizer, wide_llama
from helpers.typescript import run_typescript
from safetensors.numpy import save_file

from glgpt import models
from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import FORMAT_OF, texture_matrix
from glgpt.gguf.reader import open_gguf
from glgpt.gguf.writer import write_gguf
from glgpt.page.player.expected import parameters
from glgpt.page.player.mixes import HOLDS
from glgpt.program.formats import ALL
from glgpt.program.layout import Layout

PACK = """
import { pack } from "page/runtime/gguf/packing";
import { readGguf } from "page/runtime/gguf/reader";
import { packingOf } from "page/runtime/engine/packing-plan";
async function main({ path, cases }) {
  const blob = new Blob([readFileSync(path)]);
  const { tensors } = await readGguf(blob, "model.gguf");
  const read = (file, from, to) => blob.slice(from, to).arrayBuffer();
  const found = [];
  for (const { parameter, view, texture } of cases) {
    const [width, height, layers] = texture;
    const texels = new Uint8Array(16 * width * height * layers);
    const tensor = tensors.get(parameter.gguf.name);
    for await (const { block, texels: data } of pack(packingOf(parameter, { file: 0, tensor }, view, true), read))
      for (let r = 0; r < block.rows; r++)
        texels.set(
          data.subarray(16 * r * block.width, 16 * (r + 1) * block.width),
          16 * ((block.layer * height + block.y + r) * width + block.x),
        );
    found.push(Buffer.from(texels).toString("base64"));
  }
  return found;
}
"""


def as_view(layout: Layout) -> dict[str, Any]:
    return {
        "texture": "x", "rows": layout.rows, "cols": layout.cols, "tiles": list(layout.tiles), "dtype": layout.dtype,
        "panel": layout.panel, "stack": layout.stack,
    }  # fmt: skip


def packed(folder: Path, file: Path, cases: list[tuple[str, Layout]]) -> list[np.ndarray]:
    """Returns the texels that the page makes of parameters of a GGUF file. `cases` are (parameter, layout)."""
    with Checkpoint.open(file) as checkpoint:
        known = {p["name"]: p for p in parameters(checkpoint.config, checkpoint.config)}
    given = [
        {
            "parameter": known[name],
            "view": as_view(layout),
            "texture": [layout.texture_width, layout.texture_height, layout.layers],
        }
        for name, layout in cases
    ]
    found = run_typescript(folder, PACK, {"path": str(file), "cases": given})
    texels = []
    for text, (_, layout) in zip(found, cases, strict=True):
        flat = np.frombuffer(base64.b64decode(text), np.float32 if layout.format.texture == "float" else np.uint32)
        texels.append(flat.reshape(layout.layers, layout.texture_height, layout.texture_width, 4))
    return texels


def layouts(rows: int, cols: int, dtype: str) -> list[Layout]:
    """Returns layouts of a matrix: one tile, several tiles, and panels in a stack."""
    fmt = ALL[dtype]
    shared = fmt.column_tiles_per_texel
    found = [Layout(rows, cols, (1, shared), dtype), Layout(rows, cols, (2, 3 * shared), dtype)]
    found.append(Layout(rows, cols, (1, shared), dtype, panel=3, stack=2))
    return [x for x in found if not fmt.quantised or x.tiles[0] == 1 or x.height % fmt.group == 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "BF16"])
def test_texels_are_the_desktops(tmp_path: Path, kind: str) -> None:
    """Fails if a level, scale, bit order, tile or panel is wrong, or rows of queries are permuted."""
    file = wide_llama(tmp_path / "model.gguf", {}, kind)
    dtype = FORMAT_OF.get(kind) or {"F16": "f16", "F32": "f32"}[kind]
    names = ("layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight", "embed_tokens.weight")
    with Checkpoint.open(file) as checkpoint:
        cases, expected = [], []
        for name in names:
            for layout in layouts(*checkpoint.config.parameters[name].matrix, dtype):
                cases.append((name, layout))
                expected.append(layout.pack(texture_matrix(checkpoint, name, dtype)))
    for found, wanted, (name, layout) in zip(packed(tmp_path, file, cases), expected, cases, strict=True):
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32), err_msg=f"{name} {layout}")


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), [(d, k) for d, kinds in HOLDS.items() for k in kinds])
def test_every_format_holds_the_types_that_it_is_said_to(tmp_path: Path, dtype: str, kind: str) -> None:
    """Fails if a format rounds weights of a type that it should hold, as with too few bits or too large groups."""
    file = wide_llama(tmp_path / "model.gguf", {}, kind)
    name = "layers.0.mlp.up_proj.weight"
    with Checkpoint.open(file) as checkpoint:
        parameter, values = checkpoint.config.parameters[name], checkpoint.read(name)
    layout = layouts(*parameter.matrix, dtype)[0]
    [texels] = packed(tmp_path, file, [(name, layout)])
    np.testing.assert_array_equal(layout.unpack(texels), parameter.arrange(values))


def test_norms_lose_the_shift_of_their_family(tmp_path: Path) -> None:
    file = llama(tmp_path / "model.gguf")
    with Checkpoint.open(file) as checkpoint:
        values = checkpoint.read("norm.weight")
        known = next(p for p in parameters(checkpoint.config, checkpoint.config) if p["name"] == "norm.weight")
    known["gguf"]["shift"] = -1.0
    layout = Layout(1, 64)
    given = {"path": str(file), "cases": [{"parameter": known, "view": as_view(layout), "texture": [16, 1, 1]}]}
    [text] = run_typescript(tmp_path, PACK, given)
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), np.float32), values - np.float32(1))


READ = """
import { readGguf } from "page/runtime/gguf/reader";
import { PageError } from "page/runtime/gl/errors";
async function main(files) {
  const found = [];
  for (const text of files) {
    try {
      const { metadata, tensors } = await readGguf(new Blob([Buffer.from(text, "base64")]), "model.gguf");
      const places = [...tensors.values()].map(({ name, type, shape, offset }) => [name, type.name, shape, offset]);
      found.push({ metadata: Object.fromEntries(metadata), tensors: places });
    } catch (error) {
      if (!(error instanceof PageError)) throw error;
      found.push(error.message);
    }
  }
  return found;
}
"""


def read(folder: Path, *files: bytes) -> list[Any]:
    return list(run_typescript(folder, READ, [base64.b64encode(data).decode() for data in files]))


def test_the_header_is_read_as_on_the_desktop(tmp_path: Path) -> None:
    numbers = np.array([1, 2], np.uint64)
    more = {"a.flag": True, "a.minus": -3, "a.big": 1 << 40, "a.numbers": numbers, "a.half": np.float64([0.5])}
    file = llama(tmp_path / "model.gguf", "Q8_0", LLAMA | tokenizer() | more)
    [found] = read(tmp_path, file.read_bytes())
    expected = open_gguf(file)
    assert found["tensors"] == [[n, t.dtype, list(t.stored), t.offset] for n, t in expected.tensors.items()]
    for key, value in expected.metadata.items():
        wanted = value.tolist() if isinstance(value, np.ndarray) else value
        assert found["metadata"][key] == (pytest.approx(wanted, rel=1e-7) if isinstance(wanted, float) else wanted), key


@pytest.mark.slow
def test_damaged_files_are_refused_with_a_message(tmp_path: Path) -> None:
    """Fails if the reader throws an error that does not name the file, loops forever, or allocates much memory."""
    good = llama(tmp_path / "model.gguf", "Q8_0").read_bytes()
    draw = np.random.default_rng(0)
    files = [good[:n] for n in (0, 3, 4, 10, 24, 100, 1000, len(good) - 33)]
    header = len(good) - sum(t.nbytes for t in llama_tensors("Q8_0"))
    for _ in range(400):
        data = bytearray(good)
        for _ in range(draw.integers(1, 4)):
            at = int(draw.integers(0, header))
            data[at] = int(draw.integers(0, 256))
        files.append(bytes(data))
    files += [good[:8] + b"\xff" * 8 + good[16:], good[:16] + b"\xff" * 8 + good[24:]]
    found = read(tmp_path, *files)
    messages = [text for text in found if isinstance(text, str)]
    assert len(messages) > 100 and all(text.startswith("model.gguf") for text in messages)
    assert all(isinstance(text, str) for text in [*found[:8], *found[-2:]])


def test_a_type_that_the_page_does_not_know_is_named(tmp_path: Path) -> None:
    file = llama(tmp_path / "model.gguf", "Q8_0")
    data = file.read_bytes()
    at = data.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8
    [message] = read(tmp_path, data[:at] + b"\x15" + data[at + 1 :])
    assert message.startswith("model.gguf: tensor blk.0.attn_q.weight has type IQ3_S; this page reads F32, F16, Q4_0")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    tensors = llama_tensors()
    bad = np.full((VOCAB, 64), np.nan, np.float32)
    tensors[0] = type(tensors[0])("token_embd.weight", KINDS["F32"], (VOCAB, 64), lambda: bad)
    write_gguf(tmp_path / "model.gguf", LLAMA | tokenizer(), tensors)
    with pytest.raises(AssertionError, match=r"Tensor embed_tokens\.weight holds a number that is not finite"):
        packed(tmp_path, tmp_path / "model.gguf", [("embed_tokens.weight", Layout(64, VOCAB))])


SAFETENSORS = """
import { readSafetensorsHeader } from "page/runtime/gguf/safetensors";
async function main(files) {
  const found = [];
  for (const text of files)
    try {
      found.push([...(await readSafetensorsHeader(new Blob([Buffer.from(text, "base64")]), "x")).keys()]);
    } catch (error) {
      found.push(error.message);
    }
  return found;
}
"""


def test_damaged_safetensors_are_refused_with_a_message(tmp_path: Path) -> None:
    def file(header: Any, values: bytes = bytes(8)) -> str:
        text = json.dumps(header).encode()
        return base64.b64encode(len(text).to_bytes(8, "little") + text + values).decode()

    about = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    found = run_typescript(
        tmp_path, SAFETENSORS,
        [file({"a": about}), file({"a": about}, b""), file({"a": about | {"dtype": "I64"}}), file({"a": 7}),
         file({"a": about | {"shape": [-2]}}), base64.b64encode(b"\xff" * 9).decode(), ""],
    )  # fmt: skip
    assert found == [
        ["a"],
        "x is not a valid safetensors file: tensor a is truncated.",
        "x: tensor a has dtype I64; this page reads F32, F16 and BF16.",
        "x is not a valid safetensors file: tensor a lacks a valid shape or valid offsets.",
        "x is not a valid safetensors file: tensor a lacks a valid shape or valid offsets.",
        "x is not a valid safetensors file: its header is incomplete.",
        "x is not a valid safetensors file: it is too short.",
    ]


PLACES = """
import { placesOf } from "page/runtime/engine/player-files";
import { readGguf } from "page/runtime/gguf/reader";
import { readSafetensorsHeader } from "page/runtime/gguf/safetensors";
async function main({ path, document }) {
  const blob = new Blob([readFileSync(path)]);
  const gguf = path.endsWith(".gguf") ? await readGguf(blob, "x") : null;
  const header = gguf ? [] : await readSafetensorsHeader(blob, "x");
  const tensors = new Map([...header].map(([name, tensor]) => [name, { file: 0, tensor }]));
  const about = { ...document, tied: {}, buffers: "x", prefix: "model." };
  const found = placesOf({ gguf, tensors, file: "x", shape: { name: "x" } }, about);
  return [...found].map(([name, { tensor }]) => [name, tensor.shape, tensor.offset]);
}
"""


@pytest.mark.parametrize("file", ["model.gguf", "folder/model.safetensors"])
def test_parameters_that_share_a_tensor_are_its_rows(tmp_path: Path, file: str) -> None:
    fields = {
        "model_type": "phi3",
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
    }
    config = models.from_dict(fields | {"num_attention_heads": 4, "num_key_value_heads": 2})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text(json.dumps(config.to_dict()))
    tensors = {config.stored_name(k): np.zeros(t.shape, np.float32) for k, t in config.file_tensors.items()}
    save_file(tensors, tmp_path / "folder/model.safetensors")
    convert(tmp_path / "folder", tmp_path / "model.gguf", "q8")
    given = {"path": str(tmp_path / file), "document": {"parameters": parameters(config, config)}}
    found = {name: [shape, offset] for name, shape, offset in run_typescript(tmp_path, PLACES, given)}
    with Checkpoint.open((tmp_path / file) if file == "model.gguf" else tmp_path / "folder") as checkpoint:
        wanted = {name: [list(t.shape), t.offset] for name, t in checkpoint._tensors.items()}
    assert found == wanted
