"""Tests chat templates: the files that hold them, and that hostile templates do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glgpt.errors import GlgptError
from glgpt.system.limited_process import LimitedProcess
from glgpt.text.tokenizer import Tokenizer
from glgpt.text.untrusted.chat import Chat, load_chat

CHATML = "{% for m in messages %}{{ bos_token }}{{ m['role'] }}\n{{ m['content'] }}{{ eos_token }}{% endfor %}"
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}


@pytest.fixture
def tokenizer() -> Tokenizer:
    tokens = {i: bytes([i]) for i in range(256)} | {256: b"<s>", 257: b"</s>"}
    return Tokenizer(tokens, {"<s>": 256, "</s>": 257}, lambda text: list(text.encode()), 258, 257)


def write(folder: Path, template: object, file: str = "") -> Path:
    """Writes a chat template to tokenizer_config.json, or to `file`; returns the folder."""
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG | ({} if file else {"chat_template": template})))
    if file:
        (folder / file).write_text(str(template))
    return folder


def test_a_template_is_read_wherever_it_is_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert load_chat(tmp_path, tokenizer) is None
    expected = Chat((256, "user\n", None, 257))
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    for template, file in ((CHATML, ""), (named, ""), (CHATML, "chat_template.jinja")):
        assert load_chat(write(tmp_path, template, file), tokenizer) == expected
    (tmp_path / "chat_template.jinja").unlink()
    assert load_chat(write(tmp_path, named[:1]), tokenizer) is None


def test_texts_around_the_message_are_encoded_with_it(tokenizer: Tokenizer) -> None:
    """Fails if the message is encoded separately: blanks before it would become separate tokens."""
    seen: list[str] = []
    tokenizer._ordinary = lambda text: seen.append(text) or [0] * len(text)  # type: ignore[func-returns-value]
    assert Chat((256, "a ", None, "b", 257, "c")).encode(tokenizer, "<s>") == [256, *[0] * 6, 257, 0]
    assert seen == ["", "a <s>b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{% for m in messages %}", "TemplateSyntaxError"),
        ("{{ messages[0].content }}{{ messages[0].content }}", "2 times instead of once"),
        ("hello", "0 times instead of once"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ 'a' * 4000000000 }}", "MemoryError"),
        pytest.param(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "too much time or memory",
            marks=pytest.mark.soak,
        ),
        ("{{ 'a' * 2000000 }}", "2,000,000 characters"),
    ],
)
def test_a_bad_template_is_refused_in_one_line(tmp_path: Path, tokenizer: Tokenizer, template: str, why: str) -> None:
    with pytest.raises(GlgptError, match=r"tokenizer_config\.json: the chat template cannot be used") as raised:
        load_chat(write(tmp_path, template), tokenizer)
    assert why in str(raised.value) and str(raised.value).isprintable()


def test_a_template_that_waits_is_ended(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedProcess, "timeout_s", 0.01)
    with pytest.raises(GlgptError, match="took more than"):
        load_chat(write(tmp_path, CHATML), tokenizer)


def test_the_current_folder_is_not_imported_from(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a module in a downloaded checkpoint's folder is imported when that is the current folder."""
    for name in ("jinja2", "json", "resource"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert load_chat(write(tmp_path, CHATML), tokenizer) == Chat((256, "user\n", None, 257))
