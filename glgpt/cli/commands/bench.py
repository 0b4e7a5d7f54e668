"""`glgpt bench`: measures the speed of the device and of the engine."""

from __future__ import annotations

import argparse
import sys
import time

from glgpt.bench import engine
from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import MODEL, add_device_options, add_json_option, device_options, report
from glgpt.cli.option_types import positive
from glgpt.errors import GlgptError
from glgpt.training.settings import PRECISIONS


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "bench",
        run,
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
    add_json_option(p)
    add_device_options(p, memory=False)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt bench`."""
    begun = time.monotonic()

    def doing(what: str) -> None:
        print(f"{time.monotonic() - begun:4.0f} s  {what}", file=sys.stderr, flush=True)

    how = {"quick": args.quick, "seconds": args.seconds, "report": doing}
    if args.train is not None:
        from glgpt.bench import training as bench_train

        options = device_options(args)
        options["precision"] = options.pop("dtype", None) or "f32"
        if options.pop("context") is not None:
            raise GlgptError("--context cannot be combined with --train; the preset sets the context length")
        if options["precision"] not in PRECISIONS:
            raise GlgptError(f"--dtype {options['precision']} is inference-only; use f32 or f16 with --train")
        result = bench_train.run_bench_train(args.train, **how, **options)
        report(args, result, "" if args.json else bench_train.render(result))
        return 0
    result = engine.run_bench(args.model, **how, **device_options(args))
    report(args, result, "" if args.json else engine.render(result))
    return 0
