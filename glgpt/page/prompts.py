"""The texts that a page opens with and offers: given ones, those of the model's `page.json`, or neutral ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.models.spec import ModelConfig
from glgpt.system.files import read_text
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.untrusted.chat import Chat, load_chat
from glgpt.training.records import validated

FILE = "page.json"  # in a model's folder
NEUTRAL = ("The capital of France is", "Once upon a time", "The three primary colours are", "Water boils at")
QUESTIONS = (  # to an instruct model
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a poem about the sea.",
    "Give me tips for sleeping well.",
)
TITLE = 32  # characters of a chip, at most


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompt(_Record):
    """A text to start from, and the caption of its button."""

    title: str = Field(min_length=1)
    text: str = Field(min_length=1)


class Head(_Record):
    """A head that the tour shows: what to ask about it, and the answer."""

    layer: int = Field(ge=0)
    head: int = Field(ge=0)
    text: str
    question: str
    answer: str


class ModelPage(_Record):
    """The contents of `page.json` in a model's folder; `picture` is the prompt of the picture that links show."""

    trained_on: str | None = None
    prompts: list[Prompt] = []
    picture: str | None = None
    head: Head | None = None


@dataclass(frozen=True)
class Prompts:
    """The prompts of a page, the first of which it opens with, and the chat format that they are sent in."""

    page: ModelPage
    prompts: Sequence[Prompt]
    tokenizer: Tokenizer | None
    chat: Chat | None

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, given: Sequence[str]) -> Prompts:
        """Takes `given`, else what the model can take of the folder's `page.json`, else of neutral ones.

        Raises GlgptError for a given prompt that the model cannot take, and FileError for a damaged file.
        """
        page, tokenizer = _model_page(folder), load_tokenizer(folder, config.vocab_size)
        chat = load_chat(folder, tokenizer) if tokenizer else None
        if given and tokenizer is None:
            raise ArgumentError("--prompt needs a tokenizer, and this model has none; its page takes token ids")
        if "" in given:
            raise ArgumentError("--prompt is empty; give at least one character")
        wanted = [Prompt(title=_title(text), text=text) for text in given] or page.prompts
        wanted = wanted or [Prompt(title=_title(text), text=text) for text in (QUESTIONS if chat else NEUTRAL)]
        found = cls(page, wanted if tokenizer else [], tokenizer, chat)
        for text in given:
            found._check(text, config)
        return replace(found, prompts=[p for p in found.prompts if found._fits(p.text, config)])

    def ids(self, text: str) -> list[int]:
        """Encodes a prompt, in the chat format where there is one. Raises GlgptError as `Tokenizer.encode`."""
        assert self.tokenizer
        if self.chat:
            return self.chat.encode(self.tokenizer, text)
        return self.tokenizer.prompt_prefix + self.tokenizer.encode(text)

    def opening(self) -> list[int] | None:
        """Returns the ids that the page opens with; None if there is no prompt."""
        return self.ids(self.prompts[0].text) if self.prompts else None

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest's fields about prompts."""
        return {
            "prompts": [p.model_dump() for p in self.prompts],
            "chat": list(self.chat.pieces) if self.chat else None,
            "head": self.page.head.model_dump() if self.page.head else None,
        }

    def _check(self, text: str, config: ModelConfig) -> None:
        count, most = len(self.ids(text)), config.n_positions - 1
        if not 1 <= count <= most:
            raise ArgumentError(f"--prompt {quoted(text, 40)} has {count} tokens; this page takes 1 to {most}")

    def _fits(self, text: str, config: ModelConfig) -> bool:
        try:
            self._check(text, config)
        except GlgptError:  # also of a vocabulary without these letters
            return False
        return True


def _model_page(folder: Path) -> ModelPage:
    file = folder / FILE
    return validated(ModelPage, read_text(file), quoted(file, 300)) if file.exists() else ModelPage()


def _title(text: str) -> str:
    line = " ".join(text.split()) or "…"
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"
