"""Chooses the context of a model: for how many of its `n_positions` the caches of keys and values are allocated."""

from __future__ import annotations

from glgpt.errors import ArgumentError, written
from glgpt.models.spec import ModelConfig
from glgpt.program.spec import Limits

DEFAULT_CONTEXT = 2048  # initial context of a model with more positions, if none is given


def largest_context(config: ModelConfig, limits: Limits) -> int:
    """Returns the maximum number of positions that a device's caches can hold; each position needs a row of texels."""
    return min(config.n_positions, limits.max_texture_size)


def first_context(config: ModelConfig, limits: Limits, given: int | None = None) -> int:
    """Returns the number of positions to allocate caches for at first.

    This is `given`; if that is None, it is the largest context, limited to DEFAULT_CONTEXT. Raises ArgumentError if
    `given` is not a positive integer, or is more than the model or the device supports.
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

    This is a power of two, so that caches are rarely allocated again, or the largest context if that is smaller.
    """
    return min(largest_context(config, limits), 1 << max(0, needed - 1).bit_length())
