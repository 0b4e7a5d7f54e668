"""`glgpt data`: lists, fetches, inspects and cleans training texts."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict

from glgpt.cli.argument_parser import Parser, Run, Subparsers, add_command, add_group
from glgpt.cli.common import add_json_option, report
from glgpt.cli.option_types import above_zero, names, not_negative, size
from glgpt.cli.progress import progress
from glgpt.data.books import BOOKS
from glgpt.data.bundled import SETS, bundled
from glgpt.data.cleaning import STEPS, clean
from glgpt.data.fetching import MIRROR, TIME_LIMIT_S, fetch
from glgpt.data.inspecting import inspect
from glgpt.errors import GlgptError, quoted
from glgpt.system.files import written_whole
from glgpt.system.outputs import output_file
from glgpt.text.files import Text

EXAMPLES = """glgpt data list
glgpt data fetch book:1342 --out novel.txt
glgpt data clean novel.txt --out clean.txt
glgpt data inspect clean.txt
glgpt train clean.txt"""


def add_parser(sub: Subparsers) -> None:
    """Adds the command and its subcommands."""
    group = add_group(sub, "data", "list, fetch, inspect and clean training texts", EXAMPLES)

    def add(name: str, run: Run, text: str, examples: str, more: str = "") -> Parser:
        command = add_command(group, name, run, text, examples, more)
        add_json_option(command)
        return command

    add("list", run_list, "list the data sets that come with glgpt, and some books", "glgpt data list")
    examples = """glgpt data fetch addition --out sums.txt
glgpt data fetch book:1342 --out novel.txt
glgpt data fetch https://example.org/play.txt --out play.txt --encoding latin-1"""
    c = add("fetch", run_fetch, "write a data set, a book or the text at a URL to a file", examples)
    text = "a data set of glgpt data list, book:N (number N at Project Gutenberg), or a URL"
    c.add_argument("name", metavar="NAME", help=text)
    c.add_argument("--out", required=True, metavar="FILE", help="file to write, as UTF-8")
    c.add_argument("--encoding", metavar="NAME", help="encoding of the source (default utf-8)")
    c.add_argument("--mirror", default=MIRROR, metavar="URL", help=f"server to fetch books from (default {MIRROR})")
    c.add_argument("--max-size", type=size, metavar="SIZE", help="maximum size of the text (default 1GiB)")
    text = "maximum time for all tries together (default: one hour)"
    c.add_argument("--timeout", type=above_zero, default=TIME_LIMIT_S, metavar="SECONDS", help=text)
    c = add(
        "inspect", run_inspect, "count the characters, lines and scripts of text files", "glgpt data inspect play.txt"
    )
    c.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; several files are read as one text")
    text = "share of the text, at its end, held out for validation (default 0.1)"
    c.add_argument("--validation", type=not_negative, default=0.1, metavar="SHARE", help=text)
    examples = """glgpt data clean a.txt b.txt --out play.txt
glgpt data clean novel.txt --steps headers,lines --out clean.txt"""
    more = """Steps:
  headers     remove the licence before and after a Project Gutenberg book
  lines       normalise line endings to LF
  blanks      remove blanks at the ends of lines, and repeated blank lines
  duplicates  remove documents that repeat an earlier one exactly"""
    c = add("clean", run_clean, "clean text files and join them into one", examples, more)
    c.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; each file is one document")
    c.add_argument("--out", required=True, metavar="FILE", help="file to write")
    text = f"steps to apply (default: {','.join(STEPS)})"
    c.add_argument("--steps", type=names, default=list(STEPS), metavar="STEP,...", help=text)


def run_list(args: argparse.Namespace) -> int:
    """Runs `glgpt data list`."""
    rows: list[dict[str, object]] = [
        {"name": name, "about": s.about, "source": s.source, "bytes": len(s.make().encode())}
        for name, s in SETS.items()
    ]
    lines = [f"{row['name']:<9}{row['bytes']:>9,} bytes  {row['about']} ({row['source']})" for row in rows]
    rows += [{"name": f"book:{b.number}", "about": f"{b.title}, {b.author}", "source": b.url()} for b in BOOKS]
    lines += [f"book:{b.number:<5}{'':>14}  {b.title}, {b.author}" for b in BOOKS]
    report(
        args,
        rows,
        "\n".join(
            [
                *lines,
                "book:N fetches any other book of Project Gutenberg by its number N",
                "write a data set or book to a file: glgpt data fetch NAME --out FILE",
            ]
        ),
    )
    return 0


def run_fetch(args: argparse.Namespace) -> int:
    """Runs `glgpt data fetch`."""
    out = output_file(args.out)
    given = {"encoding": args.encoding, "most": args.max_size}
    given = {name: value for name, value in given.items() if value is not None}
    if args.name in SETS:
        if given:
            raise GlgptError(f"--encoding and --max-size are for books and URLs; {args.name} comes with glgpt")
        data = bundled(args.name).encode()
        results = {"source": f"glgpt {args.name}", "bytes": len(data)}
    else:
        with progress("fetching", "B") as show:
            found = fetch(args.name, mirror=args.mirror, timeout=args.timeout, progress=show, **given)
        data, results = found.path.read_bytes(), found.record()
    with written_whole(out) as file:
        file.write(data)
    hint = f"train on it with: glgpt train {shlex.quote(args.out)}"
    report(
        args,
        results | {"out": args.out},
        f"{quoted(args.out)}: {len(data):,} bytes from {quoted(results['source'], 300)}\n{hint}",
    )
    return 0


def run_inspect(args: argparse.Namespace) -> int:
    """Runs `glgpt data inspect`."""
    if not args.validation < 1:
        raise GlgptError(f"--validation is {args.validation:g}; it must be below 1, such as 0.1")
    found = inspect(Text.of_files(args.files), args.validation)
    scripts = ", ".join(f"{name} {share:.1%}" for name, share in found.scripts.items()) or "none"
    report(
        args,
        asdict(found),
        f"{found.bytes:,} bytes, {found.characters:,} characters ({found.distinct:,} distinct), "
        f"{found.lines:,} lines\n"
        f"letters: {scripts}\nheld out for validation: the last {found.held_back:,} bytes",
    )
    return 0


def run_clean(args: argparse.Namespace) -> int:
    """Runs `glgpt data clean`."""
    out = output_file(args.out)
    documents = ["".join(piece for piece, _ in Text.of_files([file]).pieces()) for file in args.files]
    text, removed = clean(documents, args.steps)
    if not text:
        raise GlgptError("the text is empty after cleaning; leave out a step with --steps")
    with written_whole(out) as file:
        file.write(text.encode())
    lines = [f"{r.step:<11}{r.characters:>9,} characters at {r.places:,} places" for r in removed]
    results = {"out": args.out, "characters": len(text), "removed": [asdict(r) for r in removed]}
    report(args, results, "\n".join([*lines, f"{quoted(args.out)}: {len(text):,} characters"]))
    return 0
