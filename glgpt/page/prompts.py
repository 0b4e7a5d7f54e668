"""Chooses the example prompts of a page: those of `--prompt`, of the model's `page.json`, or ones for any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ConfigDict, Field

from glgpt.checkpoint.generation_config import chat_sampling
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.models.spec import ModelConfig
from glgpt.page.documents.manifest import PageSampling, PromptFields, ShownHead, TemplateSource
from glgpt.system.files import read_text
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.untrusted.chat import Chat, load_chat
from glgpt.text.untrusted.chat_template import ChatTemplate
from glgpt.training.records import validated

FILE = "page.json"  # in a model's folder
NEUTRAL = ("The capital of France is", "Once upon a time", "The three primary colours are", "Water boils at")
QUESTIONS = (  # for an instruct model
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a poem about the sea.",
    "Give me tips for sleeping well.",
)
# For models without a chat template. With top_p 1, their texts would have more misspelt words.
TEXT_SAMPLING: PageSampling = {"temperature": 0.8, "top_p": 0.9}
SEED, TOKENS = 1, 120  # default seed and length in tokens of the text that a page opens with
MAX_TITLE_CHARACTERS = 32  # maximum characters of a button's caption


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompt(_Record):
    """An example prompt, and the caption of its button."""

    title: str = Field(min_length=1)
    text: str = Field(min_length=1)


class Head(_Record):
    """An attention head that the page's tour shows for a text, with a question about the head and the answer."""

    layer: int = Field(ge=0)
    head: int = Field(ge=0)
    text: str
    question: str
    answer: str


class Opening(_Record):
    """Defines the text that a page opens with: `tokens` tokens, sampled with `seed`, that continue the first prompt."""

    seed: int = Field(ge=0)
    tokens: int = Field(ge=1)


class ModelPage(_Record):
    """The content of `page.json` in a model's folder.

    The picture of the link preview shows the model as it continues the prompt `picture`.
    """

    trained_on: str | None = None
    prompts: list[Prompt] = []
    opening: Opening | None = None
    picture: str | None = None
    head: Head | None = None


@dataclass(frozen=True)
class Prompts:
    """The example prompts of a page, with the model's tokenizer and chat formats, and the initial sampling settings.

    The page opens with the first prompt. `chat` is the format of a single message, and `template` is the chat template
    of conversations; both are None if the model is not an instruct model.
    """

    page: ModelPage
    prompts: Sequence[Prompt]
    tokenizer: Tokenizer | None
    chat: Chat | None
    template: ChatTemplate | None
    sampling: PageSampling

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, given: Sequence[str]) -> Prompts:
        """Returns the `given` prompts, else those of the folder's `page.json`, else prompts for any model.

        A prompt fits the model if the tokenizer can encode it, and the prompt has fewer tokens than the context. Raises
        GlgptError for a given prompt that does not fit, and skips other prompts that do not fit. Raises FileError for a
        damaged file.
        """
        page, tokenizer = _model_page(folder), load_tokenizer(folder, config.vocab_size)
        chat = load_chat(folder, tokenizer) if tokenizer else None
        if given and tokenizer is None:
            raise ArgumentError(
                "--prompt needs a tokenizer and this model has none; omit --prompt and enter token ids in the page"
            )
        if "" in given:
            raise ArgumentError("--prompt is empty; give at least one character")
        wanted = [Prompt(title=_title(text), text=text) for text in given] or page.prompts
        wanted = wanted or [Prompt(title=_title(text), text=text) for text in (QUESTIONS if chat else NEUTRAL)]
        template = ChatTemplate.load(folder, tokenizer) if tokenizer else None
        sampling = cast("PageSampling", chat_sampling(folder)) if template else TEXT_SAMPLING
        found = cls(page, wanted if tokenizer else [], tokenizer, chat, template, sampling)
        for text in given:
            found._check(text, config)
        return replace(found, prompts=[p for p in found.prompts if found._fits(p.text, config)])

    def ids(self, text: str) -> list[int]:
        """Encodes a prompt, in the chat format if there is one. Raises GlgptError as `Tokenizer.encode` does."""
        assert self.tokenizer
        if self.chat:
            return self.chat.encode(self.tokenizer, text)
        return self.tokenizer.prompt_prefix + self.tokenizer.encode(text)

    def opening(self) -> list[int] | None:
        """Returns the ids of the first prompt; None without a prompt."""
        return self.ids(self.prompts[0].text) if self.prompts else None

    def continuation(self) -> Opening:
        """Returns the seed and the length of the text that continues the first prompt.

        They are those of `page.json` if the first prompt is also the first one of `page.json`, else the defaults.
        """
        chosen = self.page.opening if self.prompts and self.prompts[0] in self.page.prompts[:1] else None
        return chosen or Opening(seed=SEED, tokens=TOKENS)

    def manifest(self) -> PromptFields:
        """Returns the manifest's fields about prompts."""
        return {
            "prompts": [{"title": p.title, "text": p.text} for p in self.prompts],
            "chat": list(self.chat.pieces) if self.chat else None,
            "chat_template": cast("TemplateSource", self.template.document()) if self.template else None,
            "sampling": self.sampling,
            "head": cast("ShownHead", self.page.head.model_dump()) if self.page.head else None,
        }

    def _check(self, text: str, config: ModelConfig) -> None:
        count, most = len(self.ids(text)), config.n_positions - 1
        if not 1 <= count <= most:
            raise ArgumentError(f"--prompt {quoted(text, 40)} has {count} tokens; it must have 1 to {most}")

    def _fits(self, text: str, config: ModelConfig) -> bool:
        try:
            self._check(text, config)
        except GlgptError:  # too long, or the vocabulary lacks its characters
            return False
        return True


def _model_page(folder: Path) -> ModelPage:
    file = folder / FILE
    return validated(ModelPage, read_text(file), quoted(file, 300)) if file.exists() else ModelPage()


def _title(text: str) -> str:
    line = " ".join(text.split()) or "…"
    return line if len(line) <= MAX_TITLE_CHARACTERS else f"{line[: MAX_TITLE_CHARACTERS - 1]}…"
