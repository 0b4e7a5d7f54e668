"""The command line: every subcommand with its options, help and examples."""

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
    add_command,
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
from glgpt.program.formats import FORMATS
from glgpt.training.settings import PRECISIONS

MODEL = (
    "folder with config.json and weights, RUN@400 for a saved step of a run, or a Hugging Face Hub name such as gpt2; "
    "'shakespeare' is the embedded model"
)
EXAMPLES = """examples:
  glgpt generate "To be, or not to be"              text from the embedded Shakespeare model; no download
  glgpt generate "Once upon a time" --model gpt2    text from a model of the Hugging Face Hub
  glgpt train play.txt --out runs/play              train a model on your own text
  glgpt generate --model runs/play                  text from that model
  glgpt export --model runs/play --out page         a web page that runs it in the browser (WebGL2)
  glgpt serve page                                  open that page
  glgpt info                                        your GPU, its limits and the kernels chosen for it

glgpt COMMAND --help describes a command and its options. Exit status: 0 for success, 2 for bad input,
130 after Ctrl-C; glgpt compare returns 1 beyond the tolerance, glgpt train 1 if the loss diverges."""

# Arguments: the command's name, the function that runs it, its help, its examples, and a longer description
Add = Callable[..., Parser]


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; parsed arguments hold the function to call as `run`."""
    parser = Parser(
        prog="glgpt",
        description="Run, inspect and train GPT-2 and Llama models as fragment shaders: on any GPU with OpenGL 3.3,\n"
        "on the CPU with software OpenGL, or in a web page with WebGL2.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"glgpt {__version__}")
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, examples: str, description: str = ""
    ) -> Parser:
        command = add_command(sub, name, text, examples, description)
        command.set_defaults(run=run)
        return command

    for command in COMMANDS:
        command(add)
    return parser


def _generate(add: Add) -> None:
    p = add(
        "generate",
        commands.run_generate,
        "generate text from a prompt",
        'glgpt generate "To be" --tokens 60 --seed 1\n'
        "glgpt generate --model gpt2 --temperature 0 'The capital of France is'\n"
        "glgpt generate --model runs/play --top-k 40 --top-p 0.95 --samples 4\n"
        "glgpt generate - --model gpt2 --dtype q8 --stop Yours < letter.txt",
        "Prints the prompt and its continuation as it is generated. The speed and the seed go to stderr.\n"
        "The same seed and options generate the same text.",
    )
    _prompt(p, "text to continue, or - to read it from stdin (default: none)", most=1)
    _model(p)
    p.add_argument("--tokens", type=count, default=200, metavar="N", help="number of tokens to generate (default 200)")
    p.add_argument("--no-eos", dest="eos", action="store_false", help="do not stop at the model's end-of-text tokens")
    p.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may repeat")
    p.add_argument(
        "--samples", type=positive, default=1, metavar="N",
        help="generate N continuations at once, with the seeds S, S+1, ... (default 1)",
    )  # fmt: skip
    g = p.add_argument_group("sampling")
    g.add_argument(
        "--temperature", type=not_negative, default=0.8, metavar="T",
        help="higher is more varied; 0 always takes the most likely token, greedy decoding (default 0.8)",
    )  # fmt: skip
    g.add_argument(
        "--top-k", type=positive, metavar="K", help="sample from the K most likely tokens (default: from all)"
    )
    g.add_argument(
        "--top-p", type=fraction, metavar="P",
        help="nucleus sampling: sample from the most likely tokens whose probabilities add up to P (default 1)",
    )  # fmt: skip
    g.add_argument(
        "--min-p", type=fraction, metavar="P",
        help="sample from tokens at least P times as likely as the most likely one (default: from all)",
    )  # fmt: skip
    g.add_argument(
        "--repetition-penalty", type=above_zero, metavar="R",
        help="penalize tokens that are already in the text: 1 is off, higher is stronger (default 1)",
    )  # fmt: skip
    g.add_argument(
        "--logit-bias", type=bias, action="append", metavar="ID=B",
        help="add B to the logit of token ID, such as 198=-2.5; 198=-inf forbids the token; may repeat",
    )  # fmt: skip
    g.add_argument("--seed", type=count, metavar="S", help="random seed (default: a new one, printed at the end)")
    _figures(p)
    add_check_option(p)
    split.add_client_options(p)


def _logits(add: Add) -> None:
    p = add(
        "logits",
        commands.run_logits,
        "save the logits of a prompt to a file",
        'glgpt logits "To be" --model gpt2 --out logits.npz\n'
        "glgpt logits --ids 464,3290,318 --model gpt2 --out logits.npz",
        "Runs the model on a prompt and writes a NumPy .npz file with two arrays:\n"
        "`tokens` [tokens], the token ids, and `logits` [tokens, vocabulary], the scores of each next token.",
    )
    _prompt(p, "text to run, or - to read it from stdin", most=2)
    _model(p)
    p.add_argument("--out", required=True, metavar="FILE.npz", help="file to write")
    _figures(p)


def _compare(add: Add) -> None:
    p = add(
        "compare",
        commands.run_compare,
        "check a model against reference logits; exit status 1 beyond the tolerance",
        "glgpt compare --model gpt2 --reference transformers --prompt 'To be' --activations\n"
        "glgpt compare --model gpt2 --reference reference.npz --dtype q8",
        "Compares logits, and with --activations all intermediate values, with those of Hugging Face transformers\n"
        "or of a stored reference. Prints the errors and the KL divergence.",
    )
    p.most = 1
    _model(p)
    p.add_argument(
        "--reference", required=True, metavar="FILE.npz|transformers",
        help="a stored reference, or transformers to run it now in float64",
    )  # fmt: skip
    p.add_argument(
        "--prompt", action="append", metavar="TEXT", help="with --reference transformers: text to run; may repeat"
    )
    p.add_argument(
        "--ids", action="append", type=ids, metavar="ID,ID,...", help="token ids to run instead of a prompt; may repeat"
    )
    p.add_argument(
        "--activations", action="store_true", help="compare all activations and name the first beyond the tolerance"
    )
    text = "maximum mean KL divergence of the logits from the reference, in nats (default 0.05)"
    p.add_argument("--kl", type=not_negative, metavar="K", help=text)
    text = "absolute tolerance: |error| <= A + R |reference| (default: relative, by --dtype and the number of blocks)"
    p.add_argument("--atol", type=not_negative, metavar="A", help=text)
    p.add_argument("--rtol", type=not_negative, metavar="R", help="relative tolerance, see --atol")
    _figures(p)


def _dump(add: Add) -> None:
    p = add(
        "dump",
        commands.run_dump,
        "draw attention patterns and other activations as PNG files",
        'glgpt dump "To be, or not to be" --out pictures\n'
        'glgpt dump "To be, or not to be" --model gpt2 --out pictures --layers 0,3-5 --heads 0-3\n'
        'glgpt dump "To be" --out pictures --what hidden,logits,h.2.mlp.act --raw',
        "Runs the model on a prompt and writes one PNG file for each activation, and manifest.json, which lists them.",
    )
    _prompt(p, "text to run, or - to read it from stdin", most=2)
    _model(p)
    p.add_argument("--out", required=True, metavar="DIR", help="folder to write to")
    p.add_argument(
        "--what",
        type=names,
        action="extend",
        metavar="WHAT,WHAT,...",
        help="attention, hidden, logits, or names of activations, also with * as in h.*.mlp.act; may repeat "
        "(default attention)",
    )
    p.add_argument("--layers", action="append", metavar="RANGE", help="blocks, such as 0,3-5; may repeat (default all)")
    p.add_argument("--heads", action="append", metavar="RANGE", help="heads, such as 0,3-5; may repeat (default all)")
    p.add_argument(
        "--raw", action="store_true", help="also write the textures in their memory layout, as .png and .npy"
    )
    _figures(p, "print the manifest as JSON")


def _evaluate(add: Add) -> None:
    p = add(
        "eval",
        commands.run_evaluate,
        "measure a model's loss and perplexity on a text file",
        "glgpt eval play.txt --model runs/play --window 256\n"
        "glgpt eval play.txt --model gpt2 --dtype q4 --compare-to f32\n"
        "glgpt eval runs/play --suite\n"
        "glgpt eval held.txt --model gpt2 --suite --training play.txt --json",
        "Prints nats per token, bits per byte and perplexity. With --compare-to, the loss in both formats, the KL\n"
        "divergence between them and how often their most likely token is the same. With --suite, also accuracy,\n"
        "calibration and copying, next to chance, n-gram models and the embedded model.",
    )
    p.late, p.most = "file", 2
    p.add_argument(
        "file", nargs="?", metavar="FILE",
        help="UTF-8 text, or - to read it from stdin; with --suite also the folder of a run",
    )  # fmt: skip
    _model(p)
    p.add_argument(
        "--window", type=positive, metavar="N", help="maximum context of a prediction, in tokens (default: the model's)"
    )
    p.add_argument(
        "--compare-to", choices=tuple(FORMATS), help="format of weights to compare --dtype with, such as f32"
    )
    g = p.add_argument_group("suite")
    text = "full score: also accuracy, calibration and copying, next to chance, n-grams and the embedded model"
    g.add_argument("--suite", action="store_true", help=text)
    g.add_argument(
        "--training", action="append", metavar="FILE",
        help="the model's training text, for the n-gram models; may repeat (a run knows its own)",
    )  # fmt: skip
    g.add_argument(
        "--tokens", type=count, default=8192, metavar="N", help="maximum tokens to score; 0 for all (default 8192)"
    )
    g.add_argument("--csv", action="store_true", help="print CSV, one line for each predictor")
    _figures(p)


def _train(add: Add) -> None:
    train.add_train_options(
        add(
            "train",
            train.run_train,
            "train or fine-tune a model on text files",
            "glgpt train play.txt --preset nano --out runs/play\n"
            "glgpt train play.txt --preset small --precision f16 --steps 2000\n"
            "glgpt train letters.txt --init gpt2 --lr 1e-4 --steps 200  # fine-tuning\n"
            "glgpt train --resume runs/play\n"
            "glgpt generate --model runs/play  # the trained model",
            "Writes a run folder with checkpoints in the format of Hugging Face transformers, the loss of each step\n"
            "and the settings. Ctrl-C saves a checkpoint and stops; --resume continues.",
        )
    )

    data.add_data_commands(add("data", data.run_list, "list, fetch, inspect and clean training texts", data.EXAMPLES))


def _tokenizer(add: Add) -> None:
    train.add_tokenizer_commands(
        add(
            "tokenizer",
            train.run_tokenizer_train,
            "train or inspect a tokenizer",
            "glgpt tokenizer train play.txt --vocab 1024 --out my-tokenizer\n"
            "glgpt tokenizer inspect play.txt --tokenizer bpe:512 --tokenizer gpt2",
        )
    )


def _federate(add: Add) -> None:
    federate.add_federate_commands(
        add(
            "federate",
            federate.run_serve,
            "train one model together on many devices (federated learning)",
            "glgpt federate serve play.txt --preset nano --quorum 2 --out runs/together\n"
            "glgpt federate join 'http://127.0.0.1:8043/#eyJ…'\n"
            "glgpt federate status runs/together",
            "A host serves a session; browsers and other machines join with its link, train on their own text or on\n"
            'a share of the host\'s, and send updates in rounds. Needs pip install "glgpt[federate]".',
        )
    )


def _info(add: Add) -> None:
    p = add(
        "info",
        commands.run_info,
        "show the GPU, its limits, and the kernels chosen for it",
        "glgpt info\nglgpt info --model gpt2 --dtype q8  # also the memory that the model needs",
    )
    p.add_argument("--model", metavar="MODEL", help="also print the texture memory that this model needs")
    _figures(p)


def _bench(add: Add) -> None:
    p = add(
        "bench",
        commands.run_bench,
        "measure the speed of this device and of the engine on it",
        "glgpt bench --quick\n"
        "glgpt bench --model gpt2 --dtype q8\n"
        "glgpt bench --train nano small\n"
        "glgpt bench --json > bench.json",
    )
    p.add_argument("--model", metavar="MODEL", help=f"{MODEL} (default: 124 M random weights)")
    p.add_argument("--quick", action="store_true", help="fewer shapes and repetitions")
    p.add_argument("--seconds", type=positive, default=120, metavar="S", help="maximum time, in seconds (default 120)")
    p.add_argument(
        "--train",
        nargs="*",
        metavar="PRESET",
        help="measure training steps instead (default presets: nano and small); --dtype f16 trains in f16",
    )
    _figures(p, memory=False)


def _export(add: Add) -> None:
    p = add(
        "export",
        commands.run_export,
        "write a model as a static web page",
        "glgpt export --out page  # the embedded model\n"
        "glgpt export --model gpt2 --dtype f16 --out site/gpt2\n"
        "glgpt export --model gpt2 --prompt 'Once upon a time' --prompt 'Dear Sir' --out page\n"
        "glgpt export --single-file --out shakespeare.html  # opens from disk\n"
        "glgpt export --embed --out module  # a module for your own page\n"
        "glgpt export --train --out page  # the page can also train\n"
        "glgpt export --site https://example.org/page/ --out page\n"
        "glgpt export --server ws://127.0.0.1:8043 --out page  # a server runs some blocks\n"
        "glgpt export --split 2 --server ws://127.0.0.1:8043 --out page",
        "The page runs the model in the visitor's browser with WebGL2. Any web server can publish the folder;\n"
        "glgpt serve shows it on this machine.",
    )
    p.most = 1
    _model(p)
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
    g.add_argument("--trained-on", metavar="TEXT", help="what the model was trained on at the top")
    text = "address at which the folder will be published; links to it then show a preview picture"
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
    books = f"mirror of gutenberg.org for the list of books; {NO_BOOKS} for no list (default {OPEN_MIRROR})"
    g.add_argument("--books", metavar="URL", help=books)
    hosts = "let visitors also fetch training texts from this server; may repeat"
    g.add_argument("--fetch-from", action="append", metavar="URL", help=hosts)
    text = "context length of the page, in tokens; less takes less memory (default: the model's, at most 2048)"
    _figures(p, memory=False, dtype=None, context=text)
    add_check_option(p)
    split.add_page_options(p)


def _split(add: Add) -> None:
    split.add_split_commands(
        add(
            "split",
            split.run_split_serve,
            "run the blocks of a model on several machines",
            'glgpt split serve --blocks 4-5 --listen 8043\nglgpt generate --split ws://127.0.0.1:8043 "To be"',
        )
    )


def _serve(add: Add) -> None:
    p = add(
        "serve",
        commands.run_serve,
        "serve an exported page on this machine or network",
        "glgpt serve page\nglgpt serve page --host 0.0.0.0  # for a classroom: others on this network can open it",
    )
    p.add_argument("folder", metavar="DIR", help="folder that glgpt export wrote")
    p.add_argument("--port", type=count, default=8042, metavar="PORT", help="0 takes a free one (default 8042)")
    host = (
        "address to listen on (default 127.0.0.1: only this machine); 0.0.0.0 lets anyone on the network open the page"
    )
    p.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    names = "also answer requests for this host name, such as a proxy's; may repeat"
    p.add_argument("--allow-host", action="append", metavar="NAME", help=names)


def _model(parser: Parser) -> None:
    parser.add_argument("--model", metavar="MODEL", help=f"{MODEL} (default)")


def _prompt(parser: Parser, text: str, most: int) -> None:
    parser.late, parser.most = "prompt", most
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=text)
    parser.add_argument("--ids", type=ids, metavar="ID,ID,...", help="token ids instead of a text, such as 464,3290")


def _figures(parser: argparse.ArgumentParser, text: str = "print the results as JSON", **options: Any) -> None:
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
