"""The functions that run the subcommands, and helpers that other modules of this package share."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glgpt.bench import engine as bench
from glgpt.cli.format_check import check_format
from glgpt.cli.options import device_options
from glgpt.cli.progress import Phases, progress
from glgpt.cli.split import client_options, render_split, split_figures, split_page
from glgpt.errors import GlgptError, quoted
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.inspection import info
from glgpt.inspection.compare import compare, render
from glgpt.inspection.dump import checked_out, dump
from glgpt.inspection.evaluate import evaluate
from glgpt.inspection.format_comparison import compare_formats
from glgpt.inspection.logits import checked_file, save_logits
from glgpt.inspection.reference import load_reference, run_transformers
from glgpt.program.tolerance import KL_LIMIT, Tolerance
from glgpt.system.files import named_errors, read_text
from glgpt.text.tokenizer import GPT2_VOCAB_SIZE
from glgpt.training.settings import PRECISIONS

MARK = "\ufeff"  # the byte order mark, which is not part of the text
MOST_TEXT = 1 << 30  # bytes of a text that is read at once
START = "\n\n"  # the prompt if none is given; it is not printed
SENTENCE = "First Citizen:\nBefore we proceed any further, hear me speak."


@contextmanager
def open_model(args: argparse.Namespace) -> Iterator[LanguageModel]:
    """Opens the model that the arguments name, with a progress bar while it loads."""
    with progress("loading", "B") as show:
        model = LanguageModel.from_pretrained(args.model, progress=show, **device_options(args), **client_options(args))
    with model:
        yield model


def text_of(name: str) -> str:
    """Returns the text of a UTF-8 file, or of stdin for `-`, without a byte order mark."""
    if name != "-":
        return read_text(Path(name), MOST_TEXT).removeprefix(MARK)
    if sys.stdin is None:
        raise GlgptError("stdin is closed; give the text as an argument or a file")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removeprefix(MARK)
    except UnicodeDecodeError as error:
        raise GlgptError(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from error


def prompt_text(args: argparse.Namespace, default: str | None = None) -> str | None:
    """Returns the prompt of the arguments, read from stdin for `-`; None if ids are given instead."""
    if args.ids is not None:
        if args.prompt is not None:
            raise GlgptError("both a prompt and --ids were given; give one of them")
        return None
    text = default if args.prompt is None else text_of("-") if args.prompt == "-" else str(args.prompt)
    if not text:
        raise GlgptError("the prompt is empty; give some text, or token ids with --ids")
    if any("\ud800" <= c <= "\udfff" for c in text):  # Python's surrogates for bytes that are not UTF-8
        raise GlgptError("the prompt is not UTF-8 text")
    return text


def encode(model: LanguageModel, text: str | None, ids: list[int] | None) -> list[int]:
    """Returns the token ids of `text`, or `ids` if it is None."""
    if text is None:
        return ids or []
    if model.tokenizer is None:
        own = model.config.vocab_size == GPT2_VOCAB_SIZE
        why = " files, and GPT-2's tokenizer is not cached and cannot be downloaded" if own else ""
        raise GlgptError(f"{model.name} has no tokenizer{why}; give token ids with --ids")
    return model.tokenizer.prompt(text)


def report(args: argparse.Namespace, figures: Any, text: str) -> None:
    """Prints the results as JSON with --json, else as text."""
    with named_errors(Path("stdout")):
        print(json.dumps(finite(figures), indent=1, ensure_ascii=False, allow_nan=False) if args.json else text)


def finite(figures: Any) -> Any:
    """Returns a copy with infinities and NaN, which JSON does not have, replaced by None."""
    if isinstance(figures, dict):
        return {key: finite(value) for key, value in figures.items()}
    if isinstance(figures, (list, tuple)):
        return [finite(value) for value in figures]
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures


def run_generate(args: argparse.Namespace) -> int:
    """`glgpt generate`."""
    text = prompt_text(args, default=START)
    sampling = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p", "eos", "stop")}
    sampling |= {"repetition_penalty": args.repetition_penalty, "logit_bias": dict(args.logit_bias or ())}
    options = {name: value for name, value in sampling.items() if name not in ("eos", "stop")}
    Sampler(**options, seed=args.seed)  # raises for values out of range before the model loads
    with open_model(args) as model:
        ids = encode(model, text, args.ids)
        start = " ".join(map(str, ids)) if text is None else text
        check_format(args, args.dtype, model)
        if args.samples > 1:
            return _samples(args, model, ids, start, sampling)
        run = model.generate(ids, args.tokens, seed=args.seed, **sampling)
        check_format(args, args.dtype, model)

        def show(piece: str) -> None:
            if not args.json:
                with named_errors(Path("stdout")):
                    print(piece, end="", flush=True)

        try:
            with progress(f"processing {len(ids)} prompt tokens"):
                first = next(run, "")
            show("" if args.prompt is None and args.ids is None else start)
            for piece in itertools.chain([first], run):
                show(piece)
        finally:
            show("\n")
        figures = run.figures()
        figures["context"] = model.context
        split = split_figures(model)
        figures |= {"split": split} if split else {}
    if args.json:
        report(args, {"prompt": start, "text": run.text, "ids": run.ids, **figures}, "")
    else:
        print(_speed(args, figures), file=sys.stderr)
        if split:
            print(render_split(split), file=sys.stderr)
    return 0


def _samples(
    args: argparse.Namespace, model: LanguageModel, ids: list[int], start: str, sampling: dict[str, Any]
) -> int:
    """Generates several continuations of one prompt together; prints them in order, each when it is complete."""
    first = secrets.randbelow(2**32) if args.seed is None else args.seed
    seeds = range(first, first + args.samples)
    runs = model.generate_batch([ids] * args.samples, args.tokens, seeds=seeds, **sampling)
    check_format(args, args.dtype, model)
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
        beyond = _beyond(slides, model.context)
        print(f"{beyond}{args.samples} samples, {tokens} tokens at {tokens / seconds:.1f}/s", file=sys.stderr)
    return 0


def _beyond(slides: int, context: int) -> str:
    """Returns a line about a text longer than the context, or "" if it fitted."""
    times = {1: "once", 2: "twice"}.get(slides, f"{slides} times")
    reached = f"the text reached the context length of {context} tokens {times}"
    return f"{reached}: the older half was dropped\n" if slides else ""


def _speed(args: argparse.Namespace, figures: dict[str, Any]) -> str:
    full = _beyond(figures["slides"], figures["context"])
    seed = "" if args.temperature == 0 else f", seed {figures['seed']}"
    return (
        f"{full}prefill {figures['prefill_tokens']} tokens at {figures['prefill_tokens_per_s']:.1f}/s, "
        f"decode {figures['decode_tokens']} tokens at {figures['decode_tokens_per_s']:.1f}/s{seed}"
    )


def run_logits(args: argparse.Namespace) -> int:
    """`glgpt logits`."""
    text, out = prompt_text(args), checked_file(args.out)
    with open_model(args) as model:
        ids = encode(model, text, args.ids)
        with progress(f"processing {len(ids)} tokens"):
            shape = save_logits(model, ids, out)
    report(args, {"file": args.out, "shape": shape}, f"{quoted(args.out)}: tokens [{shape[0]}], logits {list(shape)}")
    return 0


def run_compare(args: argparse.Namespace) -> int:
    """`glgpt compare`; returns 1 if the model is beyond the tolerance."""
    live = args.reference == "transformers"
    if (args.prompt or args.ids) and not live:
        raise GlgptError("--prompt and --ids need --reference transformers; a stored reference has its own tokens")
    cases = [] if live else load_reference(args.reference)
    if args.activations and not live and all(set(case.arrays) == {"logits"} for case in cases):
        raise GlgptError(f"{args.reference} holds logits only; --activations needs a reference with activations")
    absolute = None if args.atol is args.rtol is None else (args.atol or 0.0, args.rtol or 0.0)
    kl = KL_LIMIT if args.kl is None else args.kl
    with open_model(args) as model:
        tolerance = Tolerance.of(args.dtype, model.config.n_layer, kl=kl, absolute=absolute)
        if live:
            texts = args.prompt or ([] if args.ids else [SENTENCE])
            prompts = [*(encode(model, text, None) for text in texts), *(args.ids or [])]
            for ids in prompts:
                model.check_ids(ids)
            with progress("running transformers"):
                cases = run_transformers(args.model, prompts)
        results = []
        for i, case in enumerate(cases, 1):
            with progress(f"comparing {i} of {len(cases)}"):
                results.append(compare(model, case, tolerance, args.activations))
    within = all(result.within for result in results)
    figures = {"within": within, **asdict(tolerance), "cases": [result.as_json() for result in results]}
    report(args, figures, render(results, tolerance))
    return 0 if within else 1


def run_dump(args: argparse.Namespace) -> int:
    """`glgpt dump`."""
    text = prompt_text(args)
    checked_out(args.out)
    with open_model(args) as model, progress("drawing", "file") as show:
        ids = encode(model, text, args.ids)
        layers, heads = (",".join(given) if given else None for given in (args.layers, args.heads))
        wanted = {"layers": layers, "heads": heads, "raw": args.raw}
        manifest = dump(model, ids, args.out, args.what or ["attention"], **wanted, progress=show)
    report(args, manifest, f"{quoted(args.out)}: {len(manifest['files'])} files and manifest.json")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """`glgpt eval`."""
    if args.suite:
        from glgpt.cli.score import run_suite

        return run_suite(args)
    if args.csv or args.training:
        raise GlgptError("--csv and --training need --suite")
    text = text_of(args.file)
    if args.compare_to:
        return _compare_formats(args, text)
    with open_model(args) as model, progress("evaluating", "token") as show:
        result = evaluate(model, text, args.window, show)
    report(
        args,
        asdict(result),
        f"{result.nats_per_token:.4f} nats/token, {result.bits_per_byte:.4f} bits/byte, perplexity "
        f"{result.perplexity:.2f}\n{result.tokens} tokens predicted, window {result.window}, "
        f"{result.tokens_per_s:.0f} tokens/s",
    )
    return 0


def _compare_formats(args: argparse.Namespace, text: str) -> int:
    compared = argparse.Namespace(**vars(args) | {"dtype": args.compare_to})
    with open_model(args) as model, open_model(compared) as other, progress("evaluating", "token") as show:
        found = compare_formats(model, other, text, args.window, show)
    report(
        args,
        asdict(found),
        f"{found.nats_per_token:.4f} nats/token in {found.dtype}, {found.compared_nats:.4f} in {found.compared_to}; KL "
        f"divergence {found.kl:.2g} nats/token; the same most likely token for {found.agreement:.1%}\n"
        f"{found.tokens} tokens predicted, window {found.window}",
    )
    return 0


def run_info(args: argparse.Namespace) -> int:
    """`glgpt info`."""
    with progress("measuring this device"):
        figures = info.describe(args.model, **device_options(args))
    report(args, figures, info.render(figures))
    return 0


def run_bench(args: argparse.Namespace) -> int:
    """`glgpt bench`."""

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
    result = bench.run_bench(args.model, **how, **device_options(args))
    report(args, result, "" if args.json else bench.render(result))
    return 0


def run_export(args: argparse.Namespace) -> int:
    """`glgpt export`."""
    from glgpt.page.export import export
    from glgpt.page.reading import Reading
    from glgpt.page.training import OFFERED

    if args.preset and not args.train:
        raise GlgptError("--preset needs --train: it sets the sizes that the page can train")
    if args.precision and not args.train:
        raise GlgptError("--precision needs --train: it sets the arithmetic of the page's training")
    if (args.books or args.fetch_from) and not args.train:
        raise GlgptError("--books and --fetch-from need --train: they are for the page's Train tab")
    out = quoted(args.out)
    wanted = {"shard_size": args.shard_size, "single_file": args.single_file, "embed": args.embed}
    wanted |= {"name": args.name, "prompts": args.prompt or ()}
    wanted |= {"trained_on": args.trained_on, "site": args.site, "source": args.source}
    wanted["train"] = (args.preset or OFFERED) if args.train else ()
    wanted["precision"] = args.precision or "f32"
    wanted["reading"] = Reading(args.books, args.fetch_from or ())
    wanted["split"] = split_page(args)
    options = wanted | device_options(args)  # the page's context among them
    options["dtype"] = args.dtype or ("f32" if args.model or wanted["split"] else "f16")  # servers store f32
    with Phases("B") as phases:
        phases.begin("exporting")
        manifest = export(args.model, args.out, progress=phases.show, phase=phases.begin, **options)
    weights = sum(shard["bytes"] for shard in manifest["shards"])
    figures = {key: manifest[key] for key in ("model", "dtype")}
    cost = check_format(args, options["dtype"])
    figures |= {"kl": cost.kl} if cost else {}
    hint = f"open {out}" if args.single_file else f"view it with: glgpt serve {out}"
    report(
        args,
        figures | {"out": args.out, "weights_bytes": weights, "shards": len(manifest["shards"])},
        f"{out}: {manifest['model']} {manifest['dtype']}, {weights / 1e6:.0f} MB of weights; {hint}",
    )
    return 0


SHARED = """Anyone on this network can open this address: there is no password, and http is not encrypted.
Each browser runs the model itself; what is typed into it stays in that browser. Ctrl-C stops the server."""


def run_serve(args: argparse.Namespace) -> int:
    """`glgpt serve`."""
    from glgpt.cli.qr import print_qr
    from glgpt.page.serve import serve
    from glgpt.system.network import is_loopback

    def announce(address: str) -> None:
        print(address, flush=True)
        if not is_loopback(args.host):
            print_qr(address)
            print(SHARED, file=sys.stderr, flush=True)

    serve(Path(args.folder), args.port, args.host, args.allow_host or (), announce)
    return 0
