"""Reads LoRA adapters in the format of PEFT: `adapter_config.json` and `adapter_model.safetensors` or `.bin`.

An adapted weight W becomes W + scale * B A (a matrix product), where A has r rows, and B has r columns. The scale is
lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora` (Hu et al. 2021, Kalajdzievski 2023).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.checkpoint.files import first_line
from glgpt.checkpoint.safetensors_file import safetensors_places
from glgpt.checkpoint.torch_file import READABLE, Stored, torch_tensors, widened
from glgpt.errors import FileError, quoted, written
from glgpt.models.spec import ModelConfig
from glgpt.system.files import read_json

CONFIG = "adapter_config.json"
FILES: dict[str, Callable[[Path], dict[str, Stored]]] = {
    "adapter_model.safetensors": lambda path: safetensors_places(path)[0],
    "adapter_model.bin": torch_tensors,
}
PREFIX = "base_model.model."
MAX_RANK = 1 << 14
MAX_PATTERNS, MAX_PATTERN_CHARACTERS = 1000, 200
_ROWS = 1024  # number of rows of a weight that are changed at once, so that a temporary array takes 4 KB per column

# Fields of adapter_config.json that can request changes other than W + scale * B A. With one of the listed values, a
# field requests no such change.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
    "modules_to_save": (None, []),
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    # Other values mean that W, the weight in the model's files, was changed too.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}
_MATRIX = re.compile(r"(.+)\.(lora_[AB]|lora_embedding_[AB]|base_layer)(?:\.weight)?", re.DOTALL)
# A regular expression in a file could take very long to match. Therefore an expression may have at most
# `MAX_REPETITIONS` repetitions. It may not repeat a group, refer back to a group, or contain "(?".
_UNSAFE = re.compile(r"\)[*+?{]|\(\?|\\[1-9]")
_REPEATED = re.compile(r"[*+?{]")
MAX_REPETITIONS = 3


@dataclass(frozen=True)
class Change:
    """Holds the change of one tensor of the model's files: scale times the product of two matrices, left and right.

    The matrix left has the shape `[rows, r]`, and right has the shape `[r, columns]`. Normally, left is B and right is
    A. If `turned` (the tensor is an embedding, or is stored as `[in, out]`), left is A and right is B, both transposed.
    An adapter that PEFT saved may hold `base`, a copy of the unchanged embedding. The change is then added to this copy
    instead of the model's tensor.
    """

    a: Stored
    b: Stored
    scale: float
    turned: bool
    base: Stored | None

    def factors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Reads the matrices left and right."""
        a, b = _values(self.a), _values(self.b)
        return (a.T, b.T) if self.turned else (b, a)


class Adapter:
    """An adapter whose shapes fit a model. It holds the changes of the model's tensors, by the tensors' names."""

    def __init__(self, path: Path, config: ModelConfig, changes: Mapping[str, Change]) -> None:
        """Use `Adapter.open`."""
        self.path, self._config, self._changes = path, config, dict(changes)

    @classmethod
    def open(cls, folder: str | Path, config: ModelConfig) -> Adapter:
        """Opens an adapter's folder for a model.

        Raises GlgptError for an adapter that is damaged, is not a LoRA adapter, or was made for a model with other
        shapes. The error names the file, and the field or tensor.
        """
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise FileError(f"adapter {quoted(folder, 300)} is not a folder; give one that holds {CONFIG}")
        settings = _Settings.read(path / CONFIG)
        file = next((path / name for name in FILES if (path / name).exists()), None)
        if file is None:
            raise FileError(f"{quoted(path, 300)} holds no weights of an adapter; looked for {', '.join(FILES)}")
        modules = _matrices(file, FILES[file.name](file))
        return cls(path, config, dict(_change(file, config, settings, *module) for module in modules.items()))

    def changes(self, name: str) -> bool:
        """True if the adapter changes the parameter `name`."""
        return self._config.file_place(name)[0].name in self._changes

    def merged(self, name: str, values: NDArray[Any]) -> NDArray[np.float32]:
        """Returns the values of a parameter with the change added.

        `values` are the parameter's values in the model's file; if the change has a `base`, the values of `base` are
        used instead. Raises GlgptError if the adapter cannot be read.
        """
        tensor, rows = self._config.file_place(name)
        change = self._changes[tensor.name]
        try:
            found = np.array(values if change.base is None else _values(change.base), np.float32)
            left, right = change.factors()
        except (OSError, ValueError) as error:
            where = f"{quoted(change.a.path, 300)}: the change of {tensor.name}"
            raise FileError(f"{where} cannot be read: {first_line(error)}") from None
        left = left[rows]
        with np.errstate(over="ignore", invalid="ignore"):  # `Checkpoint.read` refuses values that are not finite
            for start in range(0, len(found), _ROWS):
                found[start : start + _ROWS] += np.float32(change.scale) * (left[start : start + _ROWS] @ right)
        return found


def _values(stored: Stored) -> NDArray[np.float32]:
    found: NDArray[np.float32] = widened(stored.map(), stored.dtype).astype(np.float32)
    return found


