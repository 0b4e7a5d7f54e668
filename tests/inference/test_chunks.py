"""Tests splitting a prompt into chunks: every token once, nothing beyond the context, little padding."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glgpt.inference.chunks import chunk_sizes, plan
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.program.spec import Limits


@given(st.data(), st.integers(1, 700), st.sampled_from([(1,), (16, 1), (64, 16, 1), (256, 64, 16, 1)]))
def test_chunks_cover_every_token_once(data: st.DataObject, context: int, known: tuple[int, ...]) -> None:
    """Fails if a token is left out, or a padded chunk writes beyond the context or over tokens that are in use."""
    tokens = data.draw(st.integers(1, context))
    chunks = plan(tokens, context, known)
    assert chunks[0].start == 0 and chunks[-1].start + chunks[-1].valid == tokens
    assert all(b.start == a.start + a.valid for a, b in pairwise(chunks))
    assert all(1 <= c.valid <= c.size and c.size in known and c.start + c.size <= context for c in chunks)
    assert all(c.valid == c.size for c in chunks[:-1])


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [(1, [1]), (2, [1, 1]), (16, [16]), (17, [16, 1]), (60, [64]), (64, [64]), (255, [256]), (512, [256, 256])],
)
def test_chunks_are_cheap(tokens: int, sizes: list[int]) -> None:
    """Fails if a prompt runs token by token, or in a chunk that is far too long."""
    assert sorted((c.size for c in plan(tokens, 1024, (256, 64, 16, 1))), reverse=True) == sizes


def test_nothing_to_plan() -> None:
    assert plan(0, 16, (16, 1)) == []


@pytest.mark.parametrize(
    ("positions", "heads", "limit", "sizes"),
    [
        (1, 1, 4096, (1,)),
        (15, 1, 4096, (1,)),
        (70, 5, 4096, (64, 16, 1)),
        (1024, 12, 4096, (256, 64, 16, 1)),
        (1024, 12, 512, (64, 16, 1)),  # 12 heads x 256 tokens: too many rows of scores for a texture
        (1024, 12, 40, (1,)),
    ],
)
def test_sizes_fit_the_context_and_the_textures(positions: int, heads: int, limit: int, sizes: tuple[int, ...]) -> None:
    """Fails if a chunk is recorded that the context or a texture cannot hold."""
    config = GPT2Config(n_positions=positions, n_embd=8 * heads, n_head=heads)
    assert chunk_sizes(config, 4, Limits(max_texture_size=limit)) == sizes
