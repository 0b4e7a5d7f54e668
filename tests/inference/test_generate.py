"""Tests streaming: stop texts, characters that span tokens, seeds, a full context."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glgpt.checkpoint.finding import embedded_weights
from glgpt.errors import GlgptError
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.generation import Generation, GenerationStats, StopText, TokenStream
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.text.tokenizer import Tokenizer, load_tokenizer

PROMPT = "ROMEO:\nIs it"
GREEDY = (  # the text that transformers generates after PROMPT
    " not so, and I'll be soon,\nAnd I will not be soon, and I'll be soon,\nAnd I will not be soon, I will not be so."
    "\n\nROMEO:\nI will not be gone.\n\nROMEO:\nI will not"
)


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    """Yields the embedded model, after it has created the GL objects that it creates on first use."""
    with LanguageModel.from_pretrained() as model:
        for entry in model.player.program.entries:
            model.player.prepare(entry)
        model.logits([199] * 12)
        yield model


@given(st.lists(st.text("abc", max_size=4), max_size=8), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_a_stop_text_cuts_before_its_first_appearance_however_the_text_is_split(
    pieces: list[str], stops: list[str]
) -> None:
    filter_ = StopText(stops)
    shown = "".join(filter_.push(piece) for piece in pieces) + filter_.flush()
    whole = "".join(pieces)
    assert shown == whole[: min((whole.find(stop) for stop in stops if stop in whole), default=len(whole))]
    assert filter_.found == any(stop in whole for stop in stops)


def test_text_that_cannot_begin_a_stop_text_is_shown_at_once() -> None:
    filter_ = StopText("the end")
    assert [filter_.push(piece) for piece in ("to the", " moon", " th", "e end")] == ["to ", "the moon", " ", ""]


@pytest.mark.parametrize("stop", [None, ""])
def test_without_a_stop_text_all_is_shown(stop: str | None) -> None:
    assert StopText(stop).push("anything") == "anything"


def written(ids: list[int], tokenizer: Tokenizer | None) -> Generation:
    """Returns a generation whose tokens are `ids`."""
    return Generation(TokenStream(iter(ids), GenerationStats()), tokenizer, SamplingOptions(seed=0))


def test_a_character_that_spans_tokens_appears_whole() -> None:
    tokenizer = load_tokenizer(embedded_weights(), 1024)
    assert tokenizer
    ids = tokenizer.encode("日é!")
    assert len(ids) == 6
    pieces = list(written(ids, tokenizer))
    assert [piece for piece in pieces if piece] == ["日", "é", "!"]
    assert written(ids[:2], tokenizer).read() == "\ufffd"


def test_text_is_streamed_in_whole_characters(model: LanguageModel) -> None:
    """Fails if each id is decoded separately, which breaks characters that span tokens."""
    assert model.tokenizer
    ids = model.tokenizer.encode("naïve café")
    assert "\ufffd" in "".join(model.tokenizer.decode([i]) for i in ids)
    assert written(ids, model.tokenizer).read() == "naïve café"
    stream = model.generate("To be", 12, seed=1)
    pieces = list(stream)
    ids = list(tokens := model.generate_ids("To be", 12, seed=1))
    assert "".join(pieces) == stream.text == model.tokenizer.decode(ids)
    assert stream.ids == ids and stream.stats.decode_tokens == tokens.stats.decode_tokens == 11
    assert stream.read() == stream.text and list(stream) == []


def test_two_stop_texts_both_stop(model: LanguageModel) -> None:
    for stops in (["I'll be", "not so,"], ["not so,", "never"], "not so,"):
        run = model.generate(PROMPT, 64, temperature=0, stop=stops)
        assert run.read() == " " and run.stats.stopped == "text"
    with pytest.raises(GlgptError, match="stop is"):
        model.generate(PROMPT, stop=[1])  # type: ignore[list-item]


def test_without_a_tokenizer_ids_are_the_text() -> None:
    assert written([5, 17], None).read() == " 5 17"


def test_greedy_text_is_that_of_transformers_and_stops_within_a_token(model: LanguageModel) -> None:
    assert model.tokenizer
    ids = model.tokenizer.encode(PROMPT)
    run = model.generate(ids, 64, temperature=0)
    assert "".join(run).startswith(GREEDY)
    assert run.figures()["stopped"] == "tokens"
    run = model.generate(ids, 64, temperature=0, stop="ROMEO:\nI wi")
    assert "".join(run) == GREEDY.partition("ROMEO:\nI wi")[0]
    assert run.figures()["stopped"] == "text"
    assert len(run.ids) < 64


def test_a_seed_repeats_its_text_and_a_drawn_seed_is_told(model: LanguageModel) -> None:

    def text(seed: int | None) -> tuple[str, int]:
        run = model.generate([199], 12, seed=seed, temperature=1.0)
        return run.read(), run.seed

    assert text(1) == text(1)
    assert text(1) != text(2)
    drawn, seed = text(None)
    assert text(seed)[0] == drawn
    assert text(None)[1] != seed


SETTINGS = ({"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.6}, {"top_k": 9, "top_p": 0.7}, {"top_k": 900})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_token_is_drawn_from_the_logits_behind_the_text(settings: dict[str, Any], model: LanguageModel) -> None:
    """Fails if a token that the device draws ahead is wrong, or is used although the host must draw it (top-k 900)."""
    ids, sampler = [199] * 5, Sampler(SamplingOptions(**{"temperature": 1.0} | settings, seed=8))
    drawn = list(model.generate_ids(ids, 7, seed=8, **settings))
    rows = model.logits([*ids, *drawn])[len(ids) - 1 : -1]
    for step, (token, row) in enumerate(zip(drawn, rows, strict=True)):
        assert sampler.probabilities(row)[token] > 0
        if settings == {"top_k": 900}:
            assert token == sampler.choose(row, step)
    first, other = (model.generate_ids(ids, 4, seed=s, **settings) for s in (8, 9))
    pairs = list(zip(first, other, strict=True))
    assert [a for a, _ in pairs] == drawn[:4] != [b for _, b in pairs]


def test_interleaved_generations_keep_their_own_figures(model: LanguageModel) -> None:
    first, second = model.generate([199] * 5, 3, seed=1), model.generate([199] * 9, 2, seed=1)
    a, b = iter(first), iter(second)
    next(a)
    next(b)
    list(a)
    list(b)
    third = model.generate([199] * 7, 0, seed=1)
    assert first.figures()["prefill_tokens"] == 5 and second.figures()["prefill_tokens"] == 9
    assert third.figures()["prefill_s"] == 0
    assert "".join(third) == "" and third.figures()["prefill_tokens"] == 7


def test_a_greedy_generation_that_is_left_leaves_nothing_to_the_next(model: LanguageModel) -> None:
    """Fails if the token computed ahead for an abandoned generation reaches the next generation or its caches."""
    wanted = {n: list(model.generate_ids([199] * n, 4, temperature=0)) for n in (5, 9)}
    left, other = model.generate_ids([199] * 5, 4, temperature=0), model.generate_ids([199] * 9, 4, temperature=0)
    got = {5: [next(left)], 9: [next(other)]}
    got[5] += left
    list(model.generate_ids([199] * 3, 2, seed=1))
    got[9] += other
    assert got == wanted


def test_two_greedy_tokens_take_as_long_as_they_take(model: LanguageModel) -> None:
    """Fails if the time of a token computed ahead is missing, so that the speed is far too high."""

    def speed(tokens: int, **sampling: Any) -> float:
        generation = model.generate([199] * 5, tokens, seed=1, **sampling)
        list(generation)
        assert generation.figures()["decode_tokens"] == tokens - 1
        return float(generation.figures()["decode_tokens_per_s"])

    for tokens in (2, 3):
        tries = ((speed(9), speed(tokens, temperature=0)) for _ in range(5))  # other processes may slow down some
        assert any(quick < 5 * slow for slow, quick in tries)


def test_an_interrupt_while_a_token_is_copied_costs_that_generation_alone(
    monkeypatch: pytest.MonkeyPatch, model: LanguageModel
) -> None:
    """Fails if the interrupt loses a buffer that later generations need."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    wanted, token = list(model.generate_ids([199] * 5, 3, temperature=0)), model.player.textures["token"]
    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            broken = SimpleNamespace(read_into=interrupt, write=token.write)
            patch.setitem(model.player.textures, "token", broken)
            list(model.generate_ids([199] * 5, 3, temperature=0))
    assert list(model.generate_ids([199] * 5, 3, temperature=0)) == wanted


