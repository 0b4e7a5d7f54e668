"""Tests `glgpt chat`: scripts, JSON, bad input, and the interactive chat in a pseudo-terminal."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.chat_models import chat_llama
from hypothesis import given
from hypothesis import strategies as st

from glgpt.cli import main
from glgpt.cli.chat_terminal import ChatTerminal, WrappedLines, saved_messages
from glgpt.cli.common import draw_in_one_thread
from glgpt.errors import FileError
from glgpt.inference.conversation import Conversation
from glgpt.inference.model import LanguageModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(chat_llama(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def test_messages_are_answered_in_turn(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "0", "--tokens", "5", "--device", "software"]
    assert main(["chat", model, "--message", "hello", "--message", "again", *options]) == 0
    text, errors = capsys.readouterr()
    assert errors.count("first token after") == 2 and "more from the cache" in errors
    assert main(["chat", "--message", "hello", "--message", "again", *options, "--json", "--model", model]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [m["role"] for m in found["messages"]] == ["user", "assistant"] * 2
    first, second = (m["content"] for m in found["messages"][1::2])
    assert text == f"{first}\n\n{second}\n"
    assert found["turns"][0]["cached_tokens"] == 0 < found["turns"][1]["cached_tokens"]


def test_the_template_process_starts_before_the_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the process that renders chat templates starts after the model has loaded, or if a second one starts."""
    events: list[str] = []
    popen = subprocess.Popen

    def starting(*args: Any, **options: Any) -> Any:
        events.append("process")
        return popen(*args, **options)

    def loading(*args: Any, **options: Any) -> LanguageModel:
        events.append("model")
        return LanguageModel.from_pretrained(*args, **options)

    monkeypatch.setattr("glgpt.system.limited_process.subprocess.Popen", starting)
    monkeypatch.setattr("glgpt.cli.common.load", loading)
    assert main(["chat", model, "--message", "hello", "--tokens", "1", "--device", "software"]) == 0
    assert events == ["process", "model"]


def test_a_long_prompt_shows_that_it_is_read(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if no progress is shown before the first token, or if the progress remains in the answer's line."""

    class Screen(io.StringIO):
        isatty = staticmethod(lambda: True)

    monkeypatch.setattr("glgpt.cli.progress.DELAY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    assert main(["chat", model, "--message", "hello", "--tokens", "2", "--device", "software"]) == 0
    _, label, after = screen.getvalue().partition("reading the conversation…")
    assert label and "\r\x1b[K" in after and "reading" not in after.rpartition("\x1b[K")[2]
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_a_full_context_is_said_once(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--temperature", "0", "--tokens", "5", "--device", "software", "--context", "128"]
    assert main(["chat", model, *["--message", "hello " * 8] * 3, *options]) == 0
    errors = capsys.readouterr().err
    assert errors.count("the context of 128 tokens is full: the model no longer reads the 4 oldest messages") == 1


@pytest.mark.slow
def test_stdin_is_a_message(model: str) -> None:
    command = [sys.executable, "-m", "glgpt", "chat", model, "--temperature", "0", "--tokens", "4", "--json"]
    command += ["--device", "software", "--system", "Be brief."]
    done = subprocess.run(command, input=b"hello\nthere\n", capture_output=True, timeout=300, check=True)
    messages = json.loads(done.stdout)["messages"]
    assert messages[:2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello\nthere"}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--message", " "], "a message is empty"),
        (["--message", "a", "--model", "other"], "both MODEL"),
        (["--message", "a", "--temperature", "-1"], "--temperature"),
        (["--message", "moon " * 400, "--context", "256"], "shorten it, or raise --context"),
        (["--message", "a", "--tokens", "0"], "--tokens"),
        (["--message", "a", "--cache", "/no/folder/cache"], "its folder does not exist"),
        (["--message", "a", "--cache", "/"], "is a folder; give a file"),
        (["--message", "a", "--cache", "c", "--split", "ws://a"], "--cache cannot be combined with --split"),
    ],
)
def test_bad_input_ends_with_2(model: str, capsys: pytest.CaptureFixture[str], options: list[str], why: str) -> None:
    try:
        code: Any = main(["chat", model, *options, "--device", "software"])
    except SystemExit as left:
        code = left.code
    assert code == 2 and why in capsys.readouterr().err


