"""Measures how far predictions in a format such as q4 are from those in f32; caches the result for each model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.program.tolerance import kl_divergence
from glgpt.system.files import cache_path, read_cache, write_cache
from glgpt.system.memory import available_memory
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.tuning.kernel_selection import DeviceSettings

WINDOW = 256  # maximum tokens of the text
MIN_TOKENS = 16  # minimum tokens of the text; if `TEXT` gives fewer, the model generates a text instead
SPARE = 1.2  # memory needed in f32, as a multiple of the f32 weights: caches and activations need memory too
VERSION = 1  # version of the cached costs
MAX_CACHE_BYTES = 1 << 20  # maximum bytes of the cache file; enough for thousands of models

# Plain prose with names, numbers and quotation marks, as a sample of typical prompts.
TEXT = """\
Rivers begin as small streams in hills and mountains, where rain and melting snow run together. On its way to the \
sea a river grows, because other streams join it, and it becomes slower as the land becomes flat. Towns were often \
built next to rivers: people needed water to drink, and boats could carry grain, wood and stone long before there \
were good roads. In 1850 a journey of forty miles by cart took two days, while a barge needed only one. Today most \
goods travel by lorry or by train, but the bridges, the mills and the names of many streets still remember the \
older way.

"You should see it in April," said Anna, who had lived near the harbour all her life. "The water is so high that \
the lower path disappears, and the children sail paper boats across the square." She pointed at a line of white \
paint on the wall of the post office, about 1.2 metres above the ground. "That was the flood of 1974. My father \
carried my grandmother out of the house on his back." If you walk along the bank early in the morning, you may see \
a heron standing in the shallow water, waiting without a sound for a fish to come close enough. Nobody has counted \
them since the new lock was opened, but the fishermen think that there are more than there used to be.
"""


@dataclass(frozen=True)
class FormatCost:
    """The mean KL divergence of a format's predictions from those in f32, in nats per token, over `tokens` tokens."""

    kl: float
    tokens: int


class NotMeasuredError(GlgptError):
    """Raised if a format cannot be compared with f32 on this machine; the message gives the reason."""


def cache_file() -> Path:
    """Returns the path of the cached costs: `$XDG_CACHE_HOME/glgpt/format-costs.json`."""
    return cache_path() / "format-costs.json"


def remembered_cost(checkpoint: Checkpoint, dtype: str) -> FormatCost | None:
    """Returns the cached cost of these weights in this format, whichever device measured it; None: not cached."""
    found = _known().get(_key(checkpoint, dtype))
    try:
        return FormatCost(float(found["kl"]), int(found["tokens"])) if isinstance(found, dict) else None
    except (KeyError, TypeError, ValueError):  # the file is damaged
        return None


def measure_cost(
    checkpoint: Checkpoint,
    dtype: str,
    model: LanguageModel | None = None,
    *,
    settings: DeviceSettings | None = None,
    **options: Any,
) -> FormatCost:
    """Compares a format with f32 on an English text, or on a text that the model generates; caches the result.

    `model` is the checkpoint, already loaded in the format `dtype` (None: this function loads the checkpoint).
    `options` are those of `LanguageModel`. Raises NotMeasuredError if the model cannot run in f32, for example because
    it does not fit into memory.
    """
    settings = settings or DeviceSettings()
    short = checkpoint.shortened(min(WINDOW, model.max_context if model else WINDOW))
    tokenizer = model.tokenizer if model else load_tokenizer(checkpoint.path, checkpoint.config.vocab_size)
    _check_memory(short, settings)
    try:
        with LanguageModel(short, tokenizer, "f32", settings=settings, **options) as plain:
            ids = _ids(plain, tokenizer)
            wanted = plain.logits(ids)
    except GlgptError as error:
        raise NotMeasuredError(f"f32 does not run here: {error}") from error
    if model is None:
        with LanguageModel(short, tokenizer, dtype, settings=settings, **options) as narrow:
            found = narrow.logits(ids)
    else:
        found = model.logits(ids)
    cost = FormatCost(float(kl_divergence(wanted, found).mean()), len(ids))
    known = _known() | {_key(checkpoint, dtype): {"kl": cost.kl, "tokens": cost.tokens}}
    write_cache(cache_file(), known)
    return cost


def _key(checkpoint: Checkpoint, dtype: str) -> str:
    return f"{VERSION} {model_digest(checkpoint)} {dtype}"


def _known() -> dict[str, Any]:
    return read_cache(cache_file(), MAX_CACHE_BYTES)


def _check_memory(checkpoint: Checkpoint, settings: DeviceSettings) -> None:
    """Raises NotMeasuredError if the device is software GL and the f32 weights do not fit into free memory."""
    needed, free = SPARE * 4 * checkpoint.config.parameter_count, available_memory()
    if free is not None and needed > free and settings.open()[0].software:
        raise NotMeasuredError(f"f32 needs {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free")


def _ids(plain: LanguageModel, tokenizer: Tokenizer | None) -> list[int]:
    """Returns ids of `TEXT`, up to the model's context, without the characters that the tokenizer cannot encode.

    Without a tokenizer, or if fewer than `MIN_TOKENS` tokens remain, returns ids that the model generates.
    """
    most = plain.config.n_positions
    if tokenizer:
        known = {c for c in set(TEXT) if _encodes(tokenizer, c)}
        text = "".join(c for c in TEXT if c in known)
        ids = plain.encode(text)[:most] if text else []
        if len(ids) >= min(MIN_TOKENS, most):
            return ids
    start = [0]
    return [*start, *plain.generate_ids(start, most - 1, temperature=1.0, seed=0, eos=False)]


def _encodes(tokenizer: Tokenizer, text: str) -> bool:
    try:
        return bool(tokenizer.encode(text))
    except GlgptError:
        return False
