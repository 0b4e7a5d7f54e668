"""Reads from a checkpoint's files which token ids end a text, and how answers are sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted, written
from glgpt.gguf.model_files import file_name, has_file, read_model_json
from glgpt.text.tokenizer import GPT2_VOCAB_SIZE, Tokenizer

FILES = ("generation_config.json", "config.json")  # the first that has eos_token_id decides, as in transformers
MAX_ENDS = 64
# The model card of SmolLM2-Instruct recommends these values. At temperature 0.8, models of this size often answer
# nonsense.
CHAT_SAMPLING: dict[str, Any] = {"temperature": 0.2, "top_p": 0.9}
SAMPLING_RANGES = {"temperature": (0, 100), "top_k": (-1, 2**31 - 1), "top_p": (0, 1), "min_p": (0, 1)}
# By default, transformers writes this eos_token_id, that of GPT-2. With a smaller vocabulary, it is ignored here.
_UNCHOSEN = GPT2_VOCAB_SIZE - 1


def end_of_text(folder: Path, vocab_size: int, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Returns the ids after which a generation stops: `eos_token_id` of the folder's files, or else the tokenizer's id.

    `folder` may also be a GGUF file. generation_config.json takes precedence over config.json; each may have one id
    or a list of ids. Raises FileError, naming the file, for a value that is not an id of the vocabulary.
    """
    for name in FILES:
        value = read_model_json(folder, name).get("eos_token_id") if has_file(folder, name) else None
        if value not in (None, []) and not (value == _UNCHOSEN and vocab_size <= _UNCHOSEN):
            return _checked(value, vocab_size, file_name(folder, name))
    own = tokenizer.eos if tokenizer else None
    return (own,) if own is not None and own < vocab_size else ()


def _checked(value: Any, vocab_size: int, path: Path) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    name = f"{quoted(path, 300)}: eos_token_id"
    if len(ids) > MAX_ENDS:
        raise FileError(f"{name} has {len(ids):,} ids; at most {MAX_ENDS} are supported")
    for i in ids:
        if type(i) is not int or not 0 <= i < vocab_size:
            raise FileError(
                f"{name} is {written(i)}; it must be an id of the vocabulary, 0 to {vocab_size - 1}, or a list of ids"
            )
    return tuple(dict.fromkeys(ids))


def chat_sampling(folder: Path) -> dict[str, Any]:
    """Returns the default sampling of answers, as keyword arguments of `SamplingOptions`.

    The default is what the model recommends, or else `CHAT_SAMPLING`. Raises FileError for values out of range.
    """
    return recommended_sampling(folder) or dict(CHAT_SAMPLING)


def recommended_sampling(folder: Path) -> dict[str, Any]:
    """Returns the sampling settings of generation_config.json, or of a GGUF file; {} if they give no temperature.

    Raises FileError, naming the file, for values out of range.
    """
    name = FILES[0]
    given = read_model_json(folder, name) if has_file(folder, name) else {}
    if given.get("temperature") is None:
        return {}
    found: dict[str, Any] = {}
    for key, (least, most) in SAMPLING_RANGES.items():
        value = given.get(key)
        if value is None:
            continue
        whole = key == "top_k"
        number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        if not number or (whole and value != int(value)):
            what = "an integer" if whole else "a number"
            raise FileError(
                f"{quoted(file_name(folder, name), 300)}: {key} is {written(value)}; it must be {what} from {least} to "
                f"{most}"
            )
        if value > 0 or key == "temperature":  # 0 disables a setting other than temperature, -1 disables top-k
            found[key] = int(value) if whole else value
    return found
