"""Opens a checkpoint (a local folder, the embedded model or a Hub name) and reads its tensors one at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import models
from glgpt.checkpoint.files import WEIGHT_FILES, first_line, weight_map
from glgpt.checkpoint.hub import HUB_NAME, download, not_found
from glgpt.checkpoint.safetensors_file import safetensors_places, sha256
from glgpt.checkpoint.steps import step_folder
from glgpt.checkpoint.torch_file import READABLE, Stored, torch_tensors
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.models.spec import ModelConfig
from glgpt.system.files import data_path, read_json

EMBEDDED = "shakespeare"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.:()+ -]{0,95}", re.ASCII)  # a GGUF's general.name, as transformers keeps it
_CHUNK = 1 << 20  # elements checked at once: temporaries stay at a few MB


class Checkpoint:
    """A checkpoint whose tensor names and shapes match its config. No file stays open or mapped between reads."""

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        tensors: dict[str, Stored],
        name: str = "",
        whole: ModelConfig | None = None,
    ) -> None:
        """Use `Checkpoint.open`."""
        self.path, self.config, self._tensors = path, config, tensors
        self.whole = whole or config  # the config of the files, where `config` is `shortened`
        self.name = name or quoted(path.resolve().name)  # for people, see `model_name`

    @classmethod
    def open(cls, name_or_path: str | Path | None = None) -> Checkpoint:
        """Opens a local folder, a saved step of a run ("RUN@400"), the embedded "shakespeare" (or None), or a Hub name.

        Raises GlgptError, naming the file and the tensor, for a model that cannot be found or downloaded, an
        unsupported architecture, a missing or extra tensor, one with another shape or a dtype other than f32, f16 and
        bf16, or a damaged file.
        """
        path = _folder(name_or_path)
        fields = read_json(path / "config.json")
        try:
            config = models.from_dict(fields)
        except GlgptError as error:
            raise FileError(f"{quoted(path / 'config.json', 300)}: {error}") from None
        return cls(path, config, _checked(path, config, _stored(path)), model_name(name_or_path, path, fields))

    def shortened(self, positions: int) -> Checkpoint:
        """Returns the same model with at most this many positions: its caches and position tables are smaller."""
        config: Any = self.config  # the config of every model family is a dataclass
        config = replace(config, n_positions=min(positions, config.n_positions))
        return Checkpoint(self.path, config, self._tensors, self.name, self.whole)

    @property
    def names(self) -> set[str]:
        """Names of the parameters as in `ModelConfig.parameters`, without the model family's prefix."""
        return set(self._tensors)

    def dtype(self, name: str) -> str:
        """Returns the dtype of a tensor in the file: "F32", "F16" or "BF16"."""
        return self._tensors[name].dtype

    def sample(self, name: str, count: int) -> NDArray[np.float32]:
        """Returns up to `count` values spread evenly over a tensor, without reading all of it.

        Raises GlgptError as `read` does.
        """
        flat = self._mapped(name).reshape(-1)
        return _widened(flat[:: max(1, flat.size // count)][:count], self._tensors[name]).astype(np.float32)

    def _mapped(self, name: str) -> NDArray[Any]:
        stored = self._tensors[name]
        try:
            return stored.map()
        except (OSError, ValueError) as error:
            raise FileError(f"{quoted(stored.path, 300)}: tensor {name} cannot be read: {first_line(error)}") from None

    def read(self, name: str) -> NDArray[np.float32] | NDArray[np.float16]:
        """Reads one tensor in its natural shape, read-only: float16 if the file has f16, else float32 (bf16 exactly).

        An f32 or f16 array is a memory-mapped view of the file; its pages are freed with the array. Raises GlgptError
        for NaN or infinity, a wrong checksum, or a file that has shrunk since it was opened.
        """
        stored, parameter = self._tensors[name], self.config.parameters[name]
        mapped = self._mapped(name)
        if stored.sha256 and stored.sha256 != sha256(mapped):
            file = quoted(stored.path, 300)
            raise FileError(f"{file} is damaged: tensor {name} does not match its checksum")
        values: NDArray[Any] = np.ascontiguousarray(_widened(mapped, stored))
        if parameter.table:
            values = values[: parameter.shape[0]]
        flat = values.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            finite = np.isfinite(flat[start : start + _CHUNK])
            if not finite.all():
                first = start + int(finite.argmin())
                where = ", ".join(map(str, np.unravel_index(first, values.shape)))
                file = quoted(stored.path, 300)
                raise FileError(f"{file}: tensor {name} is {flat[first]} at [{where}]; weights must be finite")
        return values

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._tensors.clear()  # no file is open between reads; from here on, `read` finds no tensor


def _widened(values: NDArray[Any], stored: Stored) -> NDArray[Any]:
    """Widens bf16, which NumPy does not have, to float32, of which it is the upper half; returns others unchanged."""
    return np.left_shift(values, 16, dtype=np.uint32).view(np.float32) if stored.dtype == "BF16" else values


def embedded_weights() -> Path:
    """Returns the folder of the embedded default model, in a checkout or inside the installed wheel."""
    return data_path("weights/" + EMBEDDED)


def model_name(name_or_path: str | Path | None, folder: Path, fields: Mapping[str, Any]) -> str:
    """Returns a checkpoint's name: the one on the Hub, else one in its `config.json`, else its folder's.

    A `_name_or_path` that is a path is ignored: it is where someone's copy was, not a name.
    """
    given = "" if name_or_path is None else str(name_or_path)
    if given and folder.resolve() != Path(given).expanduser().resolve():
        return given
    for key, form in (("_name_or_path", HUB_NAME), ("_model_name_or_path", _PLAIN_NAME)):
        name = fields.get(key)
        if isinstance(name, str) and form.fullmatch(name):
            return name
    return quoted(folder.resolve().name)


def _folder(name_or_path: str | Path | None) -> Path:
    if name_or_path is None or name_or_path == EMBEDDED:
        return embedded_weights()
    name = str(name_or_path)
    try:
        path = Path(name).expanduser()
        if name and path.is_dir():
            return path
        if name and (step := step_folder(str(path))):
            return step
        if name and path.exists():
            raise FileError(f"{quoted(name, 300)} is a file; give the folder that holds config.json and the weights")
    except (OSError, RuntimeError) as error:  # a name that is too long, a parent without permission, an unknown ~user
        raise FileError(f"model {written(name)} cannot be looked up: {first_line(error)}") from None
    if isinstance(name_or_path, Path) or not HUB_NAME.fullmatch(name):
        raise FileError(not_found(name))
    return download(name)


def _stored(folder: Path) -> dict[str, Stored]:
    """Returns the place of every tensor in the folder's weight files, by its name in the file."""
    file = next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)
    if file is None:
        raise FileError(f"{quoted(folder, 300)} holds no weights; looked for {', '.join(WEIGHT_FILES)}")
    if file.suffix != ".json":
        return _open_file(file)
    shards: dict[str, dict[str, Stored]] = {}
    found = {}
    for name, shard in weight_map(file).items():
        if shard not in shards:
            if not (folder / shard).exists():
                raise FileError(f"{quoted(folder / shard, 300)} is missing; {file.name} lists {written(name)} in it")
            shards[shard] = _open_file(folder / shard)
        if name not in shards[shard]:
            raise FileError(f"{quoted(folder / shard, 300)} lacks tensor {written(name)}, which {file.name} lists")
        found[name] = shards[shard][name]
    return found


def _open_file(path: Path) -> dict[str, Stored]:
    return safetensors_places(path)[0] if path.suffix == ".safetensors" else torch_tensors(path)


def _checked(folder: Path, config: ModelConfig, stored: dict[str, Stored]) -> dict[str, Stored]:
    """Returns the tensors by their canonical names. Raises GlgptError unless they are exactly those of the config."""
    tensors: dict[str, Stored] = {}
    for full, tensor in stored.items():
        name = full.removeprefix(config.prefix)
        name = quoted(name, 120)  # leaves every model's names unchanged; others become safe to print
        if config.buffers.fullmatch(name):
            continue
        if name in tensors:
            raise GlgptError(f"{tensor.path}: tensor {name} appears twice, with and without {config.prefix}")
        tensors[name] = tensor
    expected = config.parameters
    where = next(iter(stored.values())).path
    for name, parameter in expected.items():
        shape, found = parameter.shape, tensors.get(name)
        if found is None:
            raise GlgptError(f"{where}: tensor {name} is missing ({len(expected)} expected, {len(tensors)} found)")
        if found.shape != shape:
            shapes = f"has shape {list(found.shape)}; config.json requires {list(shape)}"
            raise GlgptError(f"{found.path}: tensor {name} {shapes}")
        if found.dtype not in READABLE:
            raise GlgptError(f"{found.path}: tensor {name} has dtype {found.dtype}; glgpt reads {', '.join(READABLE)}")
    for name, original in config.tied.items():
        copy = tensors.pop(name, None)
        if copy is not None and not _same(copy, tensors[original]):
            why = f"differs from {original}, though config.json ties them; set tie_word_embeddings to false there"
            raise GlgptError(f"{copy.path}: tensor {name} {why}")
    for name, tensor in tensors.items():
        if name not in expected:
            raise GlgptError(f"{tensor.path}: tensor {name} is not part of the model in config.json")
    return {name: tensors[name] for name in expected}


def _same(a: Stored, b: Stored) -> bool:
    if a == b or (a.dtype, a.shape) != (b.dtype, b.shape):
        return a == b
    bits = f"u{READABLE[a.dtype][0]}"  # compared as integers: NaN equals itself, and `read` reports it
    rows = max(1, _CHUNK // a.shape[1])
    left, right = a.map().view(bits), b.map().view(bits)
    return all(np.array_equal(left[i : i + rows], right[i : i + rows]) for i in range(0, a.shape[0], rows))
