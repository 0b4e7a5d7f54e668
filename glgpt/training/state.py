"""The files of a training's state: what goes on, and the checkpoint that others load."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from glgpt.errors import GlgptError
from glgpt.models.spec import ModelConfig
from glgpt.system.files import write_json, written_whole

STATE = "state.safetensors"
Arrays = Mapping[str, NDArray[np.float32]]


def write(folder: Path, config: ModelConfig, arrays: Arrays, moments: Arrays, about: dict[str, Any]) -> None:
    """Writes `state.safetensors`, `model.safetensors` and `config.json`; each takes its place only when complete.

    The state is one file with all that training goes on from, so that it is whole at any moment. The other two are a
    Hugging Face checkpoint. Raises OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = {config.stored_name(name): array for name, array in arrays.items()}
    with written_whole(folder / STATE) as file:
        file.write(save({**arrays, **moments}, {"glgpt": json.dumps(about)}))
    with written_whole(folder / "model.safetensors") as file:
        file.write(save(named, {"format": "pt"}))
    write_json(folder / "config.json", config.to_dict(about["recipe"]["dropout"]))


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[dict[str, Any], Callable[[str], NDArray[np.float32]]]]:
    """What `write` was told about a state, and a function that reads one of its arrays.

    Raises GlgptError for a folder without a state, or a state that is damaged.
    """
    path = folder / STATE
    try:
        with safe_open(path, "np") as file:
            yield json.loads(file.metadata()["glgpt"]), file.get_tensor
    except GlgptError:  # what is done with the arrays says itself what was wrong
        raise
    except FileNotFoundError as error:
        raise GlgptError(f"{folder} holds no state of a training: {path.name} is missing") from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise GlgptError(f"{path} is damaged: {error}") from error