def test_a_cache_that_cannot_be_saved_is_refused_before_the_chat(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: the error came only at the end of the chat."""
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    assert main(["chat", model, "--message", "a", "--cache", str(tmp_path / "cache"), "--device", "software"]) == 2
    printed = capsys.readouterr()
    assert "its folder is not writable" in printed.err and not printed.out


def test_a_model_that_cannot_chat_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "shakespeare", "--message", "hello", "--device", "software"]) == 2
    assert "has no chat template, so it cannot chat; use glgpt generate" in capsys.readouterr().err


class Terminal:
    """Runs `glgpt chat` in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "glgpt", "chat", *arguments, "--device", "software"]
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.text = ""

    def expect(self, pattern: str, seconds: float = 60) -> None:
        """Reads until the output after the previous match contains this pattern."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.file], [], [], 1)[0]:
                data = os.read(self.file, 65536).decode(errors="replace")
                if "\x1b[6n" in data:
                    os.write(self.file, b"\x1b[1;1R")  # the position of the cursor, which prompt_toolkit requests
                self.text += re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>78])", "", data)
        self.text = self.text[found.end() :]

    def send(self, text: str) -> None:
        os.write(self.file, text.encode())

    def end(self) -> int:
        """Reads the rest of the output and returns the exit code."""
        while True:
            try:
                if not os.read(self.file, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(model: str) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def started(*options: str) -> Terminal:
        opened.append(Terminal(model, "--temperature", "0", *options))
        opened[-1].expect("type a message")
        opened[-1].expect("\n>")
        return opened[-1]

    yield started
    for one in opened:
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(one.file)


@pytest.mark.slow
def test_an_interactive_chat(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    chat, file = terminal("--tokens", "6"), tmp_path / "saved.json"
    for line, answer in (
        ("/help\r", "save the conversation as JSON"),
        ("/stats\r", "no answer yet"),
        ("hello\r", "the answer reached 6 tokens"),
        ("/stats\r", r"first token after .*\n2 messages; \d+ of 512 tokens"),
        ("/regenerate\r", "the answer reached 6 tokens"),
        ("/system Be brief.\r", "system message: Be brief."),
        (f"/save {file}\r", "3 messages saved"),
        ("/clear\r", "the conversation is empty"),
        (f"/load {file}\r", "3 messages loaded"),
        ("/load nowhere.json\r", "error: nowhere.json"),
        ("/what\r", "/what is not a command"),
        ("//slash\r", "the answer reached 6 tokens"),
        ("/save\r", "give a file"),
    ):
        chat.send(line)
        chat.expect(answer.replace("\\n", r"\s+"))
        chat.expect("\n>")
    assert [m["role"] for m in saved_messages(file)] == ["system", "user", "assistant"]
    chat.send("\x03")
    chat.expect("press Ctrl-C again")
    chat.send("\x03")
    assert chat.end() == 0


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_ctrl_d_ends(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("--tokens", "400")
    chat.send("hello\r")
    chat.expect("hello")
    time.sleep(1.5)
    chat.send("\x03")
    chat.expect(r"\[stopped\]|the answer reached")
    chat.expect("\n>")
    chat.send("/stats\r")
    chat.expect("2 messages")
    chat.expect("\n>")
    chat.send("\x04")
    assert chat.end() == 0


def typed(conversation: Conversation, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns a function that handles a line as if it were typed."""
    monkeypatch.setattr("glgpt.cli.chat_terminal._session", lambda _: None)
    return ChatTerminal(conversation)._handle


