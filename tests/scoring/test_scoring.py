"""Tests baselines, metrics, copies and toy tasks against their definitions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glgpt.scoring import ngrams
from glgpt.scoring.ngrams import baselines
from glgpt.scoring.predictions import Predictions, chance, figures, predict_logits, targets_of
from glgpt.scoring.samples import MIN_COPY_CHARACTERS, copies
from glgpt.scoring.task import answers, is_task, questions

SMALL = st.text("ab ", max_size=60)


def witten_bell(train: list[int], vocab: int, context: tuple[int, ...]) -> np.ndarray:
    """Returns the probability of each token after `context`, from the definition of Witten-Bell smoothing."""
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for size in range(len(context) + 1):
        for i in range(size, len(train)):
            counts[tuple(train[i - size : i])][train[i]] += 1
    p = np.array([(counts[()][w] + 1) / (len(train) + vocab) for w in range(vocab)])
    for size in range(1, len(context) + 1):
        found = counts[context[-size:]]
        if found:
            total = sum(found.values()) + len(found)
            p = np.array([(found[w] + len(found) * p[w]) / total for w in range(vocab)])
    return p


@pytest.mark.parametrize("block", [1 << 22, 7, 1])
def test_baselines_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(ngrams, "BLOCK", block)
    random = np.random.default_rng(2)
    train, ids = (random.integers(0, 6, size).astype(np.uint16) for size in (90, 30))
    found = baselines(train, 7, ids, np.arange(1, 30))
    for size, name in enumerate(("unigram", "bigram", "trigram")):
        for i, target in enumerate(range(1, 30)):
            context = tuple(int(x) for x in ids[max(0, target - size) : target])
            p = witten_bell(train.tolist(), 7, context)
            assert p.sum() == pytest.approx(1)
            assert found[name].nats[i] == pytest.approx(-math.log(p[ids[target]]), rel=1e-12)
            assert found[name].confidence[i] == pytest.approx(p.max(), rel=1e-12)
            assert found[name].ranks[i] == (p > p[ids[target]]).sum() + (p[: ids[target]] == p[ids[target]]).sum()


def test_figures_of_a_perfect_and_a_blind_predictor() -> None:
    logits = np.full((8, 5), -50.0, np.float32)
    logits[np.arange(8), np.arange(8) % 5] = 0
    sure = Predictions.empty(8)
    predict_logits(logits, np.arange(8) % 5, sure, slice(0, 8))
    good = figures("model", sure, 4)
    assert (good.top_1, good.top_5, good.calibration_error) == pytest.approx((1, 1, 0))
    assert good.perplexity == pytest.approx(1) and good.bins == ((1.0, 1.0, 8),)
    wrong = Predictions.empty(8)
    predict_logits(logits, np.arange(1, 9) % 5, wrong, slice(0, 8))
    bad = figures("model", wrong, 4)
    assert (bad.top_1, bad.calibration_error) == pytest.approx((0, 1))
    assert bad.nats_per_token == pytest.approx(50) and bad.bits_per_byte == pytest.approx(100 / math.log(2))
    blind = chance(256, 10, 10)
    assert (blind.bits_per_byte, blind.perplexity) == pytest.approx((8, 256))


def test_targets_follow_their_windows() -> None:
    assert targets_of([0, 6], 3).tolist() == [1, 2, 3, 7, 8, 9]


@settings(max_examples=200, deadline=None)
@given(SMALL, SMALL)
def test_copies_are_those_that_a_search_finds(sample: str, text: str) -> None:
    found = copies(sample, [text])
    runs = [sample[i:j] for i in range(len(sample)) for j in range(i + 1, len(sample) + 1)]
    assert found.longest_copy == max((len(run) for run in runs if run in text), default=0)
    long = [run for run in runs if len(run) == MIN_COPY_CHARACTERS]
    shares = [sample[i : i + MIN_COPY_CHARACTERS] in text for i in range(len(sample) - MIN_COPY_CHARACTERS + 1)]
    assert found.copied_runs == (sum(shares) / len(long) if long else None)
    known, words = set(text.split()), sample.split()
    assert found.known_words == (sum(w in known for w in words) / len(words) if words else None)


def test_copies_run_across_pieces_of_the_text() -> None:
    sample = "the quality of mercy is not strained"
    assert copies(sample, ["so the quality of", " mercy is not strained, he says"]).longest_copy == len(sample)


def test_a_line_is_right_only_where_all_of_its_answer_is() -> None:
    text = "1+2=3\n40+2=42\n5+5=10\n"
    assert is_task(text) and not is_task("A play.\n") and not is_task("a=b=c\n") and not is_task("")
    tokens = [c.encode() for c in text]
    hits = np.ones(len(tokens) - 1, bool)
    hits[text.index("0+2") - 1] = False  # in a question, which does not count
    hits[text.index("2\n5") - 1] = False  # the last digit of 42
    found = answers([(tokens, hits)], set())
    assert found is not None and (found.lines, found.exact_match) == (3, pytest.approx(2 / 3))
    assert found.by_position == pytest.approx((1, 2 / 3, 1))
    assert answers([(tokens, hits)], questions(["40+2=42\n1+2=3"])).lines == 1  # type: ignore[union-attr]
    hits[text.index("\n5") - 1] = False  # the end of the line belongs to the answer
    assert answers([(tokens[14:], hits[14:])], set()).lines == 1  # type: ignore[union-attr]


def test_an_answer_cut_off_by_the_window_does_not_count() -> None:
    tokens = [c.encode() for c in "1+2=3\n40+2=42"]
    found = answers([(tokens, np.ones(len(tokens) - 1, bool))] * 2, set())
    assert found is not None and found.lines == 1  # the second window begins within a line
