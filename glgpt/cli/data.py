"""`glgpt data`: texts to learn from."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict

from glgpt.cli.commands import report
from glgpt.cli.options import Parser, above_zero, names, not_negative, size
from glgpt.cli.progress import progress
from glgpt.data.books import BOOKS
from glgpt.data.bundled import SETS, bundled
from glgpt.data.cleaning import STEPS, clean
from glgpt.data.fetching import MIRROR, MOST, TIME_LIMIT_S, fetch
from glgpt.data.inspecting import inspect
from glgpt.errors import GlgptError, quoted
from glgpt.system.files import written_whole
from glgpt.system.outputs import output_file
from glgpt.text.files import Text


def add_data_commands(p: Parser) -> None:
    """The subcommands of `glgpt data`."""
    sub = p.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, run: object, text: str, example: str) -> Parser:
        command: Parser = sub.add_parser(
            name, help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False
        )
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print the figures as JSON")
        return command

    add("list", run_list, "the sets that come with glgpt, and some books", "glgpt data list")
    example = "glgpt data fetch addition --out sums.txt\n  glgpt data fetch book:1342 --out novel.txt"
    c = add("fetch", run_fetch, "write a set, a book or the text at an address to a file", example)
    c.add_argument("name", metavar="NAME", help="a set of glgpt data list, book:N of Project Gutenberg, or an address")
    c.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    c.add_argument("--encoding", default="utf-8", metavar="NAME", help="what the text is encoded in (default utf-8)")
    c.add_argument("--mirror", default=MIRROR, metavar="URL", help=f"where books are fetched from (default {MIRROR})")
    c.add_argument("--most", type=size, default=MOST, metavar="SIZE", help="refuse a larger text (default 1GiB)")
    c.add_argument(
        "--timeout", type=above_zero, default=TIME_LIMIT_S, metavar="SECONDS", help="give up after (default: one hour)"
    )
    c = add("inspect", run_inspect, "sizes and scripts of text files", "glgpt data inspect play.txt")
    c.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text, read one file after another as one text")
    c.add_argument(
        "--validation", type=not_negative, default=0.1, metavar="SHARE", help="the last share, held back (default 0.1)"
    )
    c = add("clean", run_clean, "clean text files up into one", "glgpt data clean a.txt b.txt --out play.txt")
    c.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; each file is one document")
    c.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    c.add_argument("--steps", type=names, default=list(STEPS), metavar="STEP,…", help=f"default: {','.join(STEPS)}")


def run_list(args: argparse.Namespace) -> int:
    """`glgpt data list`."""
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
                "any other book of Project Gutenberg has a number too",
                "write one to a file: glgpt data fetch NAME --out FILE",
            ]
        ),
    )
    return 0


def run_fetch(args: argparse.Namespace) -> int:
    """`glgpt data fetch`."""
    out = output_file(args.out)
    if args.name in SETS:
        data = bundled(args.name).encode()
        figures = {"source": f"glgpt {args.name}", "bytes": len(data)}
    else:
        with progress("fetching", "B") as show:
            limits = {"most": args.most, "timeout": args.timeout}
            found = fetch(args.name, mirror=args.mirror, encoding=args.encoding, progress=show, **limits)
        data, figures = found.path.read_bytes(), found.record()
    with written_whole(out) as file:
        file.write(data)
    hint = f"train on it with: glgpt train {shlex.quote(args.out)}"
    report(
        args,
        figures | {"out": args.out},
        f"{quoted(args.out)}: {len(data):,} bytes from {quoted(figures['source'], 300)}\n{hint}",
    )
    return 0


def run_inspect(args: argparse.Namespace) -> int:
    """`glgpt data inspect`."""
    if not args.validation < 1:
        raise GlgptError(f"--validation is {args.validation:g}; it must be a share below 1")
    found = inspect(Text.of_files(args.files), args.validation)
    scripts = ", ".join(f"{name} {share:.1%}" for name, share in found.scripts.items()) or "none"
    report(
        args,
        asdict(found),
        f"{found.bytes:,} bytes, {found.characters:,} characters, {found.distinct:,} of them different, "
        f"{found.lines:,} lines\n"
        f"letters: {scripts}\nheld back to validate: the last {found.held_back:,} bytes",
    )
    return 0


def run_clean(args: argparse.Namespace) -> int:
    """`glgpt data clean`."""
    out = output_file(args.out)
    documents = ["".join(piece for piece, _ in Text.of_files([file]).pieces()) for file in args.files]
    text, removed = clean(documents, args.steps)
    if not text:
        raise GlgptError("nothing is left of the text after cleaning it up")
    with written_whole(out) as file:
        file.write(text.encode())
    lines = [f"{r.step:<11}{r.characters:>9,} characters at {r.places:,} places" for r in removed]
    figures = {"out": args.out, "characters": len(text), "removed": [asdict(r) for r in removed]}
    report(args, figures, "\n".join([*lines, f"{quoted(args.out)}: {len(text):,} characters"]))
    return 0