def test_a_text_longer_than_the_context_goes_on_and_says_so(model: LanguageModel) -> None:
    run = model.generate([199] * 250, 20, seed=1)
    list(run)
    figures = run.figures()
    assert (figures["stopped"], figures["slides"], len(run.ids)) == ("tokens", 1, 20)
    assert figures["prefill_tokens"] == 250 + 129
    assert figures["decode_tokens"] == len(run.ids) - 2
    assert figures["prefill_tokens_per_s"] > 0 < figures["decode_tokens_per_s"]


@pytest.mark.parametrize("ids", [[], [1024], [-1], [0] * 257])
def test_ids_that_cannot_be_run_are_refused_before_any_text(ids: list[int], model: LanguageModel) -> None:
    with pytest.raises(GlgptError):
        model.generate(ids, 1)


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), (">&-", 0), ("2>&-", 0)])
def test_closed_streams_are_no_traceback(closed: str, code: int) -> None:
    text = "-" if code else "To"
    line = shlex.join([sys.executable, "-m", "glgpt", "generate", text, "--tokens", "1", "--seed", "1"])
    found = subprocess.run(["sh", "-c", f"{line} {closed}"], capture_output=True, text=True, check=False)
    assert found.returncode == code
    assert "Traceback" not in found.stderr
    if code:
        assert found.stderr.startswith("glgpt: error: stdin is closed") and found.stderr.count("\n") == 1
    if closed == "2>&-":
        assert "prefill" not in found.stdout
