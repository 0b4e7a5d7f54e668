"""Every subcommand, its options and its example."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from glgpt import __version__
from glgpt.cli import commands, data, federate, split, train
from glgpt.cli.format_check import add_check_option
from glgpt.cli.options import (
    Parser,
    above_zero,
    add_device_options,
    bias,
    count,
    fraction,
    ids,
    names,
    not_negative,
    positive,
    size,
)
from glgpt.data.books import NO_BOOKS, OPEN_MIRROR
from glgpt.training.settings import PRECISIONS

MODEL = "a folder, RUN@400 for a kept step, or a Hub name such as gpt2; 'shakespeare' is the embedded model"


Add = Callable[[str, Callable[[argparse.Namespace], int], str, str], Parser]  # name, what runs it, help, example


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; parsed arguments carry the function to call as `run`."""
    parser = Parser(prog="glgpt", description="GPT-2 run entirely as fragment-shader passes.")
    parser.add_argument("--version", action="version", version=f"glgpt {__version__}")
    sub = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, example: str) -> Parser:
        command = sub.add_parser(name, help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    for command in COMMANDS:
        command(add)
    return parser


def _generate(add: Add) -> None:
    p = add(
        "generate", commands.run_generate, "stream text from a model", 'glgpt generate "To be" --tokens 60 --seed 1'
    )
    _prompt(p, "the text to continue, or - to read it from stdin (default: none)", most=1)
    _model(p)
    p.add_argument("--tokens", type=count, default=200, metavar="N", help="how many tokens to add (default 200)")
    p.add_argument("--temperature", type=not_negative, default=0.8, metavar="T", help="0 is greedy (default 0.8)")
    p.add_argument("--top-k", type=positive, metavar="K", help="sample from the K likeliest tokens")
    p.add_argument("--top-p", type=fraction, metavar="P", help="sample from the likeliest tokens that make up P")
    p.add_argument(
        "--min-p", type=fraction, metavar="P", help="sample from tokens at least P times the likeliest one's"
    )
    p.add_argument(
        "--repetition-penalty", type=above_zero, metavar="R", help="above 1, makes tokens that the text has less likely"
    )
    p.add_argument(
        "--logit-bias", type=bias, action="append", metavar="ID=B",
        help="add B to the logit of token ID, such as 198=-2.5; -inf forbids it (may repeat)",
    )  # fmt: skip
    p.add_argument("--seed", type=count, metavar="S", help="same seed, same text (default: a new one, printed)")
    p.add_argument("--no-eos", dest="eos", action="store_false", help="continue past the model's ends of text")
    p.add_argument("--stop", action="append", metavar="TEXT", help="end before this text (may repeat)")
    p.add_argument(
        "--samples", type=positive, default=1, metavar="N", help="continuations side by side, of seeds S, S + 1, ..."
    )
    _figures(p)
    add_check_option(p)
    split.add_client_options(p)


def _logits(add: Add) -> None:
    p = add(
        "logits",
        commands.run_logits,
        "write a prompt's logits to a file",
        'glgpt logits "To be" --model gpt2 --out logits.npz',
    )
    _prompt(p, "the text, or - for stdin", most=2)
    _model(p)
    p.add_argument("--out", required=True, metavar="FILE.npz", help="holds `tokens` and `logits`")
    _figures(p)


def _compare(add: Add) -> None:
    p = add(
        "compare",
        commands.run_compare,
        "measure a model against reference logits; exit 1 beyond the tolerance",
        "glgpt compare --model gpt2 --reference transformers --prompt 'To be' --activations",
    )
    p.most = 1
    _model(p)
    p.add_argument("--reference", required=True, metavar="FILE.npz|transformers", help="stored, or run now in float64")
    p.add_argument("--prompt", action="append", metavar="TEXT", help="with transformers: what to run (may repeat)")
    p.add_argument("--ids", action="append", type=ids, metavar="ID,ID,...", help="token ids, in place of a prompt")
    p.add_argument("--activations", action="store_true", help="walk all intermediates and name the first that is off")
    text = "mean KL divergence of the logits from the reference's, in nats, at most (default 0.05)"
    p.add_argument("--kl", type=not_negative, metavar="K", help=text)
    text = "hold each value to A + R |reference| (default: relative errors by the format and the number of blocks)"
    p.add_argument("--atol", type=not_negative, metavar="A", help=text)
    p.add_argument("--rtol", type=not_negative, metavar="R", help="see --atol")
    _figures(p)


def _dump(add: Add) -> None:
    p = add(
        "dump",
        commands.run_dump,
        "draw attention patterns and other intermediates as PNGs",
        'glgpt dump "To be, or not to be" --out pictures --layers 0,3-5',
    )
    _prompt(p, "the text, or - for stdin", most=2)
    _model(p)
    p.add_argument("--out", required=True, metavar="DIR", help="folder to write to")
    p.add_argument(
        "--what",
        type=names,
        action="extend",
        metavar="WHAT,WHAT,...",
        help="attention, hidden, logits, or names or patterns such as h.*.mlp.act; may repeat (default attention)",
    )
    p.add_argument("--layers", action="append", metavar="RANGE", help="such as 0,3-5; may repeat (default all)")
    p.add_argument("--heads", action="append", metavar="RANGE", help="such as 0,3-5; may repeat (default all)")
    p.add_argument("--raw", action="store_true", help="also the textures as they are in memory, as .png and .npy")
    _figures(p, "print the manifest as JSON")


def _evaluate(add: Add) -> None:
    p = add(
        "eval",
        commands.run_evaluate,
        "a model's loss on a text file, or with --suite its whole score",
        "glgpt eval play.txt --model runs/play --window 256\n  glgpt eval runs/play --suite"
        "\n  glgpt eval held.txt --model gpt2 --suite --training play.txt --json",
    )
    p.late, p.most = "file", 2
    p.add_argument(
        "file", nargs="?", metavar="FILE", help="UTF-8 text, or - for stdin; with --suite also a run's folder"
    )
    _model(p)
    p.add_argument("--window", type=positive, metavar="N", help="tokens of context at most (default: the model's)")
    g = p.add_argument_group("score (--suite)")
    text = "accuracy, calibration and copies too, beside chance, n-gram models and the embedded model"
    g.add_argument("--suite", action="store_true", help=text)
    g.add_argument(
        "--training", action="append", metavar="FILE", help="what the model learned from (a run says itself)"
    )
    g.add_argument("--tokens", type=count, default=8192, metavar="N", help="score so many at most; 0: all (8192)")
    g.add_argument("--csv", action="store_true", help="print a line for each predictor")
    _figures(p)


def _train(add: Add) -> None:
    example = "glgpt train play.txt --preset nano --out runs/play"
    train.add_train_options(add("train", train.run_train, "train a model on text files", example))

    data.add_data_commands(add("data", data.run_list, "texts to learn from", "glgpt data list"))


def _tokenizer(add: Add) -> None:
    example = "glgpt tokenizer train play.txt --vocab 1024 --out my-tokenizer"
    train.add_tokenizer_commands(add("tokenizer", train.run_tokenizer_train, "make a tokenizer", example))


def _federate(add: Add) -> None:
    example = "glgpt federate serve play.txt --preset nano --quorum 2 --out runs/together"
    federate.add_federate_commands(add("federate", federate.run_serve, "train one model on many devices", example))


def _info(add: Add) -> None:
    p = add("info", commands.run_info, "the driver, its limits, the kernels chosen and why", "glgpt info --model gpt2")
    p.add_argument("--model", metavar="MODEL", help="also the texture memory that this model would need")
    _figures(p)


def _bench(add: Add) -> None:
    p = add("bench", commands.run_bench, "measure this device and the engine on it", "glgpt bench --json > bench.json")
    p.add_argument("--model", metavar="MODEL", help=f"{MODEL} (default: 124 M random weights)")
    p.add_argument("--quick", action="store_true", help="fewer shapes and repeats")
    p.add_argument(
        "--seconds",
        type=positive,
        default=120,
        metavar="S",
        help="how long it may take at most (default 120)",
    )
    p.add_argument(
        "--train",
        nargs="*",
        metavar="PRESET",
        help="training steps instead (default: nano and small); --dtype f16: in halves",
    )
    _figures(p, memory=False)


def _export(add: Add) -> None:
    p = add(
        "export",
        commands.run_export,
        "write a model as a static web page",
        "glgpt export --out page\n  glgpt export --model gpt2 --dtype f16 --out site/gpt2"
        "\n  glgpt export --model gpt2 --prompt 'Once upon a time' --prompt 'Dear Sir' --out page"
        "\n  glgpt export --embed --out module\n  glgpt export --train --out page"
        "\n  glgpt export --site https://example.org/page/ --out page"
        "\n  glgpt export --server ws://127.0.0.1:8043 --out page"
        "\n  glgpt export --split 2 --server ws://127.0.0.1:8043 --out page",
    )
    p.most = 1
    _model(p)
    p.add_argument("--out", required=True, metavar="DIR", help="folder to write, or an .html file with --single-file")
    p.add_argument("--shard-size", type=size, default=24 << 20, metavar="SIZE", help="of a weight file (24MiB)")
    p.add_argument("--single-file", action="store_true", help="one HTML file that opens from disk, for small models")
    p.add_argument("--embed", action="store_true", help="no page, but a module glgpt.js for pages of one's own")
    text = "what the page calls the model (default: its name on the Hub, in its config.json, or its folder's)"
    p.add_argument("--name", metavar="NAME", help=text)
    text = "a text to start from; may repeat: the page opens with the first and offers them all"
    p.add_argument("--prompt", action="append", metavar="TEXT", help=text)
    p.add_argument("--trained-on", metavar="TEXT", help="what the model was trained on, for the page's first line")
    text = "where the folder will be published: links to it then show a picture of the model at work"
    p.add_argument("--site", metavar="URL", help=text)
    p.add_argument("--source", metavar="URL", help="where the page's source is: its first lines link to it")
    p.add_argument("--train", action="store_true", help="a page that also trains models, of the sizes of --preset")
    p.add_argument(
        "--preset",
        type=names,
        action="extend",
        metavar="NAME,NAME,...",
        help="the sizes that the page can train (default nano,tiny)",
    )
    text = "of the page's training: f16 multiplies halves, in less memory (default f32)"
    p.add_argument("--precision", choices=PRECISIONS, help=text)
    books = (
        f"a mirror laid out as gutenberg.org, for the Train tab's books; {NO_BOOKS}: no books (default {OPEN_MIRROR})"
    )
    p.add_argument("--books", metavar="URL", help=books)
    hosts = "let the Train tab fetch texts from this server too, if its visitor asks for one; may repeat"
    p.add_argument("--fetch-from", action="append", metavar="URL", help=hosts)
    text = "tokens of the page's context (default: the model's positions, 2048 at most): fewer take less memory"
    _figures(p, memory=False, dtype=None, context=text)
    add_check_option(p)
    split.add_page_options(p)


def _split(add: Add) -> None:
    example = "glgpt split serve --blocks 4-5 --listen 8043"
    split.add_split_commands(add("split", split.run_split_serve, "run a model in several places", example))


def _serve(add: Add) -> None:
    example = "glgpt serve page\n  glgpt serve page --host 0.0.0.0    (a classroom: others on this network can open it)"
    p = add("serve", commands.run_serve, "serve an exported page", example)
    p.add_argument("folder", metavar="DIR", help="what glgpt export wrote")
    p.add_argument("--port", type=count, default=8042, metavar="PORT", help="0 takes a free one (default 8042)")
    host = "where to listen (default 127.0.0.1: this machine alone); 0.0.0.0: anyone on the network can open the page"
    p.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    names = "answer to this name too, such as that of a proxy; may repeat"
    p.add_argument("--allow-host", action="append", metavar="NAME", help=names)


def _model(parser: Parser) -> None:
    parser.add_argument("--model", metavar="MODEL", help=f"{MODEL} (default)")


def _prompt(parser: Parser, text: str, most: int) -> None:
    parser.late, parser.most = "prompt", most
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=text)
    parser.add_argument("--ids", type=ids, metavar="ID,ID,...", help="token ids in place of a text")


def _figures(parser: argparse.ArgumentParser, text: str = "print the figures as JSON", **options: Any) -> None:
    parser.add_argument("--json", action="store_true", help=text)
    add_device_options(parser, **options)


COMMANDS = (
    _generate,
    _logits,
    _compare,
    _dump,
    _evaluate,
    _train,
    _tokenizer,
    _federate,
    _info,
    _bench,
    _export,
    _split,
    _serve,
)
