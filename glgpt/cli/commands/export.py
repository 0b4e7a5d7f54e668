"""`glgpt export`: writes a model as a web page."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import (
    add_adapter_option,
    add_device_options,
    add_json_option,
    add_model_option,
    counted,
    device_options,
    report,
)
from glgpt.cli.format_check import add_check_option, check_format
from glgpt.cli.option_types import names, positive, size
from glgpt.cli.progress import Phases
from glgpt.cli.split_options import WIRE
from glgpt.data.books import NO_BOOKS, OPEN_MIRROR
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.program.formats import AS_STORED
from glgpt.system.parallel import MAX_PROCESSES
from glgpt.training.settings import PRECISIONS
from glgpt.wire import hidden

DTYPE = "f16 for the embedded model, stored for .gguf files, else f32"

if TYPE_CHECKING:
    from glgpt.page.split import SplitPage


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "export",
        run,
        "write a model as a static web page",
        "glgpt export --out page  # the embedded model\n"
        "glgpt export --model gpt2 --dtype f16 --out site/gpt2\n"
        "glgpt export --model gpt2 --prompt 'Once upon a time' --prompt 'Dear Sir' --out page\n"
        "glgpt export --single-file --out shakespeare.html  # opens from disk\n"
        "glgpt export --embed --out module  # a module for your own page\n"
        "glgpt export --train --out page  # the page can also train\n"
        "glgpt export --site https://example.org/page/ --out page\n"
        "glgpt export --server ws://127.0.0.1:8043 --out page  # a server runs some blocks\n"
        "glgpt export --split 2 --server ws://127.0.0.1:8043 --out page\n"
        "glgpt export --player --out player  # no weights: visitors open their own model files",
        "The page runs the model in the visitor's browser with WebGL2. Any web server can publish the folder;\n"
        "glgpt serve shows it on this machine.",
    )
    add_model_option(p)
    add_adapter_option(p)
    p.add_argument("--out", required=True, metavar="DIR", help="folder to write, or an .html file with --single-file")
    p.add_argument(
        "--shard-size",
        type=size,
        default=24 << 20,
        metavar="SIZE",
        help="maximum size of a weight file (default 24MiB)",
    )
    p.add_argument("--single-file", action="store_true", help="one HTML file that opens from disk, for small models")
    p.add_argument(
        "--embed", action="store_true", help="write a module, glgpt.js, for your own pages instead of a page"
    )

    g = p.add_argument_group("texts of the page")
    text = "name of the model (default: its name on the Hub or in config.json, or its folder's name)"
    g.add_argument("--name", metavar="NAME", help=text)
    text = "example prompt; may repeat: the page opens with the first and offers all of them"
    g.add_argument("--prompt", action="append", metavar="TEXT", help=text)
    g.add_argument("--trained-on", metavar="TEXT", help="description of the training data, shown at the top")
    text = "address at which the page will be published; links to this address then show a preview picture"
    g.add_argument("--site", metavar="URL", help=text)
    g.add_argument("--source", metavar="URL", help="address of the page's source code, linked at the top")

    g = p.add_argument_group("training in the page")
    g.add_argument("--train", action="store_true", help="add a tab that trains models of the sizes of --preset")
    g.add_argument(
        "--preset",
        type=names,
        action="extend",
        metavar="NAME,NAME,...",
        help="sizes that the page can train (default nano,tiny)",
    )
    text = "arithmetic of the page's training; f16 takes less memory (default f32)"
    g.add_argument("--precision", choices=PRECISIONS, help=text)
    books = f"mirror of gutenberg.org to fetch books from; {NO_BOOKS} to offer no books (default {OPEN_MIRROR})"
    g.add_argument("--books", metavar="URL", help=books)
    hosts = "let visitors also fetch training texts from this server; may repeat"
    g.add_argument("--fetch-from", action="append", metavar="URL", help=hosts)
    text = "context length of the page, in tokens; a shorter one takes less memory (default: the model's, at most 2048)"
    add_json_option(p)
    add_device_options(p, memory=False, default=DTYPE, context=text)
    add_check_option(p)
    _add_split_options(p)
    _add_player_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt export`."""
    from glgpt.page.export import export
    from glgpt.page.export_options import ExportOptions
    from glgpt.page.reading import Reading
    from glgpt.page.training import OFFERED

    if args.player:
        return _run_player(args)
    if args.shape or args.no_common_shapes:
        raise ArgumentError("--shape and --no-common-shapes need --player, a page in which visitors open a model")
    if args.preset and not args.train:
        raise GlgptError("--preset needs --train: it sets the sizes that the page can train")
    if args.precision and not args.train:
        raise GlgptError("--precision needs --train: it sets the arithmetic of the page's training")
    if (args.books or args.fetch_from) and not args.train:
        raise GlgptError("--books and --fetch-from need --train: they are for the page's Train tab")
    out = quoted(args.out)
    device, split = device_options(args), _split_page(args)
    dtype = device.pop("dtype") or ("f16" if args.model is None and split is None else None)
    options = ExportOptions(
        dtype,
        shard_size=args.shard_size,
        single_file=args.single_file,
        embed=args.embed,
        name=args.name,
        prompts=args.prompt or (),
        train=(args.preset or OFFERED) if args.train else (),
        precision=args.precision or "f32",
        trained_on=args.trained_on,
        reading=Reading(args.books, args.fetch_from or ()),
        split=split,
        site=args.site,
        source=args.source,
        context=device.pop("context"),
        adapter=args.adapter,
    )
    with Phases("B") as phases:
        manifest = export(args.model, args.out, options, progress=phases.show, phase=phases.begin, **device)
    weights = sum(shard["bytes"] for shard in manifest["shards"])
    results: dict[str, object] = {
        "model": manifest["model"],
        "dtype": AS_STORED if manifest["stored"] else manifest["dtype"],
    }
    cost = check_format(args, dtype) if dtype else None
    held = f"{AS_STORED} ({', '.join(manifest['stored'])})" if manifest["stored"] else manifest["dtype"]
    results |= {"kl": cost.kl} if cost else {}
    path = shlex.quote(args.out)
    hint = f"open {path}" if args.single_file else f"view it with: glgpt serve {path}"
    report(
        args,
        results | {"out": args.out, "weights_bytes": weights, "shards": len(manifest["shards"])},
        f"{out}: {manifest['model']} {held}, {weights / 1e6:.0f} MB of weights; {hint}",
    )
    return 0


