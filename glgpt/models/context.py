"""Chooses the context of a model: the number of positions for which the caches of keys and values are allocated."""

from __future__ import annotations

from glgpt.errors import ArgumentError, written
from glgpt.models.spec import ModelConfig
from glgpt.program.spec import Limits

DEFAULT_CONTEXT = 2048  # initial context, if none is given, of a model that has more positions


def largest_context(config: ModelConfig, limits: Limits) -> int:
    """Returns the maximum number of positions that a device's caches can hold; each position needs a row of texels."""
    return min(config.n_positions, limits.max_texture_size)


def first_context(config: ModelConfig, limits: Limits, given: int | None = None) -> int:
    """Returns the number of positions to allocate caches for at first: `given`, or a default if `given` is None.

    The default is the largest context, but at most DEFAULT_CONTEXT. Raises ArgumentError if `given` is not a positive
    integer, or is more than the model or the device supports.
    """
    largest = largest_context(config, limits)
    if given is None:
        return min(largest, DEFAULT_CONTEXT)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ArgumentError(f"context is {written(given)}; it must be a positive integer")
    if given > largest:
        whose = "of the model" if largest == config.n_positions else "that a texture holds"
        raise ArgumentError(f"a context of {given} is beyond the {largest} positions {whose}; lower --context")
    return given


def grown_context(config: ModelConfig, limits: Limits, needed: int) -> int:
    """Returns the number of positions to allocate caches for if `needed` positions are used.

    The number is the next power of two, so that a growing text rarely needs new caches. If that is more than the
    largest context, returns the largest context.
    """
    return min(largest_context(config, limits), 1 << max(0, needed - 1).bit_length())
