"""Tests conversations: what a turn computes, the bits of its logits, edits, and a full context."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.chat_models import CHATML, TEMPLATES, chat_llama, turns
from helpers.soak import mostly_soak
from hypothesis import given
from hypothesis import strategies as st

from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.chunks import SIZES, plan_segments
from glgpt.inference.conversation import Conversation
from glgpt.inference.model import LanguageModel
from glgpt.models import context
from glgpt.program.formats import Floats
from glgpt.text.untrusted.chat_template import ChatPrompt

GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., LanguageModel]]:
    """Yields a function that opens a model with a chat template."""
    models: list[LanguageModel] = []

    def opened(template: str = CHATML, context: int | None = None) -> LanguageModel:
        path = chat_llama(tmp_path / "model.gguf", template)
        models.append(LanguageModel.from_pretrained(path, device="software", context=context))
        return models[-1]

    yield opened
    for model in models:
        model.close()


def first_logits(conversation: Conversation) -> Floats:
    """Starts an answer and returns the logits of its first token."""
    decoder = conversation.model._decoder
    answer = conversation.model.answer(conversation.prompt(), 1, **GREEDY)
    answer.read()
    conversation.last = answer
    logits: Floats = decoder._logits.unpack(decoder.player.read(decoder._logits.texture))[0].copy()  # type: ignore[union-attr]
    return logits


def fresh_logits(conversation: Conversation) -> Floats:
    """Returns the logits of the next answer's first token, computed with empty caches."""
    conversation.model._decoder.forget()  # type: ignore[union-attr]
    return first_logits(Conversation(conversation.model, conversation.visible(), tools=conversation.tools))


@pytest.mark.slow
@pytest.mark.parametrize("template", mostly_soak(["chatml", "alternating", "headers", "words"], ("chatml", "words")))
@pytest.mark.parametrize("ahead", [False, True], ids=["at once", "read ahead"])
def test_a_turn_computes_what_is_new_and_has_the_bits_of_a_fresh_start(
    opened: Callable[..., LanguageModel], template: str, ahead: bool
) -> None:
    conversation = Conversation(opened(TEMPLATES[template]), system="You are brief.", tokens=20, **GREEDY)
    before = 0
    for turn in range(3):
        answer = conversation.send(f"Question {turn} about the moon, the sun and the stars?")
        text = "".join(answer)
        assert text == conversation.messages[-1]["content"] and conversation.last
        stats = conversation.last.stats
        assert stats.cached_tokens + stats.prefill_tokens == len(conversation.last_prompt.ids)
        if turn:
            assert stats.cached_tokens >= before  # all of the previous prompt except blanks at its end
        before = conversation.last_prompt.borders[-1]
        assert before >= len(conversation.last_prompt.ids) - 2
        if ahead:
            assert conversation.read_ahead() > 0
            assert conversation.read_ahead() == 0
    conversation.messages.append({"role": "user", "content": "And now?"})
    kept = first_logits(conversation)
    assert conversation.last.stats.cached_tokens >= before
    fresh = fresh_logits(conversation)
    assert kept.tobytes() == fresh.tobytes()


def test_regenerating_computes_only_the_last_chunk_again(opened: Callable[..., LanguageModel]) -> None:
    conversation = Conversation(opened(), system="You are brief. " * 12, tokens=12, **GREEDY)
    first = "".join(conversation.send("hello"))
    assert "".join(conversation.regenerate()) == first
    assert conversation.last and conversation.last.stats.cached_tokens > 128
    assert [m["role"] for m in conversation.messages] == ["system", "user", "assistant"]
    with pytest.raises(ArgumentError, match="no message to answer"):
        Conversation(opened(), system="hello").regenerate()


def test_regenerating_advances_the_seed(opened: Callable[..., LanguageModel]) -> None:
    """Fails if regenerating repeats an answer, or the same calls with the same seed give other answers."""
    model = opened()

    def answers() -> list[str]:
        conversation = Conversation(model, tokens=12, temperature=2.0, seed=5)
        found = ["".join(conversation.send("hello")), *("".join(conversation.regenerate()) for _ in range(2))]
        conversation.clear()
        return [*found, "".join(conversation.send("hello"))]

    first, second, third, fresh = found = answers()
    assert len({first, second, third}) == 3 and fresh == first
    assert answers() == found


def test_an_answer_is_sampled_as_the_model_recommends(opened: Callable[..., LanguageModel]) -> None:
    model = opened()
    question = [{"role": "user", "content": "hello"}]

    def answer(**sampling: Any) -> str:
        return model.chat(question, 8, seed=3, **sampling).read()

    assert answer() == answer(temperature=0.2, top_p=0.9) != answer(temperature=5.0, top_p=None)


