"""Tests constrained text: which tokens are allowed, draws on the device, and generated schemas."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from helpers.chat_models import ENDLESS, chat_llama
from helpers.schemas import schemas
from llguidance import LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

import glgpt
from glgpt.errors import ArgumentError, GlgptError
from glgpt.gl.device import Device
from glgpt.gl.player import Player
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.batching.continuations import Continuations, Row
from glgpt.inference.constraints import grammar
from glgpt.inference.constraints.constraint import Constraint, ConstraintError
from glgpt.inference.constraints.grammar import check_grammar, compile_grammar
from glgpt.inference.constraints.masking import ALLOWED, masked_program
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.program.layout import fold
from glgpt.program.spec import Limits
from glgpt.system.limited_process import LimitedProcess

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.5, "seed": 5},
    {"top_p": 0.9, "seed": 6},
    {"top_k": 400, "top_p": 0.8, "seed": 7},
    {"min_p": 0.3, "repetition_penalty": 1.2, "seed": 8},
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[LanguageModel]:
    """Yields a Llama with random weights."""
    path = chat_llama(tmp_path / "model.gguf", context=512)
    with LanguageModel.from_pretrained(path, device="software") as model:
        yield model


class Fixed:
    """A matcher that always allows the same tokens."""

    def __init__(self, allowed: Any) -> None:
        self.allowed = np.asarray(allowed, np.bool_)


class TestDraws:
    """Compares the device's draws among allowed tokens with their probabilities in float64."""

    @pytest.mark.slow
    @pytest.mark.parametrize("share", [0.02, 0.6])
    @pytest.mark.parametrize("settings", SETTINGS[1:4], ids=["all", "p", "k and p"])
    def test_tokens_come_as_often_as_they_should(self, device: Device, settings: dict[str, Any], share: float) -> None:
        """Fails if a forbidden token is drawn, or is counted in top-k, top-p or a probability."""
        rng, vocab, draws = np.random.default_rng(2), 1000, 600
        logits = (2 * rng.standard_normal(vocab)).astype(np.float32)
        allowed = rng.random(vocab) < share
        logits[~allowed] += 9  # the model prefers what is forbidden
        own = Fixed(allowed)
        sampler = Sampler(SamplingOptions(**settings), own)  # type: ignore[arg-type]
        p = sampler.probabilities(np.where(allowed, logits.astype(np.float64), -np.inf))
        layout = fold(1, vocab, 4096)
        with Player(device, masked_program(Limits(max_draw_buffers=4), layout)) as player:
            player.write_matrix("logits", layout, logits[None])
            bits = np.zeros(1024, np.bool_)
            bits[:vocab] = allowed
            numbers = np.packbits(bits, bitorder="little").view("<u2").astype(np.float32)
            player.write(ALLOWED, 0, numbers.reshape(1, -1, 4))
            texels = []
            for step in range(draws):
                player.play(f"masked_{sampler.entry}", **sampler.scalars(step, vocab))
                texels.append(player.read("token")[0, 0, 0])
            player.play("masked_best")
            assert player.read("token")[0, 0, 0, 0] == np.flatnonzero(allowed)[logits[allowed].argmax()]
        found = np.array(texels)
        decided = found[:, 3] == 0
        assert not found[:, 2].any() and (decided.all() or settings.get("top_k"))
        counts = np.bincount(found[decided, 0].astype(int), minlength=vocab)
        assert not counts[p == 0].any()
        if decided.all():
            often = p * draws >= 5
            seen = np.append(counts[often], counts[~often].sum())
            due = np.append(p[often], p[~often].sum()) * draws
            free = (due > 0).sum() - 1
            assert ((seen - due)[due > 0] ** 2 / due[due > 0]).sum() <= free + 4 * np.sqrt(2 * free) + 8


@pytest.mark.slow
def test_a_text_depends_neither_on_others_nor_on_interruptions(model: LanguageModel) -> None:
    """Fails if a token is drawn with the mask of another step, or a text depends on concurrent generations."""
    for sampling in SETTINGS:
        check_text(model, sampling)