def _add_player_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a page in which visitors open their own model files."""
    group = parser.add_argument_group("a page without weights")
    text = "write no weights: visitors open GGUF and safetensors files of common models, and of models given by --shape"
    group.add_argument("--player", action="store_true", help=text)
    text = "also open models of the shape (architecture and sizes) in a config.json, GGUF file or folder; may repeat"
    group.add_argument("--shape", action="append", metavar="PATH", help=text)
    group.add_argument("--no-common-shapes", action="store_true", help="open only the models given by --shape")


def _run_player(args: argparse.Namespace) -> int:
    from glgpt.page.player.export import PlayerOptions, export_player

    device = device_options(args)
    unused = {
        "--model": args.model, "--dtype": device["dtype"], "--single-file": args.single_file, "--embed": args.embed,
        "--train": args.train, "--server": args.server, "--site": args.site, "--prompt": args.prompt,
        "--adapter": args.adapter,
    }  # fmt: skip
    if given := [name for name, value in unused.items() if value]:
        raise ArgumentError(f"{given[0]} cannot be combined with --player, whose page has no model")
    options = PlayerOptions(
        args.shape or (),
        not args.no_common_shapes,
        device["context"],
        args.fetch_from or (),
        device["cache_dtype"],
        MAX_PROCESSES,
    )
    with Phases("programs") as phases:
        phases.begin("recording programs")
        player = export_player(args.out, options, progress=phases.show)
    count, hint = len(player["shapes"]), f"view it with: glgpt serve {shlex.quote(args.out)}"
    text = f"{quoted(args.out)}: programs of {counted(count, 'shape')}; {hint}"
    report(args, {"out": args.out, "shapes": [shape["name"] for shape in player["shapes"]]}, text)
    return 0


def _add_split_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a page that runs only some blocks, while a server runs the others."""
    group = parser.add_argument_group("split over a server")
    group.add_argument(
        "--server", metavar="URL",
        help="server of glgpt split serve that can run some of the blocks; the visitor chooses how many",
    )  # fmt: skip
    group.add_argument(
        "--split", type=positive, metavar="K", help="put only the embedding and the first K blocks into the page"
    )
    group.add_argument(
        "--head", choices=("server", "page"), default="server", help="where logits are computed (default server)"
    )
    group.add_argument("--wire", choices=hidden.FORMATS, help=WIRE)


def _split_page(args: argparse.Namespace) -> SplitPage | None:
    """Returns the values of the options of `_add_split_options`; None without --server."""
    if args.server is None:
        for name in ("split", "head", "wire"):
            if getattr(args, name) not in (None, "server"):
                raise ArgumentError(f"--{name} needs --server URL, which runs the blocks that are not in the page")
        return None
    from glgpt.page.split import SplitPage

    return SplitPage(args.split, args.server, args.wire or "f32", args.head == "page")
