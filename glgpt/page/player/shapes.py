"""Lists the shapes for which a page without weights has programs: those of `TABLE` and of given files.

A shape is an architecture with its sizes, such as that of SmolLM2-135M, without weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glgpt import models
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import weight_formats
from glgpt.errors import FileError, GlgptError, quoted
from glgpt.gguf.reader import is_gguf
from glgpt.models.spec import ModelConfig
from glgpt.program.weight_formats import WeightFormats
from glgpt.system.files import data_path, read_json

TABLE = "glgpt/models/families/shapes.json"  # a list of names and configs
MAX_NAME = 60  # characters


@dataclass(frozen=True)
class Shape:
    """A shape: its display name and the config of its models.

    If the shape was read from a GGUF file, `formats` are the storage formats of the file's tensors. Programs are then
    recorded for these formats and for those of the usual mixes. Otherwise, `formats` is None.
    """

    name: str
    config: ModelConfig
    formats: WeightFormats | None = None

    @property
    def slug(self) -> str:
        """Returns the name of the shape's folder in a page."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "shape"


def common_shapes() -> list[Shape]:
    """Returns the shapes of `TABLE`."""
    table = json.loads(data_path(TABLE).read_text(encoding="utf-8"))
    return [Shape(entry["name"], models.from_dict(entry["config"])) for entry in table]


def read_shape(path: str | Path) -> Shape:
    """Returns the shape of a config.json, or of the model in a folder or a GGUF file.

    Raises GlgptError for a file that cannot be read, and for a model that is not supported.
    """
    path = Path(path)
    if is_gguf(path) or path.is_dir():
        with Checkpoint.open(path) as checkpoint:
            formats = weight_formats(checkpoint, None) if is_gguf(path) else None
            return Shape(_named(checkpoint.name), _checked(checkpoint.config, path), formats)
    fields = read_json(path)
    try:
        config = models.from_dict(fields)
    except GlgptError as error:
        raise FileError(f"{quoted(path, 300)}: {error}") from None
    return Shape(_named(_title(fields) or path.resolve().parent.name), _checked(config, path))


def _checked(config: ModelConfig, path: str | Path) -> ModelConfig:
    """Returns the config. Raises GlgptError for longrope scaling: a page cannot recognise files with such scaling."""
    if config.rope_type == "longrope":
        raise FileError(f"{quoted(path, 300)}: a page cannot open files with longrope scaling; export the model itself")
    return config


def listed(given: Sequence[str | Path], common: bool) -> list[Shape]:
    """Returns the shapes of the given files and, if `common`, those of `TABLE`.

    Adds numbers to the names of shapes whose slugs would be equal. Raises GlgptError if the list is empty.
    """
    found = [read_shape(path) for path in given] + (common_shapes() if common else [])
    if not found:
        raise GlgptError("--no-common-shapes leaves no shape; add some with --shape config.json")
    shapes: dict[str, Shape] = {}
    for given_shape in found:
        shape, number = given_shape, 2
        while shape.slug in shapes:
            shape = replace(given_shape, name=f"{given_shape.name} {number}")
            number += 1
        shapes[shape.slug] = shape
    return list(shapes.values())


def _title(fields: dict[str, Any]) -> str:
    title = fields.get("_name_or_path") or fields.get("_model_name_or_path")
    return title.rpartition("/")[2] if isinstance(title, str) else ""


def _named(name: str) -> str:
    return quoted(name, MAX_NAME)
