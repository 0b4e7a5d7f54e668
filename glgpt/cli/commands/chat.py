"""`glgpt chat`: holds a conversation with a model; messages come from a terminal, from options or from stdin."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.chat_terminal import READING, ChatTerminal, statistics
from glgpt.cli.common import (
    add_adapter_option,
    add_chat_model_options,
    add_device_options,
    add_json_option,
    add_sampling_options,
    chat_model,
    counted,
    draw_in_one_thread,
    open_model,
    read_input,
    report,
    sampling_options,
)
from glgpt.cli.option_types import positive
from glgpt.cli.progress import awaited, progress
from glgpt.cli.split_options import add_client_options
from glgpt.errors import GlgptError, is_utf8, quoted
from glgpt.inference.conversation import Conversation
from glgpt.inference.model import CHAT_TOKENS
from glgpt.system.files import named_errors
from glgpt.text.untrusted.renderer import Renderer


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "chat",
        run,
        "chat with a model",
        "glgpt chat  # SmolLM2; make models installs it\n"
        'glgpt chat --system "Answer in one sentence." --temperature 0.7\n'
        "glgpt chat model.gguf --message 'What is the capital of France?' --message 'And of Spain?'\n"
        "echo 'What is the capital of France?' | glgpt chat --temperature 0 --json",
        "In a terminal, type a message and press Enter; /help lists commands such as /regenerate and /save FILE.\n"
        "Ctrl-C stops an answer, Ctrl-D ends the chat. With --message, or if stdin is not a terminal, the command\n"
        "prints the answer to each message and ends.",
    )
    add_chat_model_options(p)
    add_adapter_option(p)
    p.add_argument(
        "--system", metavar="TEXT", help="system message, which says how to answer (default: the template's)"
    )
    p.add_argument(
        "--message",
        action="append",
        metavar="TEXT",
        help="print the answer to this message; repeat the option for further messages",
    )
    p.add_argument(
        "--tokens", type=positive, default=CHAT_TOKENS, metavar="N",
        help=f"maximum number of tokens of an answer (default {CHAT_TOKENS})",
    )  # fmt: skip
    p.add_argument(
        "--cache", metavar="FILE",
        help="load the KV cache of an earlier chat from this file, if it exists, and save the new one at the end: a "
        "chat with the same beginning computes only its new tokens; the file contains the chat's text",
    )  # fmt: skip
    add_sampling_options(p, chat=True)
    add_json_option(p, "print the messages and statistics as JSON; with --message or stdin")
    add_device_options(p)
    add_client_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt chat`."""
    args.model = chat_model(args)
    sampling = sampling_options(args)  # raises for values out of range before the model loads
    messages = _messages(args)
    if messages is None and args.json:
        raise GlgptError("--json prints a finished conversation; give --message, or messages on stdin")
    cache = _cache_file(args)
    draw_in_one_thread(args)
    with Renderer() as renderer:
        renderer.start()  # the renderer's process starts while the model loads
        with open_model(args) as model:
            model.chat_template.renderer = renderer
            conversation = Conversation(model, system=args.system, tokens=args.tokens, seed=args.seed, **sampling)
            with _cache(cache, conversation):
                if messages is None:
                    return ChatTerminal(conversation).run()
                return _answers(args, conversation, messages)


def _cache_file(args: argparse.Namespace) -> Path | None:
    """Returns the path of --cache; None without it.

    Raises GlgptError, before the model loads, if the cache cannot be saved there or the model is split over servers.
    """
    path = None if args.cache is None else Path(args.cache).expanduser()
    if path and (args.split or args.plan):
        raise GlgptError("--cache cannot be combined with --split or --plan: the servers hold the caches; leave it out")
    if path and path.is_dir():
        raise GlgptError(f"--cache {quoted(path, 300)} is a folder; give a file")
    if path and not path.parent.is_dir():
        raise GlgptError(f"--cache {quoted(path, 300)}: its folder does not exist; create it, or give another file")
    if path and not os.access(path.parent, os.W_OK | os.X_OK):
        raise GlgptError(f"--cache {quoted(path, 300)}: its folder is not writable; give a file in another folder")
    return path


@contextlib.contextmanager
def _cache(path: Path | None, conversation: Conversation) -> Iterator[None]:
    """Loads the model's KV cache from the file, if the file exists. Saves the cache when the block completes.

    Saves nothing if the model has not answered, or if an error ends the block.
    """
    if path and path.exists():
        tokens = conversation.model.load_cache(path)
        print(f"the cache of {counted(tokens, 'token')} was loaded from {quoted(path, 300)}", file=sys.stderr)
    yield
    if path and conversation.last:
        with progress("reading the last answer for the cache"):
            conversation.read_ahead()
        tokens = conversation.model.save_cache(path)
        print(f"the cache of {counted(tokens, 'token')} was saved in {quoted(path, 300)}", file=sys.stderr)


def _messages(args: argparse.Namespace) -> list[str] | None:
    """Returns the messages of `--message`, or stdin as one message; None if messages are typed in a terminal."""
    if args.message is None and sys.stdin is not None and sys.stdin.isatty():
        return None
    given = [read_input("-").strip()] if args.message is None else list(args.message)
    if any(not text.strip() for text in given):
        raise GlgptError("a message is empty; give --message TEXT, or a message on stdin")
    if not all(map(is_utf8, given)):
        raise GlgptError("a message is not UTF-8 text")
    return given


def _answers(args: argparse.Namespace, conversation: Conversation, messages: list[str]) -> int:
    """Prints the answers to messages, with an empty line between two answers."""
    turns: list[dict[str, Any]] = []
    for i, text in enumerate(messages):
        answer = conversation.send(text)
        if before := conversation.notice:
            print(before, file=sys.stderr)
        with named_errors(Path("stdout")):
            print("\n" if i and not args.json else "", end="")
            for piece in awaited(READING, answer):
                print("" if args.json else piece, end="", flush=True)
            print("" if args.json else "\n", end="", flush=True)
        assert conversation.last
        turns.append(conversation.last.figures() | {"cached_tokens": conversation.last.stats.cached_tokens})
        if conversation.notice != before:
            print(conversation.notice, file=sys.stderr)
        if not args.json:
            print(statistics(conversation.last), file=sys.stderr)
    if args.json:
        own = {"model": conversation.model.name, "context": conversation.model.context, "dropped": conversation.dropped}
        report(args, own | {"messages": conversation.messages, "turns": turns}, "")
    return 0
