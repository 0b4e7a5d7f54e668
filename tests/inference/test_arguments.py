"""Tests that the Python API refuses wrong arguments with an error of one line, after which the model still works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.interventions import Ablate, Attend, Patch, Scale, Steer
from glgpt.inference.model import LanguageModel

IDS = [3, 1, 4]
WRONG = (None, 5, 1.5, float("nan"), b"ab", "text", ["a"], [1.5], [None], {1: 2}, object(), np.zeros((2, 2)), [10**30])
READ: dict[str, Callable[[LanguageModel, Any], object]] = {
    "logits": lambda model, bad: model.logits(bad),
    "check_ids": lambda model, bad: model.check_ids(bad),
    "run_with_cache": lambda model, bad: model.run_with_cache(bad, ()),
    "raw": lambda model, bad: model.raw(bad, ()),
    "generate_ids": lambda model, bad: model.generate_ids(None if isinstance(bad, str) else bad),
    "logits_batch": lambda model, bad: model.logits_batch(bad),
    "losses": lambda model, bad: model.losses(bad),
}
OPTIONS = (
    "tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "eos",
)
ACCEPTED: dict[str, tuple[object, ...]] = {  # values of WRONG that an argument accepts
    "tokens": (5,),
    "temperature": (5, 1.5),
    "repetition_penalty": (5, 1.5),
    "logit_bias": ({1: 2},),
    "top_k": (5,),
    "seed": (5,),
    "stop": ("text", ["a"]),
}


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    with LanguageModel.from_pretrained(device="software") as model:
        before = list(model.generate_ids(IDS, 3, temperature=0))
        yield model
        assert list(model.generate_ids(IDS, 3, temperature=0)) == before


def refused(label: object, ask: Callable[[], object]) -> str:
    """Returns the message of the error that a call raises. Fails if it raises none or the message has two lines."""
    with pytest.raises(GlgptError) as raised:
        pytest.fail(f"{label} answered {ask()!r}")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_ids_of_another_type_are_refused(model: LanguageModel) -> None:
    for name, ask in READ.items():
        for bad in WRONG:
            refused((name, bad), lambda ask=ask, bad=bad: ask(model, bad))


def test_options_of_another_type_are_refused(model: LanguageModel) -> None:
    for option in OPTIONS:
        for bad in WRONG:
            if bad is None and option not in ("tokens", "temperature", "eos"):
                continue
            if repr(bad) in map(repr, ACCEPTED.get(option, ())):
                continue
            settings: dict[str, Any] = {option: bad}
            refused(settings, lambda settings=settings: model.generate(IDS, **{"tokens": 3} | settings))
            if option != "seed":
                refused(settings, lambda settings=settings: model.generate_batch([IDS], **{"tokens": 3} | settings))
    for bad in (5, "text", [1, 2], [None], ["a"]):
        refused(bad, lambda bad=bad: model.generate_batch([IDS], 3, seeds=bad))
    for bad in (None, 5, "text", {1: 2}):
        refused(bad, lambda bad=bad: model.generate_batch(bad, 3))


def test_an_unknown_option_is_named_with_the_closest_one(model: LanguageModel) -> None:
    asked: dict[str, Callable[[], object]] = {
        "'temprature' is not an option of generating text; did you mean temperature?": lambda: model.generate(
            IDS, temprature=1
        ),
        "'stopp' is not an option of generating text; did you mean stop?": lambda: model.generate(IDS, stopp="a"),
        "'intervention' is not an option of generating text; did you mean interventions?": lambda: model.generate_ids(
            IDS, intervention=()
        ),
        "'seed' is not an option of generating text; did you mean seeds?": lambda: model.generate_batch([IDS], seed=1),
        "'beams' is not an option of generating text; the options are temperature, top_k, top_p, min_p, "
        "repetition_penalty, logit_bias, constraint, seed, tokens, eos, interventions": lambda: model.generate_ids(
            IDS, beams=2
        ),
    }
    for said, ask in asked.items():
        assert refused(said, ask) == said


def test_a_generation_has_the_options_that_it_was_sampled_with(model: LanguageModel) -> None:
    """Fails if a drawn seed does not give the same text again, or a caller can change the options."""
    run = model.generate(IDS, 4, temperature=0.9, top_k=np.int64(40), logit_bias={199: -100})
    assert run.sampling == SamplingOptions(temperature=0.9, top_k=40, logit_bias={199: -100.0}, seed=run.seed)
    assert model.generate(IDS, 4, temperature=0.9, top_k=40, logit_bias={199: -100}, seed=run.seed).read() == run.read()
    with pytest.raises(FrozenInstanceError):
        run.sampling.temperature = 0.0  # type: ignore[misc]
    bias = {199: -100.0}
    options = SamplingOptions(logit_bias=bias)
    bias[199] = 100.0
    assert options.logit_bias == {199: -100.0}


@pytest.mark.slow
def test_hot_temperatures_leave_the_model_usable(model: LanguageModel) -> None:
    before = list(model.generate_ids(IDS, 4, seed=1, top_p=0.9))
    for temperature in (1e31, 1e38, 1e300):
        for how in ({}, {"top_p": 0.9}, {"min_p": 0.1}):
            assert "from 0 (greedy) to 1e+30" in refused(
                temperature, lambda t=temperature, how=how: list(model.generate_ids(IDS, 4, temperature=t, **how))
            )
    assert len(list(model.generate_ids(IDS, 4, temperature=1e30, top_p=0.9, seed=1))) == 4
    assert list(model.generate_ids(IDS, 4, seed=1, top_p=0.9)) == before


def test_ids_and_names_of_another_type_are_refused(model: LanguageModel) -> None:
    """Regression: ids and names of a wrong type raised a TypeError from inside glgpt."""
    with pytest.raises(ArgumentError, match=r"^'abc' is text where token ids are expected"):
        model.decode("abc")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^id None at position 1 is not an integer$"):
        model.decode([1, None])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"^5 is not the name of a parameter; give a str$"):
        model.parameter(5)  # type: ignore[arg-type]


def test_text_where_ids_are_wanted_is_named(model: LanguageModel) -> None:
    said = refused("logits", lambda: model.logits("To be"))  # type: ignore[arg-type]
    assert said == "'To be' is text where token ids are expected; use model.encode(text)"
    said = refused("prompts", lambda: model.generate_batch("To be"))
    assert said == "prompts is 'To be'; it must be a list of texts or of lists of token ids"


BAD = [None, 1.5, b"ab", ["a"], [[1, 2]], object(), np.zeros((2, 2))]


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD, ids=["none", "float", "bytes", "texts", "rows", "object", "array"])
def test_interventions_of_another_type_are_refused(model: LanguageModel, bad: Any) -> None:
    direction, values = np.zeros(256), np.zeros((1, 1024))
    made = [
        bad,
        [bad],
        Ablate(bad),
        Scale("h.1.mlp", bad),
        Steer("h.1.resid_post", bad),
        Steer("h.1.resid_post", direction, bad),
        Steer("h.1.resid_post", direction, first=bad),
        Patch("h.1.mlp.act", bad),
        Patch("h.1.mlp.act", values, bad),
        Attend("h.1.attn", bad),
    ]
    made += [] if bad is None else [Ablate("h.1.attn", bad)]
    for each in made:
        if repr(getattr(each, "factor", None)) == "1.5":
            continue
        refused(each, lambda each=each: model.run_with_cache(IDS, (), interventions=each))


def test_hooks_of_another_type_are_refused(model: LanguageModel) -> None:
    for bad in (5, "text", [1], object()):
        refused(bad, lambda bad=bad: model.run_with_hooks(IDS, bad))
        refused(bad, lambda bad=bad: model.run_with_hooks(IDS, {"h.1.mlp.act": bad}))
    for bad in (5, "text", np.zeros(3), [[1], [2, 3]]):
        refused(bad, lambda bad=bad: model.run_with_hooks(IDS, {"h.1.mlp.act": lambda value: bad}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": []}, r"dtype \[\] is not one of f32"),
        ({"max_texture_memory": "2GiB"}, "max_texture_memory is '2GiB'; it must be an integer"),
        ({"max_texture_memory": -1}, "max_texture_memory is -1"),
        ({"progress": 5}, "progress is 5; it must be a function"),
        ({"device": 1.5}, "device is 1.5"),
        ({"plan": 5}, "plan is 5; it must be text"),
        ({"rest": "ws://127.0.0.1:1", "blocks": 5}, "blocks is 5; it must be two integers"),
        ({"rest": "ws://127.0.0.1:1", "wire": "f64"}, "wire 'f64' is not one of f32, f16, int8"),
        ({"wire": "f16"}, "wire requires rest or plan"),
        ({"context": "8k"}, "context is '8k'; it must be an integer"),
        ({"contxt": 64}, "'contxt' is not an option of loading a model; did you mean context?"),
    ],
    ids=str,
)
def test_options_of_loading_are_checked_before_a_file_is_opened(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GlgptError, match=message):
        LanguageModel.from_pretrained("no such folder/anywhere", **options)
    with pytest.raises(GlgptError, match="5 is not a model"):
        LanguageModel.from_pretrained(5)  # type: ignore[arg-type]


def test_names_may_be_patterns_or_a_function(model: LanguageModel) -> None:
    patterns = [f"h.{layer}.attn.pattern" for layer in range(6)]
    for names in (
        "h.*.attn.pattern",
        ["h.*.attn.pattern"],
        ["h.[0-2].attn.pattern", "h.3.attn.pattern", "h.?.attn.pattern"],
        lambda name: name.endswith("attn.pattern"),
    ):
        assert list(model.run_with_cache(IDS, names)[1]) == patterns
    assert sorted(model.raw(IDS, "h.*.attn.pattern")) == patterns
    assert list(model.run_with_hooks(IDS, {}, "h.5.*_post")[1]) == ["h.5.resid_post"]
    assert model.run_with_cache(IDS, lambda name: False)[1] == {}
    said = refused("pattern", lambda: model.run_with_cache(IDS, ["h.*.attn.patern"]))
    assert (
        said.startswith("'h.*.attn.patern' is not an activation of shakespeare; activations include h.")
        and "patt" in said
    )
    refused("5", lambda: model.run_with_cache(IDS, [5]))  # type: ignore[list-item]


@pytest.mark.slow
def test_one_intervention_needs_no_list(model: LanguageModel) -> None:
    change = Ablate("h.3.attn", head=2)
    alone, listed = (model.run_with_cache(IDS, (), interventions=given)[0] for given in (change, [change]))
    assert np.array_equal(alone, listed) and not np.array_equal(alone, model.logits(IDS))
    texts = [model.generate(IDS, 4, temperature=0, interventions=given).read() for given in (change, (change,))]
    assert texts[0] == texts[1]


def test_a_hook_may_edit_in_place(model: LanguageModel) -> None:
    """Fails if the hook's return value, None, becomes the activation."""

    def halve(value: np.ndarray) -> None:
        value *= 0.5

    found = [model.run_with_hooks(IDS, {"h.2.mlp.act": hook})[0] for hook in (halve, lambda value: value * 0.5)]
    assert np.array_equal(*found) and not np.array_equal(found[0], model.logits(IDS))
