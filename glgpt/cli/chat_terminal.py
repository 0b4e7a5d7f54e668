"""Runs the interactive chat of `glgpt chat`: reads messages and commands from a terminal and streams the answers."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glgpt.cli.common import counted, speed
from glgpt.cli.progress import awaited, no_echo
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.inference.conversation import Conversation
from glgpt.inference.generation import Generation
from glgpt.system.files import holds_manifest, read_json, write_json
from glgpt.text.untrusted.chat_template import checked_messages

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

VERSION = 1  # of the file format of saved conversations
READING = "reading the conversation"  # label that is shown until an answer begins
HELP = """\
/regenerate      answer the last message again
/system TEXT     set the system message; without TEXT, show it ("/system -" removes it)
/save FILE       save the conversation as JSON
/load FILE       continue a saved conversation
/stats           show the speed of the last answer, and how much of the context is used
/clear           start again; the system message stays
/help            this list
/exit            end, as Ctrl-D does
Ctrl-C stops an answer. Alt-Enter starts a new line. Write // to begin a message with /."""
WITH_ARGUMENT = ("/system", "/save", "/load")


class ChatTerminal:
    """Runs a conversation in a terminal: a line beginning with / is a command, any other line is a message."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._stopped = self._answering = False
        self._earlier: Generation | None = None  # the last answer before /clear or /load
        self._commands: dict[str, Callable[[str], None]] = {
            "/regenerate": self._regenerate,
            "/system": self._system,
            "/save": self._save,
            "/load": self._load,
            "/stats": self._stats,
            "/clear": self._clear,
            "/help": lambda _: print(HELP),
        }
        self._session = _session([*self._commands, "/exit"])

    def run(self) -> int:
        """Reads and answers messages until Ctrl-D, /exit, or Ctrl-C twice in a row at the prompt; returns 0."""
        _say(f"{self.conversation.model.name}: type a message; /help lists commands, Ctrl-D ends.")
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._converse()
        except KeyboardInterrupt:  # a second Ctrl-C that arrives before the next prompt is shown
            pass
        finally:
            signal.signal(signal.SIGINT, before)
        return 0

    def _converse(self) -> None:
        interrupted = False
        while True:
            try:
                text = self._session.prompt([("bold", "> ")]).strip()
                interrupted = False
                if text in ("/exit", "/quit"):
                    return
                if text:
                    self._handle(text)
            except EOFError:
                return
            except KeyboardInterrupt:
                if interrupted:
                    return
                interrupted = True
                print("press Ctrl-C again, or Ctrl-D, to end")

    def _handle(self, text: str) -> None:
        """Runs a command or sends a message; prints an error instead of ending the chat."""
        command, _, argument = text.partition(" ")
        try:
            if text.startswith("//") or not text.startswith("/"):
                self._show(lambda: self.conversation.send(text.removeprefix("/") if text[0] == "/" else text))
            elif command in self._commands:
                if argument.strip() and command not in WITH_ARGUMENT:
                    raise GlgptError(f"{command} takes nothing after it")
                self._commands[command](argument.strip())
            else:
                _say(f"{quoted(command, 40)} is not a command; /help lists them (a message beginning with / needs //)")
        except GlgptError as error:
            _say(f"error: {error}")
        except OSError as error:
            _say(f"error: {quoted(error.filename or '')}: {error.strerror}")

    def _show(self, begin: Callable[[], Iterator[str]]) -> None:
        """Streams an answer; Ctrl-C stops the answer and keeps its text so far."""
        self._stopped = self._answering = False
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            with no_echo(sys.stdin):
                self._stream(begin())
        except KeyboardInterrupt:
            self._stopped = True
        finally:
            signal.signal(signal.SIGINT, before)
        if self._stopped:
            print("\n[stopped]")

    def _stream(self, answer: Iterator[str]) -> None:
        self._notice()
        before = self.conversation.notice
        lines = WrappedLines(shutil.get_terminal_size().columns)
        for piece in awaited(READING, answer):
            self._answering = True
            print(lines.push(printable(piece)), end="", flush=True)
            if self._stopped:
                return
        self._answering = False
        print()
        if self.conversation.notice != before:
            self._notice()
        if not self.conversation.notice and self.conversation.last and self.conversation.last.stats.stopped == "tokens":
            _say(f"[the answer reached {counted(self.conversation.tokens, 'token')}; --tokens allows more]")
        with contextlib.suppress(KeyboardInterrupt):
            self.conversation.read_ahead()  # updates the KV cache while the user reads the answer

    def _interrupt(self, *_: object) -> None:
        """Handles Ctrl-C: ends the answer after its current token.

        At a second Ctrl-C, or if the answer has not begun, ends the answer at once.
        """
        if self._stopped or not self._answering:
            raise KeyboardInterrupt
        self._stopped = True

    def _notice(self) -> None:
        if self.conversation.notice:
            _say(f"[{self.conversation.notice}]")

    # -- commands -----------------------------------------------------------------------------------------------

    def _regenerate(self, _: str) -> None:
        self._show(self.conversation.regenerate)

    def _system(self, text: str) -> None:
        if text:
            self.conversation.set_system(None if text == "-" else text)
        system = self.conversation.system
        _say("no system message" if system is None else f"system message: {printable(system)}")

    def _clear(self, _: str) -> None:
        self.conversation.clear()
        self._earlier = self.conversation.last
        print("the conversation is empty")

    def _save(self, name: str) -> None:
        if not name:
            raise GlgptError("give a file: /save FILE")
        path = Path(name).expanduser()
        if not self.conversation.messages:
            raise GlgptError("the conversation is empty; there is nothing to save")
        saved = {"version": VERSION, "model": self.conversation.model.name, "messages": self.conversation.messages}
        if path.exists() and not holds_manifest(path.parent, set(saved), path.name):
            raise FileError(f"{quoted(path, 300)} is not a saved conversation and was not replaced; give another name")
        write_json(path, saved)
        _say(f"{counted(len(self.conversation.messages), 'message')} saved in {quoted(path, 300)}")

    def _load(self, name: str) -> None:
        if not name:
            raise GlgptError("give a file: /load FILE")
        path = Path(name).expanduser()
        messages = saved_messages(path)
        self.conversation.messages, self.conversation.dropped = messages, 0
        self._earlier = self.conversation.last
        _say(f"{counted(len(messages), 'message')} loaded from {quoted(path, 300)}")
        for message in messages[-2:]:
            _say(f"{'> ' if message['role'] == 'user' else ''}{printable(str(message.get('content')))}")

    def _stats(self, _: str) -> None:
        last = self.conversation.last
        if last is None or last is self._earlier or not last.stats.prefill_s:  # stopped before its first token
            _say(f"{counted(len(self.conversation.messages), 'message')}; no answer yet")
            return
        _say(statistics(last))
        context = self.conversation.model.max_context
        used = min(context, len(self.conversation.last_prompt.ids) + len(last.ids))
        count, dropped = counted(len(self.conversation.messages), "message"), self.conversation.dropped
        left_out = f", and the model no longer reads the {dropped} oldest" if dropped else ""
        _say(f"{count}{left_out}; {used} of {context} tokens of context")


def _say(text: str) -> None:
    """Prints a line, broken between words."""
    print(WrappedLines(shutil.get_terminal_size().columns).push(text))


def statistics(answer: Generation) -> str:
    """Returns a line about an answer: tokens read and reused, time to the first token, speed."""
    stats = answer.stats
    rate = speed(stats.decode_tokens, stats.decode_s)
    cached = f" ({stats.cached_tokens} more from the cache)" if stats.cached_tokens else ""
    if stats.checked_steps:
        rate += f", {stats.accepted_tokens} of {stats.guessed_tokens} guesses correct in {stats.checked_steps} steps"
    return (
        f"read {counted(stats.prefill_tokens, 'token')}{cached}, first token after {stats.prefill_s:.2f} s, "
        f"{counted(len(answer.ids), 'token')}{rate}"
    )


def saved_messages(path: Path) -> list[dict[str, Any]]:
    """Returns the messages of a saved conversation. Raises FileError, naming the file, for anything else."""
    name, instead = quoted(path, 300), "give a file that /save wrote"
    if not path.exists():
        raise FileError(f"{name} does not exist; {instead}")
    try:
        found = read_json(path)
    except FileError as error:
        raise FileError(f"{error}; {instead}") from None
    if "version" not in found:
        raise FileError(f"{name} is not a saved conversation: it has no version; {instead}")
    if found["version"] != VERSION:
        other = f"is a saved conversation of version {written(found['version'])}, not {VERSION}"
        raise FileError(f"{name} {other}; {instead}")
    try:
        return checked_messages(found.get("messages"))
    except GlgptError as error:
        why = str(error).partition("; ")[0]  # omits what the error tells callers in Python to do
        raise FileError(f"{name} is not a saved conversation: {why}; {instead}") from None


class WrappedLines:
    """Breaks streamed text between words: a word that reaches the edge of the terminal moves to the next line."""

    def __init__(self, columns: int) -> None:
        # The last column is not used: after a character in it, the cursor's place depends on the terminal.
        self._columns = columns - 1
        self._at, self._word = 0, ""  # column of the cursor, and the written part of the current word

    def push(self, text: str) -> str:
        """Returns the characters to write for more text.

        If the current word does not fit the line, these characters first erase its written part, and then repeat this
        part in the next line.
        """
        return "".join(map(self._next, text.expandtabs(4)))

    def _next(self, char: str) -> str:
        width, full = _width(char), ""
        if char == "\n":
            self._at, self._word = 0, ""
            return char
        if self._at + width > self._columns:
            own = _width(self._word)
            if char == " " or own >= self._columns // 2:  # moving such a long word would leave half a line empty
                self._word, own = "", 0
            erase = f"\x1b[{own}D\x1b[K" if own else ""
            full, self._at = f"{erase}\n{self._word}", own
            if char == " ":  # the line break replaces the blank
                return full
        self._word = "" if char == " " else self._word + char
        self._at += width
        return full + char


def _width(text: str) -> int:
    from wcwidth import wcwidth

    return sum(max(0, wcwidth(char)) for char in text)


def printable(text: str) -> str:
    """Returns the text without control characters, which could change the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _session(commands: list[str]) -> PromptSession[str]:
    """Returns the line editor, with history and completion of commands."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    completer = WordCompleter(commands, sentence=True)
    return PromptSession(completer=completer, complete_while_typing=False, key_bindings=keys)
