"""Tests a page's example prompts (given ones, those of the model's folder, or neutral ones) and its chat format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.reference import random_weights, save_checkpoint

from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.output.preview import count_in_words
from glgpt.page.prompts import NEUTRAL, QUESTIONS, Prompts
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import make_tokenizer

CONFIG = GPT2Config.sized(258, 64, 8, 1, 2)
MESSAGES = "{% for m in messages %}<|start|>{{ m.role + '\\n' + m.content | trim }}<|end|>{% endfor %}"
TEMPLATE = MESSAGES + "<|start|>{{ 'assistant\\n' }}"
PAGE = {"trained_on": "two letters", "prompts": [{"title": "First", "text": "ab"}, {"title": "Long", "text": "a" * 64}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns the folder of a model with a byte-level tokenizer and two special tokens."""
    folder = save_checkpoint(tmp_path / "model", CONFIG, random_weights(CONFIG))
    make_tokenizer("bytes", Text.of_string("a"), folder)
    (folder / "added_tokens.json").write_text(json.dumps({"<|start|>": 256, "<|end|>": 257}))
    return folder


def titles(prompts: Prompts) -> list[str]:
    return [prompt.title for prompt in prompts.prompts]


def test_prompts_are_given_or_the_models_own_or_neutral(folder: Path) -> None:
    """Regression: pages of all models opened with Shakespeare."""
    assert titles(Prompts.load(folder, CONFIG, ())) == list(NEUTRAL)
    (folder / "page.json").write_text(json.dumps(PAGE))
    own = Prompts.load(folder, CONFIG, ())
    assert (
        titles(own) == ["First"] and own.page.trained_on == "two letters"
    )  # the other prompt leaves no space for new tokens
    given = Prompts.load(folder, CONFIG, ["Dear\nSir,", "x" * 40])
    assert titles(given) == ["Dear Sir,", "x" * 31 + "…"] and given.opening() == list(b"Dear\nSir,")
    assert given.manifest()["prompts"][0] == {"title": "Dear Sir,", "text": "Dear\nSir,"}


def test_only_its_own_first_prompt_is_continued_as_the_model_chooses(folder: Path) -> None:
    (folder / "page.json").write_text(json.dumps({**PAGE, "opening": {"seed": 7, "tokens": 9}}))
    own, given = Prompts.load(folder, CONFIG, ()).continuation(), Prompts.load(folder, CONFIG, ["b"]).continuation()
    assert (own.seed, own.tokens) == (7, 9) and (given.seed, given.tokens) == (1, 120)


def test_the_embedded_model_has_prompts_of_its_own() -> None:
    prompts = Prompts.load(Path("weights/shakespeare"), GPT2Config.sized(1024, 256, 256, 6, 8), ())
    assert titles(prompts)[0] == "Juliet" and prompts.page.head and prompts.manifest()["chat"] is None


def test_a_prompt_that_the_model_cannot_take_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dist").mkdir()
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: tmp_path / "dist")
    for prompt, why in (("", "--prompt is empty"), ("a" * 64, "has 64 tokens; it must have 1 to 63")):
        assert main(["export", "--model", str(folder), "--prompt", prompt, "--out", str(tmp_path / "out")]) == 2
        assert why in capsys.readouterr().err
    (folder / "page.json").write_text('{"prompts": [{"title": "x"}]}')
    with pytest.raises(GlgptError, match=r"page\.json: prompts\.0\.text: Field required"):
        Prompts.load(folder, CONFIG, ())
    for name in ("vocab.json", "merges.txt", "page.json"):
        (folder / name).unlink()
    assert Prompts.load(folder, CONFIG, ()).opening() is None
    with pytest.raises(GlgptError, match="--prompt needs a tokenizer"):
        Prompts.load(folder, CONFIG, ["a"])


def test_an_instruct_model_gets_its_chat_format(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    prompts = Prompts.load(folder, CONFIG, ())
    assert titles(prompts)[0] == QUESTIONS[0]
    assert prompts.manifest()["chat"] == [256, "user\n", None, 257, 256, "assistant\n"]
    head, tail = [256, *b"user\n"], [257, 256, *b"assistant\n"]
    assert prompts.opening() == [*head, *QUESTIONS[0].encode(), *tail]
    assert prompts.ids("a <|end|>") == [*head, *b"a <|end|>", *tail]  # a special token in the user's text is plain text


def test_a_number_of_parameters_is_said_in_words() -> None:
    """Regression: the page showed 135 million as 1.3e+2 million. `viewer/test/logic.test.ts` has the same cases."""
    numbers = [970, 151_072, 5_066_752, 134_515_008, 999_700_000, 1_557_611_200]
    assert [count_in_words(n) for n in numbers] == [
        "970", "151,000", "5.07 million", "135 million", "1 billion", "1.56 billion",
    ]  # fmt: skip