def test_saving_replaces_only_a_saved_conversation(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "saved.json", tmp_path / "notes.txt"
    other.write_text("my notes")
    with LanguageModel.from_pretrained(model, device="software") as opened:
        conversation = Conversation(opened, system="Be brief.")
        handle = typed(conversation, monkeypatch)
        for line in (f"/save {file}", "/system Be kind.", f"/save {file}", f"/save {other}", "/system -", "/save x"):
            handle(line)
    said = " ".join(capsys.readouterr().out.split())
    assert saved_messages(file) == [{"role": "system", "content": "Be kind."}]
    assert "is not a saved conversation and was not replaced; give another name" in said
    assert "nothing to save" in said and other.read_text() == "my notes"
    assert {path.name for path in tmp_path.iterdir()} == {"saved.json", "notes.txt"}


def test_stats_are_those_of_the_conversation(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if /stats shows an answer from before /clear or /load."""
    with LanguageModel.from_pretrained(model, device="software") as opened:
        handle = typed(Conversation(opened, tokens=3, temperature=0), monkeypatch)
        shown = []
        for line in ("hello", f"/save {tmp_path / 'a.json'}", "/clear", f"/load {tmp_path / 'a.json'}", "hello"):
            handle(line)
            capsys.readouterr()
            handle("/stats")
            shown.append(capsys.readouterr().out)
    assert [("first token" in text, "no answer yet" in text) for text in shown] == [
        (True, False), (True, False), (False, True), (False, True), (True, False),
    ]  # fmt: skip


def test_stats_of_a_full_context(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if /stats counts an answer's last token. It is not in the caches, and the sum would exceed the context."""
    with LanguageModel.from_pretrained(model, device="software", context=100) as opened:
        opened.eos_ids = ()
        handle = typed(Conversation(opened, tokens=500, temperature=0), monkeypatch)
        handle("hello")
        handle("/stats")
    assert "100 of 100 tokens of context" in capsys.readouterr().out


def test_a_stopped_answer_has_no_stats_and_commands_take_no_more_than_they_use(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [{"role": "user", "content": "word " * 40}, {"role": "assistant", "content": "word " * 40}]
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "model": "", "messages": messages}))
    with LanguageModel.from_pretrained(model, device="software") as opened:
        conversation = Conversation(opened, tokens=3, temperature=0)
        handle = typed(conversation, monkeypatch)
        conversation.send("hello")  # nothing of the answer is read, as after Ctrl-C
        handle("/stats")
        assert "no answer yet" in capsys.readouterr().out
        for command in ("/regenerate", "/stats", "/clear", "/help"):
            handle(f"{command} 3")
            assert capsys.readouterr().out == f"error: {command} takes nothing after it\n"
        monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 20)))
        handle(f"/load {tmp_path / 'a.json'}")
        shown = re.sub(r".\x1b\[1D\x1b\[K", "", capsys.readouterr().out).splitlines()
        assert len(shown) > 10


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "it has no version"),
        ('{"version": 1}', "there are no messages"),
        ('{"version": 1, "messages": []}', "there are no messages"),
        ("[]", "object"),
        ('{"version": 1, "messages": [3]}', "the role is 3"),
        ('{"version": 1, "messages": [{"role": "user", "content": null}]}', "message 0 has no content"),
        (None, "does not exist"),
    ],
)
def test_a_damaged_conversation_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "saved.json").write_text(text)
    with pytest.raises(FileError, match=rf"saved\.json.*{why}.*; give a file that /save wrote$"):
        saved_messages(tmp_path / "saved.json")


@given(st.lists(st.text("ab \n日", max_size=9), max_size=12), st.integers(4, 20))
def test_words_are_wrapped_at_the_edge_of_the_terminal(pieces: list[str], columns: int) -> None:
    lines = WrappedLines(columns)
    screen, text = [""], "".join(pieces)
    for written in map(lines.push, pieces):
        for erased, back, char in re.findall(r"(\x1b\[(\d+)D\x1b\[K)|(.|\n)", written):
            if erased:
                width = sum(2 if c == "日" else 1 for c in screen[-1])
                left = width - int(back)
                while sum(2 if c == "日" else 1 for c in screen[-1]) > left:
                    screen[-1] = screen[-1][:-1]
            elif char == "\n":
                screen.append("")
            else:
                screen[-1] += char
    assert all(sum(2 if c == "日" else 1 for c in line) < columns for line in screen)
    assert "".join(screen).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    whole = {word for word in text.split() if sum(2 if c == "日" else 1 for c in word) < (columns - 1) // 2}
    assert whole <= {word for line in screen for word in line.split()}


@pytest.mark.parametrize(
    ("options", "processors", "threads"),
    [
        ({"model": "smollm2", "dtype": None}, 2, "0"),
        ({"model": "smollm2", "dtype": "f32"}, 2, None),
        ({"model": "gpt2", "dtype": None}, 2, None),
        ({"model": "gpt2", "dtype": "q4"}, 1, "0"),
        ({"model": "smollm2", "dtype": None}, 3, None),
    ],
)
def test_few_processors_draw_integers_in_one_thread(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], processors: int, threads: str | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(processors), raising=False)
    monkeypatch.delenv("LP_NUM_THREADS", raising=False)
    draw_in_one_thread(argparse.Namespace(**options))
    assert os.environ.get("LP_NUM_THREADS") == threads
    monkeypatch.setenv("LP_NUM_THREADS", "1")
    draw_in_one_thread(argparse.Namespace(**options))
    assert os.environ["LP_NUM_THREADS"] == "1"


def test_an_answer_of_one_token_has_no_speed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", model, "--message", "hello", "--temperature", "0", "--tokens", "1"]) == 0
    assert capsys.readouterr().err.endswith(" s, 1 token\n")
