"""Runs the commands and Python blocks of README and docs/guide, and checks the form of all documents.

- A `sh` block holds commands. A `console` block holds commands after `$ `, and their output. A `python` block is a
  program; if a block without a language follows, that block is the program's output.
- A document's blocks run in order in a folder that holds `play.txt` and `held.txt`. Training commands run with a small
  shape and few steps. An example of output may leave out lines (`…`). Lines with times are not compared.
- `<!-- not run: REASON -->` before a block states why the block cannot run here. Its commands must still parse.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import glgpt
from glgpt.cli import main
from glgpt.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "tests/data/shakespeare-validation.txt").read_text(encoding="utf-8")
RUN = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
DOCUMENTS = [
    *RUN,
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
]
# Number of blocks that are not run, by reason. A change that marks more blocks as not run must also change this number,
# so that a reviewer notices.
NOT_RUN = {"browser": 5, "needs SmolLM2": 8, "needs torch": 2, "network": 5, "server": 16, "setup": 2, "time": 12}
FENCE = re.compile(r"(?:<!-- not run: ([\w ]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = "--n-layer 1 --n-head 1 --n-embd 16 --context 16 --batch 2 --eval-tokens 64 --sample-tokens 8".split()
STEPS = 3
TIMED = re.compile(r"\d(/s| ms\b| s\b)|/s\b")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    not_run: str
    line: int
    prints: str = ""


def blocks(path: Path) -> list[Block]:
    """Returns the fenced blocks of a document. A block without a language is the output of the Python block above."""
    text, found = path.read_text(encoding="utf-8"), list[Block]()
    for match in FENCE.finditer(text):
        reason, language, body = match[1] or "", match[2], match[3]
        line = text.count("\n", 0, match.start()) + 1
        if not language and found and found[-1].language == "python":
            found[-1] = Block("python", found[-1].text, found[-1].not_run, found[-1].line, body)
        else:
            found.append(Block(language, body, reason, line))
    return found


def commands(block: Block) -> Iterator[tuple[list[str], str]]:
    """Yields the words of each command of a block, and the output that the document shows for the command."""
    text = block.text.replace("\\\n", " ")
    if block.language == "sh":
        for line in text.splitlines():
            if words := shlex.split(line, comments=True):
                yield words, ""
    elif block.language == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield shlex.split(line, comments=True), output


def check_make(words: list[str]) -> None:
    targets = [word for word in words[1:] if "=" not in word]
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


def parses(words: list[str]) -> None:
    """Asserts that a command that is not run here exists and has these options."""
    if words[0] == "make":
        check_make(words)
    elif words[0] == "glgpt":
        assert callable(build_parser().parse_args(words[1:]).run), words


def smaller(words: list[str]) -> list[str]:
    """Returns a command's words, changed to do less: a small shape, few steps, two pictures, a score of few tokens."""
    if words[1] == "dump" and "--layers" not in words:
        return [*words, "--layers", "1", "--heads", "0-1"]
    if words[1] == "eval" and "--suite" in words and "--tokens" not in words:
        return [*words, "--tokens", "16"]
    if words[1] != "train":
        return [word.replace("@2000", f"@{STEPS}") for word in words]
    return [*words, "--steps", str(STEPS + 1)] if "--resume" in words else [*words, *SMALL, "--steps", str(STEPS)]


def less(code: str) -> str:
    """Returns a block of Python, changed to train a small shape for few steps."""
    code = code.replace(
        'preset="nano"', 'preset="nano", n_layer=1, n_head=1, n_embd=16, context=16, batch=2, eval_tokens=64'
    )
    code = re.sub(r"steps=\d+", lambda match: f"steps={STEPS + (len(match[0]) > 9)}", code)
    return code.replace("range(1, 201)", "range(1, 3)").replace("n_embd=64, n_layer=2", "n_embd=16, n_layer=1")


def shown(expected: str, printed: str) -> None:
    """Asserts that the lines of an example, except lines with times, are in the printed text."""
    for line in expected.splitlines():
        if line.strip() not in ("", "…") and not TIMED.search(line):
            assert line.rstrip() in [real.rstrip() for real in printed.splitlines()], f"{line!r} is not in:\n{printed}"


def execute(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    if block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(less(block.text), f"block at line {block.line}", "exec"), {"__name__": "__main__"})
        if block.prints:
            assert out.getvalue().split() == block.prints.split()
        return
    for words, output in commands(block):
        if words[0] == "glgpt":
            assert main(smaller(words)[1:]) == 0, (words, capsys.readouterr().err)
            shown(output, capsys.readouterr().out)
        else:
            check_make(words)


@pytest.mark.slow
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_the_commands_and_blocks_of_a_document_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if a command or a block that a reader may copy does not work, or prints something else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text(TEXT[:20_000], encoding="utf-8")
    (tmp_path / "held.txt").write_text(TEXT[:600], encoding="utf-8")
    for block in blocks(path):
        try:
            if block.not_run:
                for words, _ in commands(block):
                    parses(words)
                if block.language == "python":
                    compile(block.text, str(path), "exec")
            else:
                execute(block, capsys)
        except BaseException as error:
            error.add_note(f"{path.relative_to(ROOT)}:{block.line}") if hasattr(error, "add_note") else None
            raise


def test_blocks_that_do_not_run_are_counted() -> None:
    """Fails if a block is marked as not run without a change of `NOT_RUN`, or if a mark does not precede a block."""
    marked = Counter(block.not_run for path in {*DOCUMENTS} for block in blocks(path) if block.not_run)
    assert dict(marked) == NOT_RUN
    for path in DOCUMENTS:
        marks = path.read_text(encoding="utf-8").count("<!-- not run: ")
        assert path.name == "CONTRIBUTING.md" or marks == sum(bool(block.not_run) for block in blocks(path)), path


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted({*DOCUMENTS}), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_named_in_a_document_exist(path: Path) -> None:
    """Fails if a document names a command with an option that does not exist, such as a renamed one."""
    for span in re.findall(r"`(glgpt [^`…\n]+)`", path.read_text(encoding="utf-8")):
        names = re.findall(r"(?<![\w-])--[a-z][\w-]*", span)
        with contextlib.suppress(ValueError):
            check_options(shlex.split(span)[1:], names)


def subcommands(parser: Any) -> dict[str, Any]:
    """Returns the parsers of a parser's subcommands, by name."""
    groups = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0] if groups else {}


def check_options(words: list[str], names: list[str]) -> None:
    """Asserts that a command or its subcommand has these options."""
    parser: Any = build_parser()
    for word in words:
        if word not in subcommands(parser):
            break
        parser = subcommands(parser)[word]
    missing = [name for name in names if name not in parser._option_string_actions]
    assert not missing, f"{missing} of {words}"


@pytest.mark.parametrize("path", sorted({*DOCUMENTS}), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_cell_of_a_table_is_longer_than_200_characters(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            longest = max(line.strip("|").split("|"), key=len)
            assert len(longest.strip()) <= 200, longest


def test_the_readme_is_short_and_shows_python_early() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and lines.index("## Python") < 45


def test_the_python_reference_is_whole() -> None:
    named = re.findall(
        r"^::: glgpt\.(\w+)$", (ROOT / "docs/reference/python.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted([*named, "GPT2"]) == sorted(glgpt.__all__)  # GPT2 is described as an alias of LanguageModel


def test_the_reference_has_every_command() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^## glgpt (\w+)$", text, re.MULTILINE)} == {*subcommands(build_parser())}
