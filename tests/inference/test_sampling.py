"""Tests the choice of a token: its distribution against the definition, seeds, and invalid settings."""

from __future__ import annotations

import math
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.sampling import Sampler

LOGITS = st.lists(st.integers(-400, 400).map(lambda n: n / 10), min_size=1, max_size=40)
TEMPERATURES = st.sampled_from([0.1, 0.7, 1.0, 3.0])


def expected(logits: list[float], temperature: float, top_k: int | None, top_p: float | None) -> NDArray[Any]:
    """Returns the distribution by definition: of the k best tokens, the fewest whose probabilities reach top_p."""
    values = np.array(logits) / temperature
    weights = np.exp(values - values.max())
    order = sorted(range(len(logits)), key=lambda i: (-values[i], i))[:top_k]
    total, held, kept = math.fsum(weights[order]), 0.0, []
    for i in order:
        if top_p is not None and kept and held / total >= top_p:
            break
        kept.append(i)
        held += weights[i]
    p = np.zeros(len(logits))
    p[kept] = weights[kept] / math.fsum(weights[kept])
    return p


@given(LOGITS, TEMPERATURES, st.none() | st.integers(1, 50), st.none() | st.sampled_from([0.01, 0.3, 0.77, 1.0]))
def test_the_distribution_is_that_of_the_definition(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Fails if temperature, top-k or top-p keeps other tokens, or gives them other probabilities."""
    sampler = Sampler(SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, seed=0))
    row = np.array(logits)
    p = sampler.probabilities(row)
    wanted = expected(logits, temperature, top_k, top_p)
    if top_p is None or not np.isclose(np.cumsum(np.sort(wanted)[::-1]), top_p, atol=1e-9).any():
        np.testing.assert_allclose(p, wanted, atol=1e-12)
    assert p[sampler.choose(row)] > 0


@given(LOGITS, st.integers(0, 2**32))
def test_a_token_beyond_top_k_is_never_chosen(logits: list[float], seed: int) -> None:
    """Fails if rounding of the cumulative probabilities makes the sampler choose an excluded token."""
    row = np.array(logits, np.float32)
    best = np.sort(row)[::-1][:2]
    sampler = Sampler(SamplingOptions(temperature=1.5, top_k=2, top_p=None, seed=seed))
    assert all(row[sampler.choose(row, step)] >= best[-1] for step in range(5))


def test_tokens_come_as_often_as_they_should() -> None:
    """Fails if the id of the drawn token is off by one, or the random numbers are not uniform."""
    p = np.array([0.5, 0.25, 0.125, 0.125])
    sampler = Sampler(SamplingOptions(seed=5))
    counts = np.bincount([sampler.choose(np.log(p), step) for step in range(8000)], minlength=4) / 8000
    np.testing.assert_allclose(counts, p, atol=4 * np.sqrt(0.25 / 8000))  # four standard deviations


def test_the_same_seed_makes_the_same_choices() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 30))
    first, second, third = ([Sampler(SamplingOptions(seed=s))] for s in (7, 7, 8))
    chosen = [[s.choose(row, i) for i, row in enumerate(rows)] for (s,) in (first, second, third)]
    assert chosen[0] == chosen[1] != chosen[2]
    unseeded = [
        [s.choose(row, i) for i, row in enumerate(rows)] for s in [Sampler(SamplingOptions()) for _ in range(2)]
    ]
    assert unseeded[0] != unseeded[1]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"temperature": 2.0, "top_k": 1}, {"temperature": 0.0, "top_k": 5, "top_p": 0.5}]
)
def test_greedy_takes_the_first_of_the_best(settings: dict[str, Any]) -> None:
    sampler = Sampler(SamplingOptions(**settings))
    assert sampler.greedy and sampler.choose(np.array([1.0, 3.0, 3.0])) == 1
    assert sampler.probabilities(np.array([1.0, 3.0, 3.0])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(GlgptError, match="not finite"):
            Sampler(SamplingOptions(temperature=temperature)).choose(np.array([0.0, value]))


@pytest.mark.parametrize("temperature", [1e-320, 1e-308, 5e-324])
def test_the_smallest_temperatures_leave_the_best(temperature: float) -> None:
    logits = np.float32([-9, 7, 6.5, 30, -4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampler(SamplingOptions(temperature=temperature, seed=1)).choose(logits) == 3
        assert Sampler(SamplingOptions(temperature=temperature)).probabilities(logits).tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 0}, "top-k is 0"),
        ({"top_p": -0.1}, "top-p is -0.1"),
        ({"top_p": 1.01}, "top-p is 1.01"),
        ({"min_p": 1.5}, "min-p is 1.5"),
        ({"min_p": -0.1}, "min-p is -0.1"),
        ({"top_p": math.nan}, "top-p is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"temperature": "a"}, "temperature is 'a'"),
        ({"top_k": 2.5}, "top-k is 2.5"),
        ({"top_p": "x"}, "top-p is 'x'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition penalty is 0.0"),
        ({"repetition_penalty": math.inf}, "repetition penalty is inf"),
        ({"logit_bias": {1: math.nan}}, "logit bias of 1 is nan"),
        ({"logit_bias": {1: math.inf}}, "logit bias of 1 is inf"),
        ({"logit_bias": {1: 1e300}}, r"logit bias of 1 is 1e\+300"),
        ({"logit_bias": {-1: 1.0}}, "an id of logit bias is -1"),
        ({"logit_bias": [(1, 2.0)]}, r"logit bias is \[\(1, 2.0\)\]; it must map ids"),
        ({"logit_bias": {1: "a"}}, "logit bias of 1 is 'a'"),
        ({"temperature": 1e38}, r"temperature is 1e\+38; it must be a number from 0 \(greedy\) to 1e\+30"),
        ({"temperature": 10**400}, "temperature is a number of about 400 digits"),
        ({"temperature": None}, "temperature is None"),
        ({"temperature": 1j}, "temperature is 1j"),
        ({"temperature": np.array([1.0, 2.0])}, "temperature is array"),
        ({"top_p": [0.5]}, r"top-p is \[0.5\]"),
        ({"min_p": "a"}, "min-p is 'a'"),
        ({"seed": 2**128}, "seed is 3402823669"),
        ({"repetition_penalty": 1e300}, r"repetition penalty is 1e\+300"),
        ({"repetition_penalty": 1e-300}, "repetition penalty is 1e-300"),
        ({"logit_bias": {"a": 1.0}}, "an id of logit bias is 'a'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GlgptError, match=message):
        SamplingOptions(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e30, "top_p": 0.999999999, "min_p": 5e-324},
        {"temperature": 1e-30, "top_p": 5e-324},
        {"temperature": np.float32(0.5), "top_k": 10**30, "seed": 2**128 - 1},
        {"temperature": True, "top_k": np.int64(3), "min_p": 1},
    ],
    ids=str,
)
def test_settings_at_the_ends_of_their_ranges_fit_the_device(settings: dict[str, Any]) -> None:
    """Fails if a scalar overflows its 32 bits when it is packed."""
    sampler = Sampler(SamplingOptions(**{"seed": 1} | settings))
    for name, value in sampler.scalars(2**31 - 1, 200_000).items():
        struct.pack("<i" if name in ("draw_seed", "draw_step", "top_k") else "<f", value)
    logits = np.float32([3.4e38, -3.4e38, 1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 0 <= sampler.choose(logits) < 4


def test_top_p_0_is_greedy() -> None:
    options = SamplingOptions(top_p=0, temperature=2.0)
    assert options == SamplingOptions(temperature=0.0) and Sampler(options).choose(np.float32([0, 0.1, 0])) == 1


def test_a_bias_of_minus_infinity_forbids_a_token() -> None:
    logits = np.float32([5, 9, 1, 1])
    for sampler in (
        Sampler(SamplingOptions(temperature=0.0, logit_bias={1: -np.inf})),
        Sampler(SamplingOptions(temperature=5.0, logit_bias={1: -math.inf, 2: 1.0})),
    ):
        found = sampler.adjusted(logits, [])
        assert 1 not in [sampler.choose(found, step) for step in range(50)]
        with pytest.raises(GlgptError, match="not finite"):  # here, -inf is a logit of the model
            sampler.adjusted(np.float32([5, -np.inf, 1, 1]), [])
    with pytest.raises(GlgptError, match="forbids all 2 tokens"):
        SamplingOptions(logit_bias={0: -math.inf, 1: -math.inf}).check_vocabulary(2)


def test_penalty_and_bias_change_the_logits_as_defined() -> None:
    """Fails if a token that occurs twice is penalized twice, or the bias is added before the penalty."""
    sampler = Sampler(SamplingOptions(repetition_penalty=2.0, logit_bias={1: -3.0, 3: 5.0}))
    found = sampler.adjusted(np.float32([4, 4, -4, -4, 1]), [0, 1, 1, 2])
    assert found.tolist() == [2, -1, -8, 1, 1]
    assert sampler.adjusts and not Sampler(SamplingOptions(repetition_penalty=1.0, logit_bias={})).adjusts
    with pytest.raises(GlgptError, match="names id 3, and the vocabulary has 3"):
        sampler.options.check_vocabulary(3)
    sampler.options.check_vocabulary(4)


def test_a_generation_with_a_penalty_is_that_of_its_logits() -> None:
    """Compares greedy and drawn tokens with the sampler's choices from the logits, up to a full context."""
    from glgpt.inference.model import LanguageModel

    with LanguageModel.from_pretrained() as model:
        text = model.encode("ROMEO:\nIs it")
        for given, how in (
            (text, {"temperature": 0, "repetition_penalty": 1.5}),
            (text, {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.3, "logit_bias": {199: -100.0, 7: 2.5}}),
            ((text * 60)[:250], {"temperature": 0, "repetition_penalty": 1.2}),
        ):
            found = list(model.generate_ids(given, 9, seed=3, **how))
            sampler, ids = Sampler(SamplingOptions(seed=3, **how)), list(given)
            short = model.config.n_positions - len(ids)  # after this many tokens, the context is full
            rows = model.logits([*ids, *found[:short]])[len(ids) - 1 :]
            for step, (token, row) in enumerate(zip(found, rows, strict=False)):
                assert token == sampler.choose(sampler.adjusted(row, ids), step), (step, how)
                ids.append(token)
            assert found != list(model.generate_ids(given, 9, seed=3, temperature=how["temperature"]))
            again, alone = model.generate_batch([given, text], 8, seeds=[3, 4], **how)
            assert ("".join(again), "".join(alone)) and again.ids == found[:8] and len(alone.ids) == 8