def test_edits_roll_the_caches_back_to_what_is_the_same(opened: Callable[..., LanguageModel]) -> None:
    conversation = Conversation(opened(), turns(4, "You are brief."), tokens=4, **GREEDY)
    first_logits(conversation)
    conversation.edit(5, "Another question, which is new.")
    changed = first_logits(conversation)
    assert conversation.last and conversation.last.stats.cached_tokens > 0
    assert changed.tobytes() == fresh_logits(conversation).tobytes()
    conversation.remove(3, 5)
    removed = first_logits(conversation)
    assert removed.tobytes() == fresh_logits(conversation).tobytes()
    conversation.set_system(None)
    assert conversation.system is None and first_logits(conversation).tobytes() == fresh_logits(conversation).tobytes()
    with pytest.raises(ArgumentError, match="no message 99; the conversation has 5"):
        conversation.edit(99, "x")
    with pytest.raises(ArgumentError, match="end is 1; it must be an integer, 3 or more"):
        conversation.remove(3, 1)
    conversation.set_system("Brief.")
    conversation.clear()
    assert conversation.messages == [{"role": "system", "content": "Brief."}]


def test_other_generations_do_not_change_a_conversation(opened: Callable[..., LanguageModel]) -> None:
    model = opened()
    conversation = Conversation(model, tokens=16, **GREEDY)
    first = "".join(conversation.send("hello there"))
    model.generate("hello " * 30, 3, temperature=0).read()
    model.generate_batch(["a b c", "d"], 3, temperature=0)[0].read()
    other = Conversation(model, tokens=3, **GREEDY)
    "".join(other.send("something else"))
    kept = first_logits(conversation)
    assert kept.tobytes() == fresh_logits(conversation).tobytes()
    assert "".join(conversation.regenerate()) == first


def test_an_answer_that_is_stopped_is_a_message(opened: Callable[..., LanguageModel]) -> None:
    conversation = Conversation(opened(), tokens=40, **GREEDY)
    answer = conversation.send("hello")
    pieces = list(itertools.islice(answer, 3))
    answer.close()  # type: ignore[attr-defined]
    assert conversation.messages[-1] == {"role": "assistant", "content": "".join(pieces)}


def test_an_answer_to_earlier_messages_is_not_added(opened: Callable[..., LanguageModel]) -> None:
    """Fails if an answer that is read late is added after a message that it does not answer."""
    conversation = Conversation(opened(), tokens=4, **GREEDY)
    first, second = conversation.send("hello"), conversation.send("and you?")
    assert "".join(first)
    text = "".join(second)
    assert [message["content"] for message in conversation.messages] == ["hello", "and you?", text]
    late = conversation.send("what else?")
    conversation.clear()
    assert "".join(late) and not conversation.messages


