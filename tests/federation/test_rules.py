"""Tests which windows of the text clients draw, limits of their claims, clipping, trimming and the outer optimizer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glgpt.errors import GlgptError
from glgpt.federation import protocol, rules
from glgpt.text.dataset import starts


def drawn(client, number, shards=8, count=1000, steps=25, rows=12):
    shard = rules.shard_of(client, number, shards), shards
    seed = rules.client_seed(5, client)
    return {int(at) for step in range(steps) for at in rules.shard_starts(seed, step, rows, count, shard)}


def test_no_two_clients_of_a_round_share_a_window():
    for number in (1, 2, 9):
        all_drawn = [drawn(client, number) for client in range(8)]
        assert sum(map(len, all_drawn)) == len(set().union(*all_drawn))
        assert max(set().union(*all_drawn)) < 1000


def test_a_client_sees_more_than_one_shard():
    assert {at % 8 for number in range(1, 9) for at in drawn(3, number)} == set(range(8))


def test_windows_follow_from_session_client_and_round():
    assert drawn(3, 4) == drawn(3, 4)
    assert drawn(3, 4) != drawn(3, 5)
    assert rules.client_seed(5, 3) != rules.client_seed(6, 3)


def test_the_first_client_alone_draws_as_glgpt_train_does():
    seed = rules.client_seed(77, 0)
    for step in range(1, 5):
        assert np.array_equal(rules.shard_starts(seed, step, 12, 999, (0, 1)), starts(77, step, 12, 999))


def update(**changed):
    fields = {"round": 1, "attempt": "a", "tokens": 100, "steps": 4, "loss": 2.0, "dtype": "f32", "bytes": 4}
    return protocol.Update(**(fields | changed))


@pytest.mark.parametrize(
    "claim",
    [
        {"tokens": 10**9},
        {"tokens": 0},
        {"tokens": 129},
        {"steps": 5},
        {"steps": 0},
        {"loss": -1.0},
        {"loss": 22.1},
        {"loss": 1e308},
    ],
)
def test_a_claim_beyond_the_round_is_refused(claim):
    rules.check_claims(update(), rules.Bounds(4, 32, 22.0))
    with pytest.raises(GlgptError):
        rules.check_claims(update(**claim), rules.Bounds(4, 32, 22.0))


def test_norms_are_clipped_to_one_and_a_half_medians():
    assert rules.clip_factors([1, 1, 1, 10]) == [1, 1, 1, 0.15]
    assert rules.clip_factors([0, 0]) == [1, 1]
    assert rules.clip_factors([]) == []
    assert rules.norm(np.float32([3, 4])) == 5


def test_a_weighted_mean_counts_by_tokens():
    rows = np.float32([[0, 2], [4, 6]])
    assert rules.weighted_mean(rows, [1, 3]).tolist() == [3, 5]
    one = np.float32([[1e-7, 1 / 3]])
    assert rules.weighted_mean(one, [17]).tobytes() == one[0].tobytes()


def test_a_trimmed_mean_leaves_out_a_fifth_at_either_end():
    rows = np.float32([[1], [2], [3], [4], [1000]])
    assert rules.trimmed_mean(rows).tolist() == [3]
    assert rules.trimmed_mean(rows[:2]).tolist() == [1.5]
    ten = np.arange(10, dtype=np.float32)[:, None]
    ten[9] = 1e6
    assert rules.trimmed_mean(ten).tolist() == [np.arange(2, 8).mean()]


def test_one_of_seven_does_little_harm():
    rng = np.random.default_rng(0)
    before = rng.normal(size=400)
    towards = rng.normal(size=400)
    rows = np.float32([before + towards + 0.1 * rng.normal(size=400) for _ in range(7)])
    clean = rows.mean(axis=0)
    rows[3] = before - 10 * (rows[3] - before)
    norms = [rules.norm(np.float32(row - before)) for row in rows]
    factors = rules.clip_factors(norms)
    clipped = np.float32([before + f * (row - before) for f, row in zip(factors, rows, strict=True)])

    def off(mean):
        return np.linalg.norm(mean - clean) / np.linalg.norm(towards)

    assert off(rows.mean(axis=0)) > 1.4  # the plain mean would reverse the step
    assert off(clipped.mean(axis=0)) < 0.4
    assert off(rules.trimmed_mean(clipped)) < 0.05


def test_noise_spends_epsilon_as_bun_and_steinke_say():
    assert rules.epsilon(1.0, 1) == pytest.approx(0.5 + 2 * math.sqrt(0.5 * math.log(1e5)))
    assert rules.epsilon(2.0, 4) == pytest.approx(rules.epsilon(1.0, 1))  # only rounds / noise**2 counts
    assert rules.epsilon(1.0, 20) > rules.epsilon(1.0, 10) > rules.epsilon(2.0, 10)
    assert rules.epsilon(1.0, 1, delta=1e-6) > rules.epsilon(1.0, 1)


def test_the_outer_step_is_nesterovs():
    before, mean = np.float32([1.0, 2.0]), np.float32([0.5, 3.0])
    outer = rules.Outer(0.7, 0.9)
    first = outer.step(before, mean)
    gradient = before - mean
    assert np.allclose(first, before - 0.7 * (gradient + 0.9 * gradient))
    second = outer.step(first, mean)
    velocity = 0.9 * gradient + (first - mean)
    assert np.allclose(second, first - 0.7 * ((first - mean) + 0.9 * velocity))


def test_an_outer_rate_of_one_takes_the_mean_bit_for_bit():
    mean = np.float32([1e-7, 1 / 3, -0.0])
    assert rules.Outer(1.0, 0.0).step(np.float32([0.02, -5, 1]), mean).tobytes() == mean.tobytes()
    assert math.isclose(rules.norm(np.float32([1e20])), 1e20, rel_tol=1e-6)
