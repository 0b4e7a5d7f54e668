"""Writes the contents of a decoder's KV caches to a safetensors file, and fills the caches from such a file.

The file has three kinds of tensors: the ids of the text in the caches, the chunks in which the ids were read (start,
tokens, size), and, for each cache, the texels of the rows of these ids. A chunk is a run of ids that was computed at
once. The metadata hold the properties on which the cached values depend, such as the model and the device, and the
SHA-256 of each tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from glgpt.checkpoint.safetensors_file import CHECKSUMS, safetensors_places, sha256
from glgpt.checkpoint.safetensors_writer import SafetensorsWriter
from glgpt.checkpoint.torch_file import Stored
from glgpt.errors import FileError, quoted
from glgpt.gl.player import Player
from glgpt.inference.chunks import Chunk
from glgpt.models.activations import K, V, part_of
from glgpt.program.formats import Floats
from glgpt.system.files import named_errors, open_input, parsed_json, written_whole

VERSION = 1
ABOUT = "glgpt.cache"  # key in the metadata; its value has the properties
Kept = list[tuple[Chunk, list[int]]]  # the chunks that the caches hold, from position 0, and their ids


def save_prefix(path: Path, player: Player, kept: Kept, about: Mapping[str, str]) -> int:
    """Writes the rows of the caches that hold these chunks, and the properties `about` on which the values depend.

    Returns the number of tokens. Raises FileError if `path` is a folder or a device, and OSError if the file cannot be
    written.
    """
    ids = [token for _, own in kept for token in own]
    names, count = _caches(player), len(ids)
    shapes: dict[str, tuple[int, ...]] = {"ids": (count,), "chunks": (len(kept), 3)}
    shapes |= {name: _shape(player, name, count) for name in names}
    own = json.dumps({"version": VERSION, **about})
    with named_errors(path), written_whole(path, private=True) as file:
        writer = SafetensorsWriter(file, shapes, lambda sums: {ABOUT: own, CHECKSUMS: json.dumps(dict(sums))})
        writer.add("ids", np.asarray(ids, np.float32))
        writer.add("chunks", np.asarray([(c.start, c.valid, c.size) for c, _ in kept], np.float32).reshape(-1, 3))
        for name in names:
            writer.add(name, player.read(name)[:, :count])
        writer.finish()
    return count


class SavedPrefix:
    """A file that `save_prefix` wrote, for the caches of a player; `tokens` is the number of tokens in the file.

    Raises FileError, naming the file, if `save_prefix` did not write the file, if the file was saved with properties
    other than `about` (such as another model or device), if its tensors do not have the shapes of the player's caches,
    or if values are damaged or not finite.
    """

    def __init__(self, path: Path, about: Mapping[str, str], player: Player) -> None:
        self._name = name = quoted(path, 300)
        other = f"{name} is not a saved cache; give a file that --cache wrote, or a new name"
        with open_input(path) as file:
            if file.read(9)[8:] != b"{":  # a safetensors file begins with the header's length (8 bytes) and the header
                raise FileError(other)
        places, metadata = safetensors_places(path)
        found = parsed_json(str(metadata.get(ABOUT, "{}")), f"{name}: its metadata")
        if not found:
            raise FileError(other)
        for key, value in {"version": VERSION, **about}.items():
            if found.get(key) != value:
                given = "" if key == "model" else f", {quoted(found.get(key))}"  # a digest does not help the user
                raise FileError(f"{name} was saved with another {key}{given}; give another file")
        self._values = _checked(name, places, player)
        self.tokens = len(self._values["ids"])

    def load(self, player: Player, sizes: tuple[int, ...]) -> Kept:
        """Fills the caches of a player from the file, and returns the chunks that they then hold.

        `sizes` are the chunk sizes that the player's program has. Raises FileError if the caches have too few positions
        for the tokens, or if the chunks do not cover the tokens; the caches then stay unchanged.
        """
        name, values, count, caches = self._name, self._values, self.tokens, _caches(player)
        limit = min(player.program.textures[cache].height for cache in caches)
        if count > limit:
            raise FileError(f"{name} has {count} tokens and the context holds {limit}; raise --context")
        kept = _chunks(name, values, sizes)
        for cache in caches:
            for layer, texels in enumerate(values[cache] if count else ()):
                player.write(cache, layer, texels)
        return kept


def _checked(name: str, places: Mapping[str, Stored], player: Player) -> dict[str, Floats]:
    """Returns the tensors of a file. Raises FileError for unexpected names or shapes, and for damaged values."""
    if set(places) != {"ids", "chunks", *_caches(player)}:
        raise FileError(f"{name} does not have the tensors of a cache of this model; delete it")
    count = math.prod(places["ids"].shape)
    values: dict[str, Floats] = {}
    for tensor, place in places.items():
        wanted = {"ids": (count,), "chunks": (*place.shape[:1], 3)}.get(tensor) or _shape(player, tensor, count)
        if place.shape != wanted or place.dtype != "F32" or math.prod(place.shape[:1]) > max(count, wanted[0]):
            raise FileError(f"{name}: tensor {tensor} has shape {list(place.shape)} instead of {list(wanted)}")
        try:
            values[tensor] = place.map() if math.prod(wanted) else np.zeros(wanted, np.float32)
        except (OSError, ValueError):
            raise FileError(f"{name} is shorter than its header says; delete it") from None
        if sha256(values[tensor]) != place.sha256 or not np.isfinite(values[tensor]).all():
            raise FileError(f"{name}: tensor {tensor} is damaged; delete the file")
    return values


def _caches(player: Player) -> list[str]:
    textures = player.program.textures.values()
    return [t.name for t in textures if t.role == "state" and part_of(t.name) in (K, V)]


def _shape(player: Player, name: str, count: int) -> tuple[int, ...]:
    texture = player.program.textures[name]
    return texture.layers, count, texture.width, 4


def _chunks(name: str, values: Mapping[str, Floats], sizes: tuple[int, ...]) -> Kept:
    """Returns the chunks of a file. Raises FileError unless the chunks follow each other and cover the ids."""
    ids = [int(token) for token in values["ids"]]
    kept: Kept = []
    at = 0
    for start, valid, size in values["chunks"].astype(np.int64).tolist():
        if start != at or size not in sizes or not 0 < valid <= size:
            raise FileError(f"{name}: its chunks do not follow each other; delete it")
        at += valid
        kept.append((Chunk(start, valid, size), ids[start:at]))
    if at != len(ids) or any(token < 0 for token in ids):
        raise FileError(f"{name}: its chunks do not cover its ids; delete it")
    return kept
