"""`glgpt generate`: continues a prompt."""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import (
    add_adapter_option,
    add_device_options,
    add_json_option,
    add_model_option,
    add_prompt_options,
    add_sampling_options,
    counted,
    draw_in_one_thread,
    encode,
    open_model,
    prompt_text,
    report,
    sampling_options,
    speed,
)
from glgpt.cli.format_check import add_check_option, check_format
from glgpt.cli.option_types import count, positive
from glgpt.cli.progress import progress
from glgpt.cli.split_options import add_client_options, render_split, split_traffic
from glgpt.errors import ArgumentError
from glgpt.inference.arguments.sampling_options import BatchSamplingKeywords
from glgpt.inference.model import LanguageModel
from glgpt.program.formats import AS_STORED
from glgpt.system.files import named_errors

MAX_SAMPLES = 10_000
START = "\n\n"  # used if neither a prompt nor --ids is given; not printed


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "generate",
        run,
        "generate text from a prompt",
        'glgpt generate "To be" --tokens 60 --seed 1\n'
        "glgpt generate --model gpt2 --temperature 0 'The capital of France is'\n"
        "glgpt generate --model runs/play --top-k 40 --top-p 0.95 --samples 4\n"
        "glgpt generate --model smollm2 --adapter my-lora 'The capital of France is'\n"
        "glgpt generate - --model gpt2 --dtype q8 --stop Yours < letter.txt",
        "Prints the prompt and its continuation, token by token. The speed and the seed go to stderr.\n"
        "The same seed and options generate the same text.",
    )
    add_prompt_options(p, "text to continue, or - to read it from stdin (default: none)")
    add_model_option(p)
    add_adapter_option(p)
    p.add_argument("--tokens", type=count, default=200, metavar="N", help="number of tokens to generate (default 200)")
    p.add_argument("--no-eos", dest="eos", action="store_false", help="do not stop at the model's end-of-text tokens")
    p.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may repeat")
    p.add_argument(
        "--samples", type=positive, default=1, metavar="N",
        help=f"generate N continuations at once, with the seeds S, S+1, ... (default 1, at most {MAX_SAMPLES:,})",
    )  # fmt: skip
    add_sampling_options(p)
    add_json_option(p)
    add_device_options(p)
    add_check_option(p)
    add_client_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt generate`."""
    text = prompt_text(args, default=START)
    sampling = sampling_options(args)  # raises for values out of range before the model loads
    if args.samples > MAX_SAMPLES:
        raise ArgumentError(f"--samples {args.samples} is too many; give at most {MAX_SAMPLES:,}")
    if args.samples == 1:
        draw_in_one_thread(args)
    with open_model(args) as model:
        ids = encode(model, text, args.ids)
        start = " ".join(map(str, ids)) if text is None else text
        if args.samples > 1:
            return _samples(args, model, ids, start, sampling)
        generation = model.generate(ids, args.tokens, stop=args.stop, eos=args.eos, seed=args.seed, **sampling)
        check_format(args, model.dtype, model)

        def show(piece: str) -> None:
            if not args.json:
                with named_errors(Path("stdout")):
                    print(piece, end="", flush=True)

        with progress(f"processing {counted(len(ids), 'prompt token')}"):
            first = next(generation, "")
        try:
            show("" if args.prompt is None and args.ids is None else start)
            for piece in itertools.chain([first], generation):
                show(piece)
        finally:
            show("\n")
        stats = generation.figures() | {"context": model.context}
        split = split_traffic(model)
        stats |= {"split": split} if split else {}
    if args.json:
        report(args, {"prompt": start, "text": generation.text, "ids": generation.ids, **stats}, "")
    else:
        print(_speed(args, stats, model), file=sys.stderr)
        if split:
            print(render_split(split), file=sys.stderr)
    return 0


def _samples(
    args: argparse.Namespace, model: LanguageModel, ids: list[int], start: str, sampling: BatchSamplingKeywords
) -> int:
    """Generates several continuations of one prompt together. Prints each when it and all earlier ones are done."""
    first = secrets.randbelow(2**32) if args.seed is None else args.seed
    seeds = range(first, first + args.samples)
    ends = {"stop": args.stop, "eos": args.eos}
    runs = model.generate_batch([ids] * args.samples, args.tokens, seeds=seeds, **ends, **sampling)
    check_format(args, model.dtype, model)
    begun = time.perf_counter()
    shown = "" if args.prompt is None and args.ids is None else start
    for i, run in enumerate(runs, 1):
        with progress(f"generating {args.samples} samples", "token") as show:
            for _ in run:
                if show:
                    show(len(run.ids), args.tokens)
        if not args.json:
            with named_errors(Path("stdout")):
                print(f"--- sample {i} of {args.samples}, seed {run.seed}\n{shown}{run.text}\n", flush=True)
    seconds = time.perf_counter() - begun
    if args.json:
        samples = [{"text": run.text, "ids": run.ids, **run.figures()} for run in runs]
        report(args, {"prompt": start, "seconds": seconds, "context": model.context, "samples": samples}, "")
    else:
        tokens = sum(len(run.ids) for run in runs)
        slides = sum(run.stats.slides for run in runs)
        beyond = _beyond("the samples", slides, model.context)
        print(f"{beyond}{args.samples} samples, {counted(tokens, 'token')}{speed(tokens, seconds)}", file=sys.stderr)
    return 0


def _beyond(what: str, slides: int, context: int) -> str:
    """Returns a line that says how often `what` (a text or texts) filled the context, or "" if `slides` is 0."""
    times = {1: "once", 2: "twice"}.get(slides, f"{slides} times")
    reached = f"{what} reached the context length of {context} tokens {times}"
    return f"{reached}: the older half was dropped\n" if slides else ""


def _speed(args: argparse.Namespace, stats: dict[str, Any], model: LanguageModel) -> str:
    full = _beyond("the text", stats["slides"], stats["context"])
    seed = "" if args.temperature == 0 else f", seed {stats['seed']}"
    weights = f"; weights {model.formats}" if model.dtype == AS_STORED else ""
    done = (
        f"{name} {counted(stats[f'{name}_tokens'], 'token')}{speed(stats[f'{name}_tokens'], stats[f'{name}_s'])}"
        for name in ("prefill", "decode")
    )
    return f"{full}{', '.join(done)}{seed}{weights}"