def check_text(model: LanguageModel, sampling: dict[str, Any]) -> None:
    """Compares a constrained text with those of a batch, an interrupted run and, if greedy, the host's sampler."""
    constraint = Constraint.json_schema(PERSON)
    run = model.generate("hello", 80, constraint=constraint, **sampling)
    text = run.read()
    jsonschema.validate(json.loads(text), PERSON)
    assert run.stats.stopped == "eos"
    seeds = [sampling.get("seed", 0)] * 2
    own = {name: value for name, value in sampling.items() if name != "seed"}
    several = model.generate_batch(["hello", "well"], 80, seeds=seeds, constraint=constraint, **own)
    other = model.generate("hello", 80, constraint=constraint, **sampling)
    pieces = [next(other, "")]
    assert several[0].read() == text
    jsonschema.validate(json.loads(several[1].read()), PERSON)
    assert "".join([*pieces, *other]) == text  # interrupted by the batch
    if sampling.get("temperature") == 0:
        ids = model.encode("hello")
        sampler = model.sampler(SamplingOptions(temperature=0, constraint=constraint))
        for token in run.ids:
            assert sampler.matcher
            best = int(np.argmax(sampler.adjusted(model.logits(ids)[-1], ids)))
            assert best == token
            sampler.matcher.accept(token)
            ids.append(token)


@pytest.mark.slow
def test_choices_expressions_and_objects(model: LanguageModel) -> None:
    for seed in range(4):
        how: dict[str, Any] = {"temperature": 2.0, "seed": seed}
        choices = ["Paris", "Par", "Rome (Italy)"]
        assert model.generate("a", 40, constraint=Constraint.choice(choices), **how).read() in choices
        text = model.generate("a", 40, constraint=Constraint.regex(r"[a-c]{2,5}-\d{3}"), **how).read()
        assert re.fullmatch(r"[a-c]{2,5}-\d{3}", text)
        text = model.generate("a", 200, constraint=Constraint.json_object(), **how).read()
        assert text.startswith("{")
    answer = model.chat([{"role": "user", "content": "hello"}], 40, constraint=Constraint.choice(["yes"]))
    assert answer.read() == "yes"


