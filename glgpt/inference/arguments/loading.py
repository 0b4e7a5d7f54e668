"""Checks the arguments of `glgpt.load` and `glgpt.LanguageModel.from_pretrained` before any file is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from glgpt.errors import ArgumentError, written
from glgpt.inference.arguments.checks import flag, integer, items
from glgpt.program.formats import DTYPES
from glgpt.tuning.kernel_selection import DeviceSettings
from glgpt.wire import hidden


@dataclass(frozen=True)
class SplitOptions:
    """The options of a split model: where its blocks run, and how it communicates with servers. See `glgpt.load`."""

    rest: str | None = None
    plan: str | None = None
    blocks: tuple[int, int] | None = None
    wire: str = "f32"
    token: str | None = None
    speculate: bool = False

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> SplitOptions:
        """Removes these options from keyword arguments and returns them."""
        return cls(**{f.name: options.pop(f.name) for f in fields(cls) if f.name in options})


DEVICE = tuple(f.name for f in fields(DeviceSettings))
PLACES = ("rest", "plan")
# Options that require `rest` or `plan`
SPLIT = tuple(f.name for f in fields(SplitOptions) if f.name not in (*PLACES, "speculate"))
OPTIONS = (*DEVICE, "context", "max_texture_memory", "adapter", "progress", "speculate", *PLACES, *SPLIT)


def checked_options(name: Any, dtype: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are not None.

    Raises ArgumentError for an unknown option, for options that cannot be combined, and if the name, the dtype or an
    option has the wrong type or is out of range.
    """
    if name is not None and not isinstance(name, (str, os.PathLike)):
        raise ArgumentError(f"{written(name)} is not a model; give a folder, a Hub name or None")
    if dtype is not None and (not isinstance(dtype, str) or dtype not in DTYPES):
        raise ArgumentError(f"dtype {written(dtype)} is not one of {', '.join(DTYPES)}")
    if unknown := [option for option in options if option not in OPTIONS]:
        close = get_close_matches(unknown[0], OPTIONS, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; the options are {', '.join(OPTIONS)}"
        raise ArgumentError(f"{written(unknown[0])} is not an option of loading a model{hint}")
    given = {option: value for option, value in options.items() if value is not None}
    for option in DEVICE:
        if not isinstance(given.get(option, ""), (str, int)):
            raise ArgumentError(f"{option} is {written(given[option])}; it must be a name or a number from glgpt info")
    if not isinstance(given.get("adapter", ""), (str, os.PathLike)):
        raise ArgumentError(f"adapter is {written(given['adapter'])}; it must be the folder of a LoRA adapter")
    if "max_texture_memory" in given:
        integer("max_texture_memory", given["max_texture_memory"])
    if "context" in given:
        integer("context", given["context"], 1)
    if not callable(given.get("progress", print)):
        raise ArgumentError(f"progress is {written(given['progress'])}; it must be a function of two numbers")
    flag("speculate", given.get("speculate", False))
    _check_split(given)
    return given


def _check_split(given: Mapping[str, Any]) -> None:
    if not set(PLACES) & set(given):
        if unused := [option for option in SPLIT if option in given]:
            raise ArgumentError(f"{unused[0]} requires rest or plan, which say what runs on servers")
        return
    if "adapter" in given:
        raise ArgumentError("adapter cannot be combined with rest or plan: servers run the model without it")
    for option in ("rest", "plan", "token"):
        if not isinstance(given.get(option, ""), str):
            raise ArgumentError(f"{option} is {written(given[option])}; it must be text")
    wire = given.get("wire", "f32")
    if not isinstance(wire, str) or wire not in hidden.FORMATS:
        raise ArgumentError(f"wire {written(wire)} is not one of {', '.join(hidden.FORMATS)}")
    if "blocks" in given:
        wanted = "two integers, the first block and the one after the last"
        ends = [integer("blocks", end) for end in items("blocks", given["blocks"], wanted)]
        if len(ends) != 2:
            raise ArgumentError(f"blocks is {written(given['blocks'])}; it must be {wanted}")
