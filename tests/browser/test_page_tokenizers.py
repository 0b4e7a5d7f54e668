"""Tests that the page reads the tokenizers of GGUF files, and encodes texts, as the desktop does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from helpers.gguf_files import tokenizer
from helpers.soak import mostly_soak
from helpers.tokenizer_layouts import LAYOUTS, layout, trained
from helpers.tokenizer_texts import texts
from helpers.typescript import run_typescript

from glgpt.errors import FileError
from glgpt.gguf.reader import GgufFile, open_gguf
from glgpt.gguf.tokenizer_files import tokenizer_files
from glgpt.page.output.files import tokenizer_json
from glgpt.page.output.schemas import validate
from glgpt.text.gguf_vocabulary import vocabulary
from glgpt.text.tokenizer import load_tokenizer

CONVERT = """
import { tokenizerFiles } from "page/runtime/gguf/tokenizer";
function main(files) {
  return files.map((file) => {
    try {
      return tokenizerFiles(new Map(Object.entries(file)), "model.gguf");
    } catch (error) {
      return String(error.message);
    }
  });
}
"""


def as_json(metadata: dict[str, Any]) -> dict[str, Any]:
    lists = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in metadata.items()}
    return dict(json.loads(json.dumps(lists).replace("NaN", "null")))


def on_desktop(metadata: dict[str, Any]) -> dict[str, Any] | str | None:
    """Returns the tokenizer that the desktop reads from a file, or the error. None: the file has no tokenizer."""
    try:
        found = tokenizer_files(GgufFile(Path("model.gguf"), metadata, {}))
    except FileError as error:
        return str(error)
    if not found:
        return None
    document = json.loads(json.dumps(found["tokenizer.json"]))
    ends = found.get("generation_config.json", {}).get("eos_token_id", [])
    roles = found["tokenizer_config.json"]
    return {"document": document, "roles": roles, "ends": ends, "template": found.get("chat_template.jinja")}


BYTE_LEVEL = {
    "gpt2": {"eos_token": "<|endoftext|>"},
    "smollm": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
}


def byte_level(folder: Path, name: str) -> dict[str, Any]:
    """Returns the metadata of a small byte-level tokenizer."""
    folder.mkdir()
    document = layout(name)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(BYTE_LEVEL[name] | {"chat_template": "{{ messages }}"}))
    last = max(*document["model"]["vocab"].values(), *(about["id"] for about in document["added_tokens"]))
    return vocabulary(folder, last + 3, [])


def sentencepiece(name: str, **more: Any) -> dict[str, Any]:
    """Returns the metadata of a small SentencePiece tokenizer."""
    document = layout(name)
    tokens, merges = list(document["model"]["vocab"]), document["model"]["merges"]
    types = np.array([6 if token.startswith("<0x") else 1 for token in tokens], np.int32)
    types[:3] = 2, 3, 3
    scores = np.full(len(tokens), -1000.0, np.float32)
    for rank, merge in reversed(list(enumerate(merges))):
        scores[tokens.index(merge.replace(" ", ""))] = -rank
    return tokenizer(
        model="llama", pre="default", tokens=tokens, token_type=types, scores=scores, unknown_token_id=0,
        bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip


def variants() -> list[dict[str, Any]]:
    """Returns the metadata of tokenizers with various pre-tokenizers and flags, and damaged metadata."""
    scores = np.zeros(len(tokenizer()["tokenizer.ggml.tokens"]), np.float32)
    return [
        {}, tokenizer(model="no_vocab"), tokenizer(pre="dbrx"), tokenizer(add_bos_token=True, add_eos_token=True),
        tokenizer(bos_token_id=0xFFFFFFFF), tokenizer(pre="default", token_type=np.ones(len(scores), np.int32)),
        tokenizer(model="llama", scores=scores, add_space_prefix=False), tokenizer(eot_token_id=260),
        # Metadata that is refused
        tokenizer(tokens=7), tokenizer(tokens=["a", "b", "a"]), tokenizer(token_type=scores + 0.5),
        tokenizer(token_type=np.ones(3, np.int32)), tokenizer(merges=None), tokenizer(model="bert"),
        tokenizer(pre="unknown\\n"), tokenizer(bos_token_id=1 << 20), tokenizer(model="llama"),
        tokenizer(model="llama", scores=scores + np.nan), tokenizer(model="llama", scores=scores, tokens=["a" * 257]),
    ]  # fmt: skip


def test_the_tokenizer_of_a_gguf_file_is_the_desktops(tmp_path: Path) -> None:
    files = [byte_level(tmp_path / name, name) for name in BYTE_LEVEL]
    files += [sentencepiece("tinyllama"), sentencepiece("gemma", add_space_prefix=False), *variants()]
    found = run_typescript(tmp_path, CONVERT, [as_json(file) for file in files])
    for page, file in zip(found, files, strict=True):
        desktop = on_desktop(file)
        if isinstance(desktop, str):  # the errors may write numbers and quotes differently
            assert isinstance(page, str) and page.startswith("model.gguf: "), (page, desktop)
        else:
            assert page == desktop


READ = """
import { tokenizerFiles } from "page/runtime/gguf/tokenizer";
import { Tokenizer, tokenizerData } from "page/runtime/engine/tokenizer";
function main({ metadata, texts }) {
  const files = tokenizerFiles(new Map(Object.entries(metadata)), "model.gguf");
  const tokenizer = new Tokenizer(tokenizerData(files));
  return { files, ids: texts.map((text) => tokenizer.prompt(text)) };
}
"""


def test_the_tokenizer_of_smollm2_is_the_desktops(smollm2: Path, tmp_path: Path) -> None:
    metadata = {key: value for key, value in open_gguf(smollm2).metadata.items() if key.startswith("tokenizer.")}
    desktop = load_tokenizer(smollm2, None)
    assert desktop
    given = texts(500, ["<|im_start|>", "<|im_end|>"])
    page = run_typescript(tmp_path, READ, {"metadata": as_json(metadata), "texts": given})
    assert page["files"] == on_desktop(metadata)
    assert page["ids"] == [desktop.prompt(text) for text in given]


ENCODE = """
import { parseTokenizer } from "page/runtime/engine/manifest";
import { Tokenizer } from "page/runtime/engine/tokenizer";
function main({ data, texts }) {
  const tokenizer = new Tokenizer(parseTokenizer(data, "tokenizer.json"));
  return texts.map((text) => {
    const ids = tokenizer.encode(text);
    const ordinary = tokenizer.encodeOrdinary(text);
    return { ids, ordinary, prompt: tokenizer.prompt(text), text: tokenizer.decode(ids) };
  });
}
"""


@pytest.mark.parametrize("name", mostly_soak(LAYOUTS, ("gpt2", "llama3", "smollm")))
def test_ids_of_2000_texts_are_the_librarys(tmp_path: Path, name: str) -> None:
    document = trained(name, texts(3000, [], seed=7))
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    desktop = load_tokenizer(tmp_path, None)
    assert desktop
    given = texts(2000, [about["content"] for about in document["added_tokens"]])
    data = tokenizer_json(desktop)
    validate("tokenizer", data, "tokenizer.json")
    found = run_typescript(tmp_path, ENCODE, {"data": data, "texts": given})
    for text, page in zip(given, found, strict=True):
        assert page["ids"] == library.encode(text, add_special_tokens=False).ids, text
        assert page["prompt"] == library.encode(text).ids == desktop.prompt(text), text
        assert page["ordinary"] == desktop.encode_ordinary(text), text
        assert page["text"] == desktop.decode(page["ids"]), text