def test_what_cannot_be_used_is_refused(model: LanguageModel) -> None:
    for wrong, said in {
        "[": "JSON schema is not JSON",
        "3": "must be an object",
        '{"type": "object", "properties": {"a": {"type": "nothing"}}}': "cannot be used",
    }.items():
        with pytest.raises(ArgumentError, match=said):
            model.generate("a", 3, constraint=Constraint.json_schema(wrong))
    with pytest.raises(ArgumentError, match="regular expression cannot be used"):
        model.generate("a", 3, constraint=Constraint.regex("(a"))
    for pattern, why in (("(?=a)b", "look-around"), (r"(a)\1", "backreferences"), ("(", "unclosed group")):
        for bad in (Constraint.regex(pattern), Constraint.json_schema({"type": "string", "pattern": pattern})):
            with pytest.raises(ArgumentError, match=re.escape(f"{pattern}: {why}")):
                model.generate("a", 3, constraint=bad)
    for wrong in ([], "text", [3], [""]):
        with pytest.raises(ArgumentError, match="list of non-empty strings"):
            Constraint.choice(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at most"):
        Constraint.regex("a" * (1 << 19))
    with pytest.raises(GlgptError, match="constraint is"):
        model.generate("a", 3, constraint="json")  # type: ignore[typeddict-item]


def test_what_takes_too_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a constraint compiles for minutes, or if the next constraint cannot be compiled after a timeout."""
    monkeypatch.setattr(LimitedProcess, "timeout_s", 2.0)
    with pytest.raises(ConstraintError, match=r"takes more than 10 s .*; simplify it"):
        check_grammar(Constraint.json_schema(ENDLESS))
    monkeypatch.undo()
    check_grammar(Constraint.regex("(.{1,64}b?){1,3}"))


def test_why_a_constraint_was_not_compiled_is_reported_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a failure of the compiling process is reported as a timeout, or makes later checks fail."""
    checks, constraint = grammar._Checks(), Constraint.regex("a{1,7}")
    for name, value, said in (
        ("sys.executable", "/nothing/python", "its process cannot start: .*/nothing/python"),
        ("glgpt.inference.constraints.grammar.__name__", "glgpt.absent", "No module named 'glgpt.absent'"),
    ):
        monkeypatch.setattr(name, value)
        with pytest.raises(ConstraintError, match=said):
            checks.check(constraint)
        monkeypatch.undo()
    checks.check(constraint)


def test_a_refused_constraint_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, refused = grammar._Checks(), Constraint.regex("(?=a)b")
    with pytest.raises(ConstraintError, match="look-around") as first:
        checks.check(refused)
    monkeypatch.setattr(LimitedProcess, "ask", None)
    with pytest.raises(ConstraintError, match="look-around") as second:
        checks.check(refused)
    assert str(first.value) == str(second.value)


class Words:
    """A tokenizer of bytes and words, with the interface that llguidance reads."""

    eos_token_id, bos_token_id, special_token_ids = 0, None, (0,)
    words = ("".join(letters) for n in range(2, 9) for letters in itertools.product("ab", repeat=n))
    tokens = (b"", *(bytes([i]) for i in range(256)), *(word.encode() * 9 for word in words))

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError
        return [1 + byte for byte in text.encode()]


def test_an_expression_that_is_too_complex_is_refused_before_the_text() -> None:
    engine = LLTokenizer(TokenizerWrapper(Words()), n_vocab=len(Words.tokens))
    with pytest.raises(ConstraintError, match="too complex; simplify it"):
        compile_grammar(Constraint.regex("(.{1,64}b?){1,128}"), engine)
    assert compile_grammar(Constraint.regex("(.{1,64}b?){1,3}"), engine)


def test_a_bias_may_forbid_what_the_constraint_allows_first(model: LanguageModel) -> None:
    ids = model.encode("Par")
    choice = Constraint.choice(["Paris", "Rome"])
    for token in ids[:1]:
        text = model.generate("a", 20, constraint=choice, temperature=0, logit_bias={token: -np.inf}).read()
        assert text == "Rome"


def test_a_text_without_a_possible_token_ends_alone(model: LanguageModel) -> None:
    """Fails if a forbidden token is drawn, or if an error at the first token of a text ends the other texts."""
    never: dict[str, Any] = {"constraint": Constraint.choice(["yes"]), "logit_bias": {model.encode("y")[0]: -np.inf}}
    options = [{"seed": 1}, *({"temperature": t, "seed": 1, **never} for t in (0, 1))]
    rows = [Row(model.encode("a"), model.sampler(SamplingOptions(**own)), 4) for own in options]
    assert model._batch
    batch = Continuations(model._batch, rows, model.context, ())
    assert len(list(batch.stream(rows[0], lambda: None))) == 4
    for row in rows[1:]:
        with pytest.raises(ConstraintError, match="logit bias forbids all tokens that the constraint allows next"):
            list(batch.stream(row, lambda: None))


@pytest.mark.slow
def test_texts_of_generated_schemas_validate(model: LanguageModel) -> None:
    """Fails if a token is allowed that makes the JSON invalid, or a text ends before it is complete."""
    for seed, schema in enumerate(schemas(500)):
        run = model.generate("a", 480, constraint=Constraint.json_schema(schema), temperature=1.2, seed=seed)
        text = run.read()
        assert run.stats.stopped == "eos", (schema, text)
        jsonschema.validate(json.loads(text), schema)


def test_the_public_name(tmp_path: Path) -> None:
    assert glgpt.Constraint is Constraint
