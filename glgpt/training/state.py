"""Reads and writes the files of a training: the state for resuming, and the checkpoint that other programs load."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import models
from glgpt.checkpoint.files import first_line
from glgpt.checkpoint.safetensors_file import CHECKSUMS, safetensors_places, sha256
from glgpt.checkpoint.safetensors_writer import Checksums, SafetensorsWriter
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.models.spec import ModelConfig
from glgpt.system.files import write_json, written_whole
from glgpt.training.program import MOMENTS
from glgpt.training.records import About, validated

STATE = "state.safetensors"
Arrays = Mapping[str, NDArray[np.float32]]


def write(
    folder: Path,
    config: ModelConfig,
    arrays: Arrays,
    moments: Arrays,
    about: dict[str, Any],
    eos: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Writes `state.safetensors`, `model.safetensors` and `config.json`; each is replaced only when complete.

    `state.safetensors` alone has everything needed to resume, so an interrupted write cannot mix two steps. Its
    metadata holds `about`, the shape and SHA-256 of each tensor, and a SHA-256 of all these fields. The other two files
    are a Hugging Face checkpoint, whose metadata holds the SHA-256 of each tensor. `eos` is the id that begins and ends
    a text; None: the tokenizer has none.

    The function reads each array once, and releases it when the tensor of the checkpoint that contains the array is
    written. A mapping that reads arrays from textures therefore needs memory for only one such tensor. `progress` is
    called with the number of tensors written and the number of all tensors. Raises OSError, naming the file, if the
    folder cannot be written. Raises GlgptError, leaving the old files, if a value is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name: config.parameters[name].shape for name in arrays}
    shapes |= {name: config.parameters[name.rpartition(".")[0]].shape for name in moments}

    def described(sums: Checksums) -> dict[str, str]:
        text = json.dumps(about | {"tensors": {n: {"sha256": sums[n], "shape": shapes[n]} for n in shapes}})
        return {"glgpt": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def summed(sums: Checksums) -> dict[str, str]:
        return {"format": "pt", CHECKSUMS: json.dumps(dict(sums))}

    with written_whole(folder / "model.safetensors") as model_file, written_whole(folder / STATE) as state_file:
        state = SafetensorsWriter(state_file, shapes, described)
        last = {tensor.parameters[-1].name: tensor for tensor in config.file_tensors.values()}
        stored = {config.stored_name(tensor.name): tensor.shape for tensor in last.values()}
        model, parts = SafetensorsWriter(model_file, stored, summed), dict[str, NDArray[np.float32]]()
        parameters = set(arrays)
        for done, name in enumerate(shapes):
            progress(done, len(shapes))
            array = arrays[name] if name in parameters else moments[name]
            if not np.isfinite(array).all():
                raise GlgptError(f"{name} holds a NaN or an infinity, so nothing was saved")
            state.add(name, array)
            if name in parameters:
                parts[name] = array
            if name in last:
                model.add(config.stored_name(last[name].name), last[name].joined(parts.__getitem__))
                parts.clear()
            del array
        state.finish()
        model.finish()
    progress(len(shapes), len(shapes))
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), eos)
    write_json(folder / "config.json", config.to_dict(about["recipe"]["dropout"]) | ends)


def read(folder: Path) -> tuple[About, Callable[[str], NDArray[np.float32]]]:
    """Returns the metadata of the state in a folder, and a function that reads and checks the array with a given name.

    If the state has no checksums (browsers write none), the function checks only the type and the shape, and that all
    values are finite. Raises FileError, naming file and field or tensor, for a folder without a state, or a state that
    is damaged.
    """
    path = folder / STATE
    if not path.exists():
        raise FileError(f"{quoted(folder, 300)} holds no training state: {STATE} is missing")
    name = quoted(path, 300)
    places, metadata = safetensors_places(path)
    text = metadata.get("glgpt", "")
    if not text:
        raise FileError(f"{name} is damaged: its metadata has no training state")
    if metadata.get("sha256", digest := hashlib.sha256(text.encode()).hexdigest()) != digest:
        raise FileError(f"{name} is damaged: the checksum of its metadata does not match")
    about = validated(About, text, f"{name} is damaged")
    shapes = {
        parameter + suffix: known.shape
        for parameter, known in models.from_fields(about.config).parameters.items()
        for suffix in ("", *(f".{moment}" for moment in MOMENTS))
    }

    def tensor(key: str) -> NDArray[np.float32]:
        place = places.get(key)
        if place is None:
            raise FileError(f"{name} is damaged: tensor {quoted(key)} is missing")
        if place.dtype != "F32" or place.shape != shapes[key]:
            found = f"{written(place.dtype)} {list(place.shape)}"
            raise FileError(f"{name} is damaged: tensor {key} is {found}, not 'F32' {list(shapes[key])}")
        try:
            array: NDArray[np.float32] = np.ascontiguousarray(place.map())
        except (OSError, ValueError) as error:
            raise FileError(f"{name}: tensor {key} cannot be read: {first_line(error)}") from None
        if about.tensors is not None:
            wanted = about.tensors.get(key)
            if wanted is None or tuple(wanted.shape) != array.shape or wanted.sha256 != sha256(array):
                raise FileError(f"{name} is damaged: the checksum of tensor {key} does not match")
        if not np.isfinite(array).all():
            raise FileError(f"{name} is damaged: tensor {key} holds a NaN or an infinity")
        return array

    return about, tensor
