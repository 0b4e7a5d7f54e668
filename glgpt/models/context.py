"""Chooses how many positions a model's caches hold (its context), of the `n_positions` that it was made for."""

from __future__ import annotations

from glgpt.errors import ArgumentError, written
from glgpt.models.spec import ModelConfig
from glgpt.program.spec import Limits

DEFAULT_CONTEXT = 2048  # at first, where a model has more positions and no one says how many are needed


def largest_context(config: ModelConfig, limits: Limits) -> int:
    """The most positions that caches can hold on a device: a cache has a row of texels for each."""
    return min(config.n_positions, limits.max_texture_size)


def first_context(config: ModelConfig, limits: Limits, given: int | None = None) -> int:
    """The positions to make caches for: those `given`, else the model's, but DEFAULT_CONTEXT at most.

    Raises ArgumentError for a given number that the model or the device does not have.
    """
    largest = largest_context(config, limits)
    if given is None:
        return min(largest, DEFAULT_CONTEXT)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ArgumentError(f"context is {written(given)}; it must be a whole number from 1")
    if given > largest:
        whose = "of the model" if largest == config.n_positions else "that a texture holds"
        raise ArgumentError(f"a context of {given} is beyond the {largest} positions {whose}; lower --context")
    return given


def grown_context(config: ModelConfig, limits: Limits, needed: int) -> int:
    """The positions to make caches for where `needed` of them are: the next power of two, so that few are ever made."""
    return min(largest_context(config, limits), 1 << max(0, needed - 1).bit_length())
