"""Reads and writes a training's parameters, moments and gradients by name, and uploads the ids of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.models.spec import ModelConfig
from glgpt.ops import sorted_index
from glgpt.program.formats import Floats
from glgpt.training.program import MOMENTS

MicroBatches = list[tuple[NDArray[np.int64], NDArray[np.int64]]]  # inputs and targets, each [batch, context]
STATES = ("", *(f".{m}" for m in MOMENTS))  # suffixes of the textures of a parameter and its moments


class TrainingTextures:
    """Reads and writes the textures of a training program's player, with a checkpoint's names and shapes."""

    def __init__(self, config: ModelConfig, player: Player) -> None:
        self.config, self.player = config, player

    def put(self, name: str, matrix: NDArray[Any]) -> None:
        """Uploads a matrix in the layout of its texture."""
        self.player.write_matrix(name, self.player.program.views[name], matrix)

    def write(self, name: str, array: NDArray[Any], suffix: str = "") -> None:
        """Uploads a parameter, or one of its moments with a suffix of `STATES`."""
        self.put(name + suffix, self.config.parameters[name].arrange(array))

    def read(self, name: str, prefix: str = "", suffix: str = "") -> Floats:
        """Returns a parameter, its gradient (prefix `d.`) or one of its moments (a suffix of `STATES`).

        The result has the shape of the parameter in a checkpoint.
        """
        texture = f"{prefix}{name}{suffix}"
        layout = self.player.program.views[texture]
        array: Floats = self.config.parameters[name].restore(layout.unpack(self.player.read(texture)))
        return array

    def mapping(self, suffixes: Sequence[str]) -> Mapping[str, Floats]:
        """Returns a mapping of parameters or moments, by name and suffix; an array is read when it is accessed."""
        return _Arrays(self, suffixes)

    def state(self) -> dict[str, Floats]:
        """Returns every parameter under its name, and its moments under this name and a suffix of `STATES`."""
        return {name + suffix: self.read(name, "", suffix) for name in self.config.parameters for suffix in STATES}

    def restore(self, tensor: Callable[[str], NDArray[Any]]) -> None:
        """Uploads the array `tensor(name)` for each name of `state`."""
        for name in self.config.parameters:
            for suffix in STATES:
                self.write(name, tensor(name + suffix), suffix)

    def upload(self, inputs: NDArray[np.int64], targets: NDArray[np.int64], train: bool) -> None:
        """Uploads the ids of a micro-batch, of shape `[batch, context]`.

        If a tensor of the program has a row for each token, row `position * batch + sequence` is for the token at
        `position` in `sequence`. If `train`, also uploads the index of the ids that the gradient of the embedding needs
        (`sorted_index`).
        """
        ids = inputs.T.reshape(-1)
        self.put(f"ids.{len(ids)}", ids[:, None])
        self.put("targets", targets.T.reshape(-1)[:, None])
        if train:
            order, starts = sorted_index(ids, self.config.vocab_size)
            self.put("order", order)
            self.put("starts", starts)


class _Arrays(Mapping[str, Floats]):
    """Arrays that are read from textures each time they are accessed."""

    def __init__(self, textures: TrainingTextures, suffixes: Sequence[str]) -> None:
        names = textures.config.parameters
        self._read = textures.read
        self._places = {name + suffix: (name, suffix) for name in names for suffix in suffixes}

    def __getitem__(self, key: str) -> Floats:
        name, suffix = self._places[key]
        return self._read(name, "", suffix)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def checked_ids(inputs: Any, targets: Any, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns copies of ids and targets, both of shape `[n, T]`.

    Raises GlgptError for rows of different lengths, for arrays of different shapes, for values that are not integers,
    and for ids outside the vocabulary (a target may be -1).
    """
    try:
        x, y = np.asarray(inputs), np.asarray(targets)
    except ValueError:
        raise GlgptError("inputs or targets have rows that differ in length") from None
    if x.shape != y.shape or x.ndim != 2 or not x.size:
        raise GlgptError(f"inputs {list(x.shape)} and targets {list(y.shape)} must be rows of ids of the same shape")
    for what, array, least in (("inputs", x, 0), ("targets", y, -1)):
        if array.dtype.kind not in "iu":
            raise GlgptError(f"{what} are {array.dtype}, not integers")
        if array.min() < least or array.max() >= vocab_size:
            wrong = array[(array < least) | (array >= vocab_size)][0]
            raise GlgptError(f"{what} hold id {wrong}, outside the vocabulary of {vocab_size}")
    return x.astype(np.int64), y.astype(np.int64)


def micro_batches(
    inputs: NDArray[np.int64], targets: NDArray[np.int64], count: int, batch: int, context: int
) -> MicroBatches:
    """Divides ids and targets, of shape `[n, T]`, into `count` micro-batches of shape `[batch, context]`.

    Smaller arrays are padded, with targets of -1. Padding follows the tokens of a sequence. These attend only to
    earlier tokens, so padding does not change their logits. A target of -1 adds nothing to a loss or a gradient.
    Padding repeats ids of the inputs, since values of other tokens could overflow. Raises GlgptError if the arrays are
    too large for `count` micro-batches.
    """
    rows, (n, length) = count * batch, inputs.shape
    if n > rows or length > context:
        raise GlgptError(f"inputs are [{n}, {length}]; this trainer takes at most [{rows}, {context}]")
    missing = (0, rows - n), (0, context - length)
    x, y = np.pad(inputs, missing, mode="edge"), np.pad(targets, missing, constant_values=-1)
    return [(x[i : i + batch], y[i : i + batch]) for i in range(0, rows, batch)]