@pytest.mark.parametrize("error", [KeyboardInterrupt, GlgptError])
def test_an_answer_that_cannot_begin_changes_nothing(
    opened: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Fails if, after the error, an unanswered question stays or the answer to regenerate is lost."""
    conversation = Conversation(opened(), tokens=4, **GREEDY)
    "".join(conversation.send("hello"))
    before = list(conversation.messages)

    def fails(*_: object) -> None:
        raise error("stopped")

    monkeypatch.setattr(conversation.model.chat_template.renderer, "render", fails)
    for begin in (lambda: conversation.send("and you?"), conversation.regenerate):
        with pytest.raises(error):
            begin()
        assert conversation.messages == before


def test_a_full_context_is_cut_at_turns_and_keeps_the_system_message(opened: Callable[..., LanguageModel]) -> None:
    conversation = Conversation(opened(context=256), system="You are brief.", tokens=24, **GREEDY)
    notices = []
    for turn in range(8):
        "".join(conversation.send(f"Question {turn} about the moon, the sun?"))
        notices.append(conversation.notice)
        visible = conversation.visible()
        assert visible[0]["content"] == "You are brief." and visible[1]["role"] == "user"
        assert conversation.last and conversation.last.stats.slides == 0
        assert len(conversation.last_prompt.ids) + len(conversation.last.ids) <= 257
    assert conversation.dropped and len(conversation.messages) == 17
    full = [notice for notice in notices if notice]
    assert 1 <= len(full) < 8 and "the context of 256 tokens is full: the model no longer reads the" in full[0]
    assert first_logits(conversation).tobytes() == fresh_logits(conversation).tobytes()
    before = list(conversation.messages)
    with pytest.raises(GlgptError, match=r"the context of .* holds 256; shorten it, or raise --context"):
        conversation.send("moon " * 300)
    assert conversation.messages == before


def test_an_answer_ends_where_the_context_does(opened: Callable[..., LanguageModel]) -> None:
    conversation = Conversation(opened(context=256), tokens=500, **GREEDY)
    "".join(conversation.send("hello " * 60))
    assert conversation.last and conversation.last.stats.slides == 0
    if conversation.last.stats.stopped == "tokens":
        assert conversation.notice == "the answer ends here: the context of 256 tokens is full"


def test_an_answer_ends_where_the_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if an answer drops earlier tokens without a notice when memory does not suffice for a longer context."""
    monkeypatch.setattr(context, "DEFAULT_CONTEXT", 256)
    path = chat_llama(tmp_path / "model.gguf")
    with LanguageModel.from_pretrained(path, device="software") as model:
        small = model.player.program.nbytes()
    with LanguageModel.from_pretrained(path, device="software", max_texture_memory=small) as model:
        model.eos_ids = ()
        conversation = Conversation(model, tokens=300, **GREEDY)
        "".join(conversation.send("hello"))
        assert model.context == 256 and conversation.last and conversation.last.stats.slides == 0
        assert conversation.notice == "the answer ends here: the context of 256 tokens is full"


def test_a_conversation_continues_where_the_memory_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a message is refused for lack of memory for a longer context, although earlier turns can be dropped."""
    monkeypatch.setattr(context, "DEFAULT_CONTEXT", 256)
    path = chat_llama(tmp_path / "model.gguf")
    with LanguageModel.from_pretrained(path, device="software") as model:
        small = model.player.program.nbytes()
    with LanguageModel.from_pretrained(path, device="software", max_texture_memory=small) as model:
        conversation = Conversation(model, tokens=4, **GREEDY)
        for _ in range(12):
            "".join(conversation.send("hello " * 10))
        assert model.context == 256 and conversation.dropped


def test_a_conversation_takes_the_context_that_fits_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a message of more than 256 tokens was refused, although a context of 512 would have fitted."""
    monkeypatch.setattr(context, "DEFAULT_CONTEXT", 256)
    path = chat_llama(tmp_path / "model.gguf", context=2048)
    with LanguageModel.from_pretrained(path, device="software", context=512) as model:
        enough = model.player.program.nbytes()
    with LanguageModel.from_pretrained(path, device="software", max_texture_memory=enough) as model:
        conversation = Conversation(model, tokens=4, **GREEDY)
        "".join(conversation.send("hello " * 75))
        assert model.context == 256
        "".join(conversation.send("hello " * 200))
        assert model.context == 512 and conversation.dropped == 2
        assert conversation.last_prompt and 256 < len(conversation.last_prompt.ids) <= 512
        with pytest.raises(GlgptError, match="holds 512; shorten it, or raise --max-texture-memory"):
            conversation.send("hello " * 400)


def test_a_message_beyond_the_model_is_refused_before_the_context_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the caches grew to the model's maximum before a message that exceeds it was refused."""
    monkeypatch.setattr(context, "DEFAULT_CONTEXT", 256)
    with LanguageModel.from_pretrained(chat_llama(tmp_path / "model.gguf"), device="software") as model:
        conversation = Conversation(model, tokens=4, **GREEDY)
        "".join(conversation.send("hello"))
        with pytest.raises(GlgptError, match=rf"the context of .* holds {model.max_context}; shorten it$"):
            conversation.send("hello " * model.max_context)
        assert model.context == 256 < model.max_context and len(conversation.messages) == 2


def test_a_message_to_a_closed_model_is_refused(opened: Callable[..., LanguageModel]) -> None:
    """Regression: for a long message, the error said that the message exceeds the context."""
    model = opened()
    conversation = Conversation(model)
    model.close()
    for message in ("hello", "hello " * 400):
        with pytest.raises(GlgptError, match=r"model\.gguf is closed; load it again"):
            conversation.send(message)


def test_an_answer_at_the_border_of_the_context_is_read_ahead(opened: Callable[..., LanguageModel]) -> None:
    """Fails if chunks are planned for the two tokens after the prompt's last border, which exceed the context."""
    model = opened()
    prompt = ChatPrompt([1] * (model.context + 2), (9, model.context))
    assert model.read_ahead(prompt) == model.context


def test_chat_streams_and_reuses_what_messages_have_in_common(opened: Callable[..., LanguageModel]) -> None:
    model, messages = opened(), turns(2, "Brief.")
    answer = model.chat(messages, 6, **GREEDY)
    assert "".join(answer) == answer.text and answer.stats.prefill_tokens > 0
    again = model.chat(messages, 6, **GREEDY)
    assert again.read() == answer.text and again.stats.cached_tokens > 0
    with pytest.raises(ArgumentError, match="tokens"):
        Conversation(model, tokens="6")  # type: ignore[arg-type]
    for bad in ([], "hello", [{"role": "robot", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 3}]):
        with pytest.raises(ArgumentError):
            model.chat(bad)  # type: ignore[arg-type]


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    with (
        LanguageModel.from_pretrained(chat_llama(tmp_path / "base.gguf", None), device="software") as model,
        pytest.raises(GlgptError, match=r"base\.gguf has no chat template.* glgpt generate .* such as smollm2"),
    ):
        Conversation(model)


@given(st.lists(st.integers(1, 700), max_size=6), st.integers(1, 700), st.integers(0, 5))
def test_chunks_of_a_longer_text_begin_with_those_of_a_shorter_one(gaps: list[int], last: int, count: int) -> None:
    borders = list(itertools.accumulate(gaps))
    whole = plan_segments(borders, sum(gaps) + last, 8192, (*SIZES, 1))
    assert np.all(np.diff([chunk.start for chunk in whole]) == [chunk.valid for chunk in whole[:-1]])
    assert sum(chunk.valid for chunk in whole) == sum(gaps) + last
    count = min(count, len(borders))
    if count:
        part = plan_segments(borders[: count - 1], borders[count - 1], 8192, (*SIZES, 1))
        assert whole[: len(part)] == part
