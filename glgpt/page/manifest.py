"""Builds manifest.json, which lists the files of an exported page and describes its model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, cast

from glgpt import ops
from glgpt.checkpoint.generation_config import end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.gl.player import MAX_DRAW_FLOPS
from glgpt.inference.capture import ONE_CAPTURED
from glgpt.inference.chunks import ONE_TOKEN, PER_CHUNK
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.models.views import described, family_json
from glgpt.page.documents.fields import ListedFile
from glgpt.page.documents.manifest import Config, Manifest, RecordingFiles, Shard, Tuning
from glgpt.page.export_options import ExportOptions
from glgpt.page.output.schemas import validate
from glgpt.page.programs import EDIT, SEVERAL, main_format
from glgpt.page.prompts import Prompts
from glgpt.program.weight_formats import StoredFormats, WeightFormats
from glgpt.tuning.kernel_selection import PANELS_PAY, STEADY

SCHEMA: Final = 3  # version of manifest.json
TUNING: Tuning = {  # constants that the page shares with the desktop; `ahead`: maximum number of tokens in flight
    "one_token": ONE_TOKEN,
    "one_captured": ONE_CAPTURED,
    "per_chunk": PER_CHUNK,
    "panels_pay": PANELS_PAY,
    "steady": STEADY,
    "draw_flops": MAX_DRAW_FLOPS,
    "ahead": 12,
    "texts": SEVERAL,
}


def manifest_json(
    checkpoint: Checkpoint,
    options: ExportOptions,
    formats: WeightFormats,
    prompts: Prompts,
    recordings: list[RecordingFiles],
    files: dict[str, ListedFile],
    shards: list[Shard],
) -> Manifest:
    """Returns the content of manifest.json. Raises GlgptError if the content does not match its schema.

    `recordings` lists the files of each recording (the programs for one kernel). `files` has the size and digest of
    every data file except `shards`, the files of weights.
    """
    config, split, tokenizer = checkpoint.config, options.split, prompts.tokenizer
    part = split.part(config) if split else Part.whole(config)
    about = prompts.manifest()
    manifest: Manifest = {
        "schema": SCHEMA,
        "glgpt": version(),
        "model": options.name or "",
        "dtype": main_format(config, formats),
        "stored": list(formats.types) if isinstance(formats, StoredFormats) else None,
        "parameters": checkpoint.whole.parameter_count,
        "trained_on": options.trained_on,
        "source": options.source,
        "config": page_config(config) | {"n_layer": len(part.blocks)},  # blocks in the page
        "recordings": recordings,
        "tokenizer": "tokenizer.json" if tokenizer else None,
        "eos": list(end_of_text(checkpoint.path, config.vocab_size, tokenizer)),
        "reference": "reference.json",
        "recorded": "recorded.json" if "recorded.json" in files else None,
        "tuning": TUNING,
        "activations": split.activations(config) if split else described(config, part),
        "family": family_json(config, [EDIT]),
        "prompts": about["prompts"],
        "chat": about["chat"],
        "chat_template": about["chat_template"],
        "sampling": about["sampling"],
        "head": about["head"],
        "patterns": list(ops.PATTERNS),
        "split": split.manifest(checkpoint) if split else None,
        "training": "training.json" if "training.json" in files else None,
        "files": dict(sorted(files.items())),
        "shards": shards,
    }
    validate("manifest", manifest, "manifest.json")
    return manifest


def page_config(config: ModelConfig) -> Config:
    """Returns the fields and sizes of a model, for its manifest."""
    return cast("Config", config.fields() | config.shape())


def identify(folder: Path, manifest: Manifest) -> None:
    """Writes the same id to index.html and manifest.json.

    An open page thus detects that another export has replaced its folder: manifest.json then has another id than the
    page.
    """
    page = folder / "index.html"
    text = page.read_text(encoding="utf-8")
    manifest["export_id"] = hashlib.sha256((text + compact(manifest)).encode()).hexdigest()[:32]
    meta = f'<meta name="glgpt-export" content="{manifest["export_id"]}" />'
    page.write_text(text.replace("</title>", f"</title>\n    {meta}", 1), encoding="utf-8")
    (folder / "manifest.json").write_text(compact(manifest), encoding="utf-8")


def compact(value: Any) -> str:
    """Returns JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def version() -> str:
    """Returns the version of glgpt."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("glgpt")
    except PackageNotFoundError:
        return "0"
