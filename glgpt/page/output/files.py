"""Writes the data files of an exported page: weight shards, the tokenizer and the reference run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import texture_matrix
from glgpt.errors import GlgptError, written
from glgpt.gguf.splits import PAGE_PATTERNS
from glgpt.inference.model import LanguageModel
from glgpt.models.activations import LOGITS
from glgpt.page.documents.manifest import Piece, Shard
from glgpt.page.documents.reference import Reference
from glgpt.program.formats import Floats
from glgpt.program.layout import Layout
from glgpt.program.tolerance import Tolerance
from glgpt.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
REFERENCE_TOKENS = 48
MAX_REFERENCE_PROMPT = 64  # maximum tokens: all their activations are in memory at once
# Maximum number of logits (tokens x vocabulary) to store. If a prompt has more, only the last token's are stored.
MAX_LOGIT_VALUES = 1 << 18


class Shards:
    """Writes rows of texels, in order, to files of at most `size` bytes. A longer row is the only row of its file."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.listing: list[Shard] = []
        self._pieces: list[Piece] = []
        self._bytes = bytearray()

    def add(self, texture: str, layer: int, y: int, texels: np.ndarray) -> None:
        """Appends `texels`, of shape `[rows, width, 4]`: the rows of one layer of a texture from row `y` on."""
        row_bytes = texels.shape[1] * 16
        while len(texels):
            fit = (self.size - len(self._bytes)) // row_bytes
            if fit < 1 and self._bytes:
                self.flush()
                continue
            take = min(max(fit, 1), len(texels))
            self._pieces.append([texture, layer, y, take])
            self._bytes += np.ascontiguousarray(texels[:take]).tobytes()
            texels, y = texels[take:], y + take

    def flush(self) -> None:
        """Ends the current file."""
        if self._bytes:
            name = f"weights-{len(self.listing):02}.bin"
            (self.folder / name).write_bytes(self._bytes)
            digest = hashlib.sha256(self._bytes).hexdigest()
            self.listing.append({"file": name, "bytes": len(self._bytes), "sha256": digest, "pieces": self._pieces})
            self._pieces, self._bytes = [], bytearray()


def write_weights(
    checkpoint: Checkpoint, layouts: dict[str, Layout], folder: Path, shard_size: int, progress: Progress | None
) -> list[Shard]:
    """Writes every parameter in its texture layout; returns the list of shards for the manifest."""
    shards = Shards(folder, shard_size)
    total, done = sum(layout.nbytes for layout in layouts.values()), 0
    for name, layout in layouts.items():
        matrix = texture_matrix(checkpoint, name, layout.dtype)
        band = max(1, (8 << 20) // (layout.texture_width * 16))
        for layer in range(layout.layers):
            for y in range(0, layout.texture_height, band):
                shards.add(name, layer, y, layout.layer(matrix, layer, y, band))
        done += layout.nbytes
        if progress:
            progress(done, total)
    shards.flush()
    return shards.listing


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the content of tokenizer.json. Raises GlgptError for an unsupported regular expression."""
    document = tokenizer.document()
    for part in ("normalizer", "pre_tokenizer"):
        for step in _steps(document[part]):
            pattern = step.get("pattern", {}).get("Regex")
            if pattern is not None and pattern not in PAGE_PATTERNS:
                raise GlgptError(
                    f"the page does not support the regular expression {written(pattern)} of this model's "
                    "tokenizer.json; run the model on the desktop"
                )
    around = {"prefix": tokenizer.prompt_prefix, "suffix": tokenizer.prompt_suffix}
    return {"schema": 3, **document, **around, "vocab_size": tokenizer.vocab_size}


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    return next((part[name] for name in ("normalizers", "pretokenizers") if name in part), [part])


def reference_json(model: LanguageModel, prompt: list[int] | None, names: list[str]) -> Reference:
    """Returns the content of reference.json, with which a page checks its results.

    The content is the ids of a prompt (if `prompt` is None, arbitrary ids), their greedy continuation and logits, and
    the values of the last id in each of the activations `names`.
    """
    config = model.config
    if prompt:
        ids = prompt[: max(1, min(MAX_REFERENCE_PROMPT, config.n_positions // 2))]
    else:
        ids = [i % config.vocab_size for i in range(1, 9)][: config.n_positions]
    greedy = list(model.generate_ids(ids, min(REFERENCE_TOKENS, config.n_positions - len(ids)), temperature=0))
    # All activations are captured in one run, as in a page. With fewer captures, ops would be fused. A fused pass does
    # not store all values and so does not round them to f16, which changes the results.
    logits, found = model.run_with_cache(ids, names)
    model.release_captures()
    first = 0 if logits.size <= MAX_LOGIT_VALUES else len(ids) - 1
    return {
        "schema": 2,
        "prompt": model.tokenizer.decode(ids) if model.tokenizer else None,
        "ids": ids,
        "greedy": greedy,
        "device": model.device.renderer,
        "tolerance": Tolerance.of(model.dtype, config.n_layer, same_weights=True).as_json(),
        "logits": {"first": first, "data": _floats(logits[first:])},
        "activations": {name: _floats(_last(found[name])) for name in names if name != LOGITS},
    }


def _last(array: Floats) -> Floats:
    """Returns the last token's values: `[T, width]` -> `[width]`, `[heads, T, n]` -> `[heads, n]`."""
    return np.ascontiguousarray(array[..., -1, :])


def _floats(array: np.ndarray) -> str:
    return _b64(np.ascontiguousarray(array, "<f4").tobytes())


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
