"""Tests SmolLM2 in the page that opens model files, and in the page that `make demo-chat` exports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from chat_page import demo_chat_page
from helpers.exports import few_recordings
from test_page_chat import ask, messages
from test_page_player import few_mixes, give, load

from glgpt.cli.parser import build_parser
from glgpt.page.player.export import PlayerOptions, export_player
from glgpt.page.player.shapes import common_shapes

pytestmark = pytest.mark.slow
Serve = Callable[..., str]
Browse = Callable[..., Any]


def test_smollm2_runs_as_on_the_desktop(smollm2: Path, tmp_path: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the page misreads a file of llama.cpp, whose metadata and types differ from those of glgpt's files."""
    shape = next(shape for shape in common_shapes() if shape.name == "SmolLM2-135M")
    (tmp_path / "config.json").write_text(json.dumps(shape.config.to_dict()))
    with few_mixes("Q4_0"), few_recordings("8x4-contiguous"):
        export_player(tmp_path / "page", PlayerOptions([tmp_path / "config.json"], common=False, context=128))
    page = browse(serve(tmp_path / "page") + "#answer=8", optimised=True)  # drawing takes longer than compiling
    give(page, [smollm2])
    load(page)
    text = page.evaluate("glgpt.generate({prompt: 'The capital of France is', tokens: 2, temperature: 0})")["text"]
    assert text == " Paris."
    assert page.evaluate("glgpt.model.manifest.chat_template.source.includes('<|im_start|>')")
    check_chat(page)
    check_constraints(page)


def test_the_page_of_make_demo_chat_answers(chat_page: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a command of `make demo-chat-page` fails, or if the exported page does not chat."""
    page = browse(serve(chat_page) + "#answer=8", optimised=True)
    page.evaluate("glgpt.ready")
    check_chat(page)


def test_make_demo_chat_exports_smollm2(tmp_path: Path) -> None:
    """Fails if the export command of `make demo-chat-page` names an option or a model that does not exist."""
    arguments = build_parser().parse_args(demo_chat_page(tmp_path / "chat")[1])
    assert (arguments.model, Path(arguments.out)) == ("smollm2", tmp_path / "chat")


def check_chat(page: Any) -> None:
    """Fails if an answer is wrong, a token's alternatives do not open, or the first turn is computed again."""
    assert "temperature=0.2&k=0&p=0.9" in page.evaluate("location.hash")  # as SmolLM2's authors recommend
    ask(page, "What is the capital of France?")
    question, answer = messages(page)
    assert "Paris" in answer
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    ids = page.evaluate("(m) => glgpt.chatPrompt(m, 8).then((p) => p.ids)", [*turns, {"role": "user", "content": "b"}])
    read = page.evaluate("glgpt.model.cache.ids.length")
    assert page.evaluate("(ids) => glgpt.model.cache.held(ids)", ids) >= read - 1  # the second turn computes the rest
    ask(page, "And of Spain?")
    assert "Madrid" in messages(page)[3]
    page.get_by_role("button", name="Tokens").last.click()
    page.locator("[data-part=token]").nth(2).click()
    popup = page.get_by_role("group", name="Alternatives")
    popup.get_by_role("group", name="Look inside").get_by_role("button", name="Attention").click()
    page.get_by_role("region", name="Attention").wait_for()


def check_constraints(page: Any) -> None:
    """Fails if a text violates its constraint or stops too early, or if the device cannot mask tokens."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["name", "age"],
    }
    found = page.evaluate(
        """async (schema) => {
          const text = async (constraint, more) => {
            const options = {prompt: "A person:", tokens: 40, temperature: 1, seed: 2, constraint, ...more};
            const {text, stopped} = await glgpt.generate(options);
            return [text, stopped];
          };
          const top = [];
          const json = await text({json_schema: schema}, {alternatives: 2, onToken: (token) => top.push(token)});
          return {
            json,
            again: await text({json_schema: schema}),
            choice: await text({choice: ["Zebra", "Zebu"]}),
            regex: await text({regex: "[0-9]{3}-[a-f]{2}"}),
            host: await text({regex: "[0-9]{3}-[a-f]{2}"}, {repetitionPenalty: 1.1}),
            wide: await text({regex: "[^\\0-\\x7f\\s]{4}"}),
            stopped: await text({regex: "(.{1,64}b?){1,128}"}, {signal: AbortSignal.timeout(300)}),
            device: glgpt.model.sampling.masked.ready,
            likely: top.every(({p, sampled, top}) => p > 0 && sampled > 0 && top[0].p >= top[1].p),
          };
        }""",
        schema,
    )
    jsonschema.validate(json.loads(found["json"][0]), schema)
    assert found["again"] == found["json"] and found["likely"] and found["device"]
    assert found["choice"][0] in ("Zebra", "Zebu")
    assert all(re.fullmatch("[0-9]{3}-[a-f]{2}", found[how][0]) for how in ("regex", "host"))
    assert (
        len(found["wide"][0]) == 4 and min(found["wide"][0]) > "\x7f"
    )  # each character has several bytes and may have several tokens
    assert found["stopped"] == ["", "aborted"]
    assert all(found[how][1] == "eos" for how in ("json", "choice", "regex", "host", "wide"))
