"""Loads a model of any kind: whole on this machine's device, or split over servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glgpt.inference.model import LanguageModel


def load(name_or_path: str | Path | None = None, dtype: str | None = None, **options: Any) -> LanguageModel:
    """Loads a checkpoint: a folder, a GGUF file, a Hub name such as "gpt2", or None for the embedded Shakespeare model.

    Without `rest` and `plan`, this is `LanguageModel.from_pretrained`, with the same options. With `rest="ws://…"`, a
    server (`glgpt split serve`) runs the blocks that it holds, and this machine loads and runs only the other blocks.
    With `blocks=(first, end)`, loading fails unless this machine's blocks are first .. end - 1. With
    `plan="0-3@here,4-7@ws://a,8-11@ws://b"`, several servers are chained. With `rest` or `plan`, the options also
    include `wire` ("f32", "f16" or "int8", the format of hidden states sent over the network) and `token` (the secret
    that the servers require). With wire "f32", a split model generates the same text as the unsplit model; the other
    formats round the hidden states, which may change the text.

    Raises GlgptError, naming the file and the tensor, for anything that cannot be loaded.
    """
    if options.get("rest") is None and options.get("plan") is None:
        return LanguageModel.from_pretrained(name_or_path, dtype, **options)
    from glgpt.inference.stages.model import SplitLanguageModel  # slow to import: it defines messages to servers

    return SplitLanguageModel.from_pretrained(name_or_path, dtype, **options)
