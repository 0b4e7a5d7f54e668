"""Compares sampling on the device with its definition in float64: kept tokens, and how often each token is drawn.

If the device cannot decide which token to draw, it reports this, and the host draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glgpt import ops
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.sampling import SAMPLE_NUCLEUS, SAMPLING, Sampler
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits

Array = NDArray[Any]
ROWS = 500  # draws in one play
RANDOM = np.random.default_rng(3)
LOGITS = {
    "flat": np.zeros(50),
    "peaked": 4 * RANDOM.standard_normal(1000),
    "tied": RANDOM.integers(0, 4, 300),
    "three": np.array([1, 0.5, -2]),
    "one": np.array([2.5]),
    "wide": RANDOM.standard_normal(50257),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "cold": {"temperature": 0.6},
    "k": {"temperature": 1.3, "top_k": 5},
    "p": {"temperature": 0.8, "top_p": 0.9},
    "low p": {"temperature": 2.0, "top_p": 0.3},
    "min p": {"temperature": 1.5, "min_p": 0.2},
    "p and min p": {"top_p": 0.95, "min_p": 0.1},
    "k and p": {"top_k": 20, "top_p": 0.55},
}


@contextmanager
def drawing(device: Device, logits: Array, options: Options | None = None, rows: int = 1) -> Iterator[Player]:
    """Yields a player of the sampling entries for these logits; the state `drawn` gets `rows` draws."""
    rec = Recorder(Limits(max_draw_buffers=4))
    x = rec.fixed("logits", fold(1, len(logits), 4096), "state")
    best, drawn = (
        rec.fixed("token", ops.TOKEN, "state"),
        rec.fixed("drawn", Layout(rows, ops.TOKEN.cols if rows == 1 else 4), "state"),
    )
    with rec.entry("argmax"):
        ops.argmax(rec, x, best)
    for entry in SAMPLING:
        with rec.entry(entry):
            ops.sample(rec, x, best, drawn, entry == SAMPLE_NUCLEUS)
    with Player(device, rec.program(), options) as player:
        player.write_matrix("logits", x.layout, np.asarray(logits, np.float32)[None])
        player.play("argmax")
        yield player


def test_the_greatest_logit_is_found_wherever_it_is(device: Device) -> None:
    """Fails if argmax skips a block of the vocabulary or of a texel, or prefers the later of two equal values."""
    count, step = 5003, 41
    with drawing(device, np.zeros(count)) as player:
        layout = player.program.views["logits"]
        for at in [*range(0, count, step), count - 1]:
            logits = np.full((1, count), -1.0, np.float32)
            logits[0, at::step] = 2
            player.write_matrix("logits", layout, logits)
            player.play("argmax")
            assert player.read("token")[0, 0, 0].tolist() == [at, 2, 0, 0]


def draw(player: Player, sampler: Sampler, step: int = 0) -> Array:
    """Returns the texels `[1, 10, 4]` of one draw, or `[rows, 1, 4]` of `rows` draws with the steps from `step` on.

    The ten texels are the drawn token, the eight likeliest tokens and the sums of the weights.
    """
    vocab = player.program.views["logits"].cols
    assert sampler.entry
    player.play(sampler.entry, **sampler.scalars(step, vocab))
    return np.asarray(player.read("drawn")[0])


@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)
def test_tokens_come_as_often_as_they_should(device: Device, logits: Array) -> None:
    """Fails if a token is wrongly kept or dropped, weights are wrong, or random numbers are not independent."""
    agree_with_the_definition(device, logits, 3_000 if len(logits) <= 1000 else 1_500)


@pytest.mark.soak
@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)
def test_a_hundred_thousand_tokens_come_as_often_as_they_should(device: Device, logits: Array) -> None:
    """Fails if a probability has a small error, which fewer draws do not show."""
    agree_with_the_definition(device, logits, 100_000)


def agree_with_the_definition(device: Device, logits: Array, draws: int) -> None:
    """Compares the counts of this many draws of each setting with the probabilities of the definition (chi-square)."""
    with drawing(device, logits, rows=ROWS) as player:
        for name, settings in SETTINGS.items():
            sampler = Sampler(SamplingOptions(**settings, seed=3))
            texels = [draw(player, sampler, step) for step in range(0, draws, ROWS)]
            assert agrees(texels, sampler.probabilities(np.float32(logits)), draws), name


def agrees(texels: list[Array], p: Array, draws: int) -> bool:
    """True if the counts of draws fit the probabilities, and no token of probability 0 is drawn."""
    assert not any(t[:, 0, 2:].any() for t in texels)
    counts = np.bincount(np.concatenate([t[:, 0, 0] for t in texels]).astype(int), minlength=len(p))
    assert not counts[p == 0].any()
    often = p * draws >= 5
    classes = np.append(counts[often], counts[~often].sum()), np.append(p[often], p[~often].sum()) * draws
    observed, expected = (c[classes[1] > 0] for c in classes)
    free = len(expected) - 1
    chi_square = ((observed - expected) ** 2 / expected).sum()
    return bool(chi_square <= free + 4 * np.sqrt(2 * free) + 8)  # exceeded in fewer than 1 of 10^4 samples


@pytest.mark.parametrize("options", [Options(), Options("330", "texelFetch", "uint")], ids=["float", "uint"])
def test_exactly_these_tokens_are_kept(device: Device, options: Options) -> None:
    """Fails if top-k or top-p keeps one token too few or too many, or the wrong tokens among equal logits."""
    logits = np.random.default_rng(5).integers(-8, 9, 400) / 2.0
    with drawing(device, logits, options) as player:
        for settings in (
            *({"top_k": k} for k in (2, 3, 17, 40, 64)),
            *({"top_p": p} for p in (1e-6, 0.2, 0.4999, 0.77, 0.93)),
            *({"top_k": 30, "top_p": p} for p in (0.1, 0.5, 0.9)),
            *({"min_p": p} for p in (0.01, 0.25, float(np.exp(-1)), 1.0)),
            *({"min_p": p, "top_p": 0.7} for p in (0.05, 0.5)),
        ):
            for temperature in (0.5, 1.0, 1.7):
                sampler = Sampler(SamplingOptions(temperature=temperature, seed=1, **settings))
                p = sampler.probabilities(logits)
                _, weight, greatest, _ = draw(player, sampler)[0, -1]
                assert weight == pytest.approx(np.exp((logits[p > 0] - greatest) / temperature).sum(), rel=1e-5), (
                    settings
                )


def test_the_likeliest_come_with_a_draw(device: Device) -> None:
    """Fails if the probability of an alternative is wrong, a dropped token counts as kept, or the order is wrong."""
    logits = 3 * np.random.default_rng(6).standard_normal(5000)
    with drawing(device, logits) as player:
        for settings in ({"top_k": 3}, {"top_p": 0.8}, {"top_p": 0.1, "temperature": 3.0}):
            sampler = Sampler(SamplingOptions(**settings, seed=4))
            texels, p = draw(player, sampler)[0], sampler.probabilities(np.float32(logits))
            order = np.argsort(-logits, kind="stable")[:8]
            assert texels[1:9, 0].tolist() == order.tolist()
            np.testing.assert_array_equal(texels[1:9, 2] > 0, p[order] > 0)
            plain, kept, greatest, _ = texels[9]
            np.testing.assert_allclose(np.exp(logits - greatest).sum(), plain, rtol=1e-5)
            weights = np.exp((texels[1:9, 1] - greatest) / sampler.temperature) / kept
            np.testing.assert_allclose(weights * texels[1:9, 2], p[order], rtol=1e-4)


@pytest.mark.parametrize(
    ("logits", "settings"),
    [
        (np.zeros(5000), {"top_k": 4000}),
        (np.zeros(5000), {"top_p": 0.5}),
        (np.repeat([5.0, 1.0], [1, 8000]), {"top_p": 0.7}),
        (np.where(np.arange(20000) % 512 < 4, 5.0, 0.0), {"top_k": 16}),  # the best are in a few blocks
        (np.where(np.arange(20000) % 512 < 1, 5.0, 0.0), {"top_k": 5}),  # a block has more than its four candidates
    ],
)
def test_what_the_candidates_do_not_reach_is_not_decided(
    device: Device, logits: Array, settings: dict[str, Any]
) -> None:
    """Fails if the device draws from its list of candidates although tokens outside of the list may be drawn too."""
    with drawing(device, logits) as player:
        assert draw(player, Sampler(SamplingOptions(**settings, seed=4)))[0, 0, 2:].tolist() == [0, 1]


@pytest.mark.parametrize("first", [16, 25_000])
def test_likely_tokens_that_are_adjacent_are_decided(device: Device, first: int) -> None:
    """Fails if the device cannot decide among likely tokens with consecutive ids, such as digits or single letters."""
    logits = np.float32(np.random.default_rng(9).standard_normal(50257))
    logits[first : first + 36] = np.arange(36) + 20
    with drawing(device, logits) as player:
        texels = draw(player, Sampler(SamplingOptions(top_k=40, top_p=0.999999, seed=4)))[0]
    assert texels[0, 2:].tolist() == [0, 0]
    assert texels[1:9, 0].tolist() == [*range(first + 35, first + 27, -1)]


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_nucleus_of_few_among_many_tokens_is_decided(device: Device, top_p: float, temperature: float) -> None:
    """Fails if the search for the end of the nucleus stops at a wrong edge, so that the host has to sample."""
    logits = np.float32(4 * np.random.default_rng(7).standard_normal(50257))
    sampler = Sampler(SamplingOptions(temperature=temperature, top_p=top_p, seed=2))
    p = sampler.probabilities(logits)
    with drawing(device, logits) as player:
        texels = draw(player, sampler)[0]
    assert texels[0, 2:].tolist() == [0, 0] and (p > 0).sum() > 1
    assert texels[-1, 1] == pytest.approx(np.exp((logits[p > 0] - texels[-1, 2]) / temperature).sum(), rel=1e-5)


def test_a_row_that_is_not_finite_is_told(device: Device) -> None:
    for value in (np.nan, np.inf, -np.inf):
        logits = np.ones(70)
        logits[61] = value
        with drawing(device, logits) as player:
            assert draw(player, Sampler(SamplingOptions(seed=1, top_p=0.5)))[0, 0, 2] == 1


@pytest.mark.parametrize("temperature", [1e-29, 1e-20, 1e-4])
def test_the_smallest_temperatures_leave_the_best(device: Device, temperature: float) -> None:
    with drawing(device, np.array([-9, 7, 6.5, 30, -4, 29.9]), rows=50) as player:
        for settings in ({}, {"top_k": 2}, {"top_p": 0.99}):
            assert (
                draw(player, Sampler(SamplingOptions(temperature=temperature, seed=2, **settings)))[:, 0, 0] == 3
            ).all()
