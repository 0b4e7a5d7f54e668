"""Provides references to compare a model with: arrays stored in a `.npz`, or a run of transformers in float64."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError, quoted
from glgpt.gguf.reader import is_gguf
from glgpt.models.activations import EMBED, FINAL_NORM, PATTERN, RESID_POST, dims_of, in_block
from glgpt.models.reference import activations
from glgpt.models.spec import ModelConfig
from glgpt.system.files import open_regular

WRITE = "write a reference with glgpt logits TEXT --out FILE.npz, or give --reference transformers"


@dataclass
class Case:
    """One sequence: its token ids, and the reference's activations by name, of which `logits` is required."""

    name: str
    tokens: list[int]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    greedy: list[int] | None = None  # a prefix of `tokens` and the tokens that greedy decoding adds to it


def load_reference(path: str | Path) -> list[Case]:
    """Reads the cases of a `.npz`: `tokens`, `logits`, and optionally `greedy` and activations by their names.

    If there are several cases, the names of their arrays are prefixed with `0.`, `1.` and so on. `attention` [layer,
    head, T, T] and `hidden_states` [layer + 1, T, width], the outputs of transformers, are split into arrays with the
    names of activations. If the name `greedy` has no such prefix, the array belongs to the case whose tokens share the
    longest beginning with the array. Raises GlgptError if the file cannot be read, if an array is missing or has a
    wrong type or shape, or if `greedy` and its case begin with different tokens.
    """
    stored, file = _stored(path), quoted(path, 300)
    groups: dict[str, dict[str, np.ndarray]] = {}
    for key, array in stored.items():
        number, name = re.fullmatch(r"(?:(\d+)\.)?(.*)", key, re.S).groups(default="")  # type: ignore[union-attr]
        groups.setdefault(number, {})[name] = array
    shared = groups.pop("", {}) if len(groups) > 1 and "tokens" not in groups.get("", {"tokens": 0}) else {}
    cases = [_case(f"{file}: {number}." if number else f"{file}: ", group) for number, group in groups.items()]
    for case, number in zip(cases, groups, strict=True):
        case.name = number or "0"
    if "greedy" in shared:
        greedy = _row(f"{file}: ", "greedy", shared["greedy"])
        max(cases, key=lambda case: shared_start(case.tokens, greedy)).greedy = greedy
    for case in cases:
        if case.greedy and not shared_start(case.tokens, case.greedy):
            raise GlgptError(f"{file}: `greedy` does not begin with the first token of case {case.name}")
    return cases


def _stored(path: str | Path) -> dict[str, np.ndarray]:
    """Reads all arrays of the file by name.

    Raises GlgptError if the file is not a readable `.npz`, has no arrays, or an array does not hold real numbers.
    """
    name = quoted(path, 300)
    try:
        if not str(path):
            raise GlgptError(f"--reference is empty; {WRITE}")
        if Path(path).is_dir():
            raise GlgptError(f"reference {name} is a folder; {WRITE}")
        with open_regular(Path(path)) as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise GlgptError(f"{name}: a single array, not an .npz file; {WRITE}")
            stored = {key: file[key] for key in file.files}
    except GlgptError:
        raise
    except FileNotFoundError:
        raise GlgptError(f"reference {name} does not exist; {WRITE}") from None
    except Exception as error:  # numpy, zipfile and tokenize raise many types
        why = error.strerror if isinstance(error, OSError) else None
        reason = f"cannot be read: {why}" if why else f"not a readable .npz file; {WRITE}"
        raise GlgptError(f"{name}: {reason}") from error
    if not stored:
        raise GlgptError(f"{name}: no arrays in it; a reference holds `tokens` and `logits`; {WRITE}")
    for key, array in stored.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
            kind = array.dtype if isinstance(array, np.ndarray) else "not an array"
            raise GlgptError(f"{name}: {quoted(key)} is {kind}; it must hold real numbers")
    return stored


def _row(where: str, name: str, array: np.ndarray) -> list[int]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise GlgptError(f"{where}{name} is {array.dtype} {list(array.shape)}; it must be a row of integers")
    row: list[int] = array.tolist()
    return row


def _shaped(where: str, name: str, array: np.ndarray, dims: str, count: int) -> np.ndarray:
    """Returns the array.

    Raises GlgptError if it is empty, or its shape does not match `dims`, in which `T` stands for `count` tokens.
    """
    wanted = dims.split(", ")
    fits = array.ndim == len(wanted) and all(n == count for n, d in zip(array.shape, wanted, strict=True) if d == "T")
    if not fits or not array.size:
        raise GlgptError(f"{where}{name} is {list(array.shape)}; for {count} tokens (T) it must be [{dims}]")
    return array


def shared_start(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the number of elements before the first difference between two sequences."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _case(where: str, group: dict[str, np.ndarray]) -> Case:
    for key in ("tokens", "logits"):
        if key not in group:
            raise GlgptError(f"{where}{key} is missing; a reference holds `tokens` and `logits`; {WRITE}")
    arrays = dict(group)
    case = Case("", _row(where, "tokens", arrays.pop("tokens")))
    count = len(case.tokens)
    if "greedy" in arrays:
        case.greedy = _row(where, "greedy", arrays.pop("greedy"))
    if "attention" in arrays:
        patterns = _shaped(where, "attention", arrays.pop("attention"), "layer, head, T, T", count)
        arrays |= {in_block(i, PATTERN): pattern for i, pattern in enumerate(patterns)}
    if "hidden_states" in arrays:
        hidden = _shaped(where, "hidden_states", arrays.pop("hidden_states"), "layer + 1, T, width", count)
        names = [EMBED, *(in_block(i, RESID_POST) for i in range(len(hidden) - 2)), FINAL_NORM]
        arrays |= dict(zip(names[-len(hidden) :] if len(hidden) > 1 else [EMBED], hidden, strict=True))
    case.arrays = {name: _shaped(where, name, array, dims_of(name), count) for name, array in arrays.items()}
    return case


def run_transformers(model: str | Path | None, prompts: Sequence[list[int]]) -> list[Case]:
    """Runs a checkpoint in transformers (CPU, float64, eager attention) and returns cases with every activation.

    Raises GlgptError if transformers is not installed or cannot run the checkpoint.
    """
    try:
        import transformers
    except ImportError as error:
        raise GlgptError(f"{error.name} is not installed; pip install 'glgpt[reference]'") from error
    transformers.utils.logging.disable_progress_bar()
    with Checkpoint.open(model) as checkpoint, tempfile.TemporaryDirectory() as made:
        folder, config = str(checkpoint.path), checkpoint.config
        if is_gguf(checkpoint.path):  # transformers reads GGUF with another package, which may not be installed
            folder = str(Path(made) / "model")
            convert(checkpoint.path, folder, "f32")
        return _run_folder(folder, config, prompts)


def _run_folder(folder: str, config: ModelConfig, prompts: Sequence[list[int]]) -> list[Case]:
    import transformers

    try:
        network = getattr(transformers, config.architecture).from_pretrained(folder, **config.reference_options)
        network = network.double().eval()
        return [Case(str(i), ids, activations(config, network, ids)) for i, ids in enumerate(prompts)]
    except (RuntimeError, ValueError, OSError) as error:
        raise GlgptError(f"transformers cannot run {folder}: {str(error).splitlines()[0]}") from error