@dataclass(frozen=True)
class _Settings:
    """The settings of `adapter_config.json` that determine the ranks and scales.

    `ranks` and `alphas` hold values for some modules, by patterns of module names. `rank` and `alpha` are the values
    for all other modules.
    """

    path: Path
    rank: int
    alpha: float
    root: bool  # the scale is alpha / sqrt(rank) instead of alpha / rank
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> _Settings:
        """Reads an adapter_config.json. Raises FileError, naming the field, for an unsupported or invalid value."""
        fields, where = read_json(path), quoted(path, 300)
        kind = fields.get("peft_type")
        if kind != "LORA":
            raise FileError(f"{where}: peft_type is {written(kind)}; glgpt supports 'LORA' adapters")
        for name, supported in _UNSUPPORTED.items():
            value = fields.get(name)
            if not any(value is each or (value == each and type(value) is type(each)) for each in supported):
                raise FileError(f"{where}: {name} is {written(value)}; glgpt supports {written(supported[-1])}")
        root = fields.get("use_rslora", False)
        if not isinstance(root, bool | None):
            raise FileError(f"{where}: use_rslora is {written(root)}; it must be true or false")
        return cls(
            path,
            _rank(where, "r", fields.get("r", 8)),
            _alpha(where, "lora_alpha", fields.get("lora_alpha", 8)),
            bool(root),
            {key: _rank(where, "rank_pattern", value) for key, value in _patterns(where, fields, "rank_pattern")},
            {key: _alpha(where, "alpha_pattern", value) for key, value in _patterns(where, fields, "alpha_pattern")},
        )

    def of(self, module: str) -> tuple[int, float]:
        """Returns the rank and the scale of a module."""
        rank, alpha = _matching(self.ranks, module, self.rank), _matching(self.alphas, module, self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.root else rank)


def _rank(where: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_RANK:
        raise FileError(f"{where}: {name} has {written(value)}; a rank is an integer from 1 to {MAX_RANK}")
    return value


def _alpha(where: str, name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e9:
        raise FileError(f"{where}: {name} has {written(value)}; it must be a number below 1e9")
    return float(value)


def _patterns(where: str, fields: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    """Returns a field's patterns and their values. Raises FileError for a pattern that could take long to match."""
    found = fields.get(name) or {}
    if not isinstance(found, dict) or len(found) > MAX_PATTERNS:
        raise FileError(f"{where}: {name} is {written(found)}; it must be an object with patterns of module names")
    for key in found:
        unsafe = _UNSAFE.search(key) or len(_REPEATED.findall(key)) > MAX_REPETITIONS
        try:
            re.compile(key)
        except (re.error, OverflowError, RecursionError):
            unsafe = True
        if unsafe or len(key) > MAX_PATTERN_CHARACTERS:
            raise FileError(
                f"{where}: {name} has the pattern {written(key)}; write names of modules, or simpler patterns"
            )
    return list(found.items())


def _matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Returns the value of the first pattern that matches a module's whole name, or the part of the name after a dot.

    Returns `default` if no pattern matches.
    """
    return next((v for key, v in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _matrices(file: Path, tensors: Mapping[str, Stored]) -> dict[str, dict[str, Stored]]:
    """Returns an adapter's tensors by module and role, such as `lora_A`.

    Raises FileError for a tensor that is not a matrix of LoRA.
    """
    found: dict[str, dict[str, Stored]] = {}
    for name, tensor in tensors.items():
        parts, where = _MATRIX.fullmatch(name.removeprefix(PREFIX)), f"{quoted(file, 300)}: tensor {quoted(name, 200)}"
        if not parts:
            raise FileError(f"{where} is not a matrix of LoRA; glgpt supports lora_A and lora_B")
        if not tensor.readable or len(tensor.shape) != 2:
            about = f"has dtype {tensor.dtype} and shape {list(tensor.shape)}"
            raise FileError(f"{where} {about}; glgpt reads matrices of {', '.join(READABLE)}")
        found.setdefault(parts[1], {})[parts[2]] = tensor
    if not found:
        raise FileError(f"{quoted(file, 300)} holds no matrices of LoRA")
    return found


def _change(
    file: Path, config: ModelConfig, settings: _Settings, module: str, matrices: Mapping[str, Stored]
) -> tuple[str, Change]:
    """Returns the name of the tensor that a module of the adapter changes, and the change."""
    where = f"{quoted(file, 300)}: {quoted(module, 200)}"
    name = f"{module}.weight".removeprefix(config.prefix)
    name = config.head if name == ModelConfig.head else name  # an adapter may call any family's head "lm_head"
    tensor, embedding = config.file_tensors.get(name), name == config.embedding
    if name in (*config.tied, *config.tied.values()):
        raise FileError(f"{where} cannot be adapted alone: the model's embedding is also its head")
    if tensor is None or len(tensor.shape) != 2 or tensor.parameters[0].table:
        raise FileError(f"{where} is not a linear layer or an embedding of the model, {config.model_type}")
    turned = embedding or config.input_first
    rows, columns = tensor.shape[::-1] if turned else tensor.shape
    rank, scale = settings.of(module)
    kind = "lora_embedding" if embedding else "lora"
    wanted = {f"{kind}_A": (rank, columns), f"{kind}_B": (rows, rank)}
    for part, shape in (wanted | ({"base_layer": tensor.shape} if "base_layer" in matrices else {})).items():
        found = matrices.get(part)
        if found is None:
            raise FileError(f"{where} has no {part}")
        if found.shape != shape:
            own = f"{part} has shape {list(found.shape)}, but {name} has shape {list(tensor.shape)}"
            raise FileError(f"{where}: {own}; {settings.path.name} has rank {rank}, so the shape must be {list(shape)}")
    return name, Change(matrices[f"{kind}_A"], matrices[f"{kind}_B"], scale, turned, matrices.get("base_layer"))
