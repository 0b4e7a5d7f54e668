"""Holds a conversation with a model, and leaves out the oldest messages when the model's context is full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glgpt.errors import ArgumentError, GlgptError, written
from glgpt.inference.arguments.checks import integer
from glgpt.inference.arguments.sampling_options import MAX_SEED, SamplingKeywords
from glgpt.inference.generation import Generation
from glgpt.inference.model import CHAT_TOKENS, LanguageModel
from glgpt.text.untrusted.chat_template import ChatPrompt, Message, checked_messages

if TYPE_CHECKING:
    from typing_extensions import Unpack

SYSTEM = ("system", "developer")
ANSWER_SHARE = 4  # a prompt leaves 1/4 of the context for an answer, or the answer's maximum length if that is less


class Conversation:
    """A list of messages to which a model adds its answers.

    A turn is a user message and the answer to it. The model's caches retain the previous prompt, so a turn computes
    only the tokens that follow this prompt: the previous answer, the new message and the new answer. The logits are
    bit-equal to those of a new conversation with the same messages. Messages may be edited and removed; all tokens from
    the first changed token on are then computed again.

    If the context is too full for another answer, the model no longer reads the oldest messages: whole turns are left
    out until the rest fills at most half of the context, or only the last turn remains. The system message is never
    left out. `dropped` is the number of messages left out; `messages` still has all messages. `notice` is text to show
    to the user.

    Several conversations may use one model, but each of them overwrites the model's caches.
    """

    def __init__(
        self,
        model: LanguageModel,
        messages: Sequence[Message] = (),
        *,
        system: str | None = None,
        tokens: int = CHAT_TOKENS,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> None:
        """Starts a conversation; an answer has up to `tokens` tokens. `sampling` is passed to `LanguageModel.answer`.

        Raises GlgptError for unusable messages, and for a model without a chat template.
        """
        model.chat_template.renderer.start()
        self.model, self.tools, self.sampling = model, tools, sampling
        self.tokens = integer("tokens", tokens)
        self.messages = checked_messages(messages) if messages else list[dict[str, Any]]()
        self.dropped, self.notice = 0, ""
        self.last: Generation | None = None  # the latest answer
        self.last_prompt = ChatPrompt([])
        self._regenerated = 0  # how often the last message was answered again
        if system is not None:
            self.set_system(system)

    # -- messages -----------------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        """The system message; None if there is none."""
        return str(self.messages[0]["content"]) if self._systems() else None

    def set_system(self, text: str | None) -> None:
        """Replaces the system message; None or "" removes it."""
        own = [{"role": "system", "content": text}] if text else []
        self._replace((checked_messages(own) if own else []) + self.messages[self._systems() :])

    def edit(self, index: int, text: str) -> None:
        """Replaces the text of a message. Raises ArgumentError if the message does not exist."""
        changed = self.messages[self._checked(index)] | {"content": text}
        self._replace(self.messages[:index] + checked_messages([changed]) + self.messages[index + 1 :])

    def remove(self, index: int, end: int | None = None) -> None:
        """Removes message `index`, or messages `index` .. `end` - 1.

        Raises ArgumentError if `index` does not exist, and if `end` is less than `index`.
        """
        start = self._checked(index)
        end = start + 1 if end is None else integer("end", end, start)
        self._replace(self.messages[:start] + self.messages[end:])

    def clear(self) -> None:
        """Removes all messages except the system message."""
        self._replace(self.messages[: self._systems()])

    def _replace(self, messages: list[dict[str, Any]]) -> None:
        self.messages, self.dropped = messages, 0

    def _systems(self) -> int:
        return int(bool(self.messages) and self.messages[0]["role"] in SYSTEM)

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self.messages):
            raise ArgumentError(f"there is no message {index}; the conversation has {len(self.messages)}")
        return index

    # -- answers ------------------------------------------------------------------------------------------------

    def send(self, text: str) -> Iterator[str]:
        """Adds a user message and returns the answer as an iterator over pieces of text: see `answer`.

        Raises GlgptError, and adds nothing, if the message cannot be used.
        """
        return self._answered([*self.messages, *checked_messages([{"role": "user", "content": text}])], 0)

    def regenerate(self) -> Iterator[str]:
        """Removes the last answer and returns a new one. If a seed was given, each new answer uses the next seed.

        Raises ArgumentError if the conversation has no message to answer. If the new answer cannot begin, raises
        GlgptError and keeps the last answer.
        """
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        if not end or self.messages[end - 1]["role"] in SYSTEM:
            raise ArgumentError("there is no message to answer")
        return self._answered(self.messages[:end], self._regenerated + 1)

    def _answered(self, messages: list[dict[str, Any]], regenerated: int) -> Iterator[str]:
        """Returns the answer to `messages`, which become the conversation's messages unless the answer cannot begin."""
        before = self.messages, self.dropped, self._regenerated
        self.messages, self._regenerated = messages, regenerated
        try:
            return self.answer()
        except BaseException:  # also KeyboardInterrupt
            self.messages, self.dropped, self._regenerated = before
            raise

    def answer(self) -> Iterator[str]:
        """Returns the answer to the last message as pieces of text; `last` is its `Generation`.

        The answer becomes a message when the iteration ends, even if the iteration is stopped (`close`) or interrupted.
        It is not added if the iteration never begins, or if `send`, `edit` or another method has changed the messages
        since this call.

        Raises GlgptError for settings that cannot be used, and if the last turn, with the system message, exceeds the
        context.
        """
        self.last_prompt = self._fitting()
        sampling = self.sampling
        if self._regenerated and (seed := sampling.get("seed")) is not None:
            advanced = (integer("seed", seed, 0, MAX_SEED) + self._regenerated) % (MAX_SEED + 1)
            sampling = {**sampling, "seed": advanced}
        self.last = self.model.answer(self.last_prompt, self.tokens, **sampling)
        return self._streamed(self.last, self.messages)

    def _streamed(self, generation: Generation, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Yields a generation's text, then adds it to `messages`: the conversation's list when the answer began."""
        try:
            yield from generation
        finally:
            messages.append({"role": "assistant", "content": generation.text})
        full = generation.stats.stopped == "tokens" and len(generation.ids) < self.tokens
        if full:
            self.notice = f"the answer ends here: the context of {self.model.context} tokens is full"

    def read_ahead(self) -> int:
        """Computes the last answer as part of the prompt, so that `answer` need not do it later.

        Returns the number of tokens computed; 0 if the last message is not an answer. Generating the answer also wrote
        values to the caches. They cannot be reused: in their last bits, they differ from the values that are computed
        when the answer is read as part of a prompt.
        """
        visible = self.visible()
        if not visible or visible[-1]["role"] != "assistant":
            return 0
        return self.model.read_ahead(self._prompt(visible, add_generation_prompt=False))

    def prompt(self) -> ChatPrompt:
        """Returns the prompt of the messages that the model reads (`visible`); it ends where the next answer begins."""
        return self._prompt(self.visible())

    def visible(self) -> list[dict[str, Any]]:
        """Returns the messages that the model reads: all but the `dropped` oldest after the system message."""
        start = self._systems()
        return self.messages[:start] + self.messages[start + self.dropped :]

    def _prompt(self, messages: list[dict[str, Any]], **how: Any) -> ChatPrompt:
        return self.model.chat_template.prompt(messages, tools=self.tools, **how)

    def _check_length(self, count: int, limit: int) -> None:
        """Raises GlgptError if `count`, the tokens of the last turn with the system message, is more than `limit`."""
        if count <= limit:
            return
        remedy = ""
        if limit < self.model.max_context:
            remedy = ", or raise --max-texture-memory"
        elif limit < self.model.config.n_positions:
            remedy = ", or raise --context"
        raise GlgptError(
            f"the message needs {count} tokens with its system message, and the context of "
            f"{written(self.model.name)} holds {limit}; shorten it{remedy}"
        )

    def _fitting(self) -> ChatPrompt:
        """Returns the prompt; omits the oldest turns if they leave too little of the context for an answer.

        Raises GlgptError if the last turn exceeds the maximum context, or the context that memory allows. The maximum
        is checked first, so that the context does not grow for a turn that cannot fit.
        """
        self.notice, prompt = "", self.prompt()
        start, dropped = self._systems(), self.dropped
        turns = [i - start for i, message in enumerate(self.messages) if message["role"] == "user"]
        most = self.model.prompt_limit(1)
        if len(prompt.ids) > most:  # checked before the context grows
            last = max([dropped, *turns[-1:]])
            self._check_length(len(self._prompt(self.messages[:start] + self.messages[start + last :]).ids), most)
        limit = self.model.prompt_limit(len(prompt.ids))
        if len(prompt.ids) + min(self.tokens, max(1, limit // ANSWER_SHARE)) <= limit + 1:
            return prompt
        for self.dropped in [turn for turn in turns if turn > dropped]:
            prompt = self.prompt()
            if len(prompt.ids) <= limit // 2:
                break
        if len(prompt.ids) > limit:
            self.dropped = dropped
            self._check_length(len(prompt.ids), limit)
        if left_out := self.dropped - dropped:
            self.notice = (
                f"the context of {limit} tokens is full: the model no longer reads the {left_out} oldest messages"
            )
        return prompt
