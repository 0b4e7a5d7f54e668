"""`make bench-web`: compares the page with tfjs's WebGL backend in one Chromium, on matrix products and GPT-2 124M.

    python benchmarks/web/run.py                        print a table
    python benchmarks/web/run.py --json >results.json
    python benchmarks/web/run.py --dtype f16 --rounds 9
    python benchmarks/web/run.py --train                compare training steps with tfjs and jax-js
    python benchmarks/web/run.py --train --sizes nano small --dtype f16

The page and tfjs have the same random weights, from fixed seeds. The page's time per token is the one that
`glgpt.generate` reports. With --train, all engines begin with the same weights and train on the same text, and their
first losses must agree; --dtype is the precision of the page only, since the other engines train in f32.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import train
from safetensors.numpy import save_file
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from glgpt.bench.engine import ROWS, SHAPE, RandomCheckpoint
from glgpt.errors import GlgptError
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.page.serve import application, serving
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import KERNELS
from glgpt.program.spec import Limits
from glgpt.tuning.kernel_selection import product_program

BUILT = Path(__file__).parent / "dist"
SILENCE = 300  # seconds without a message from the page after which the run is aborted
# Maximum difference between a product's values in glgpt and tfjs. Values are up to 150; f16 rounds 150 by up to 0.06.
TOLERANCE = {"f32": 1e-3, "f16": 0.25}


def make_folder(folder: Path, dtype: str, rounds: int, only: str | None) -> None:
    """Writes all files for the page: the task, the products, and a random model.

    The model is written as a checkpoint, which tfjs loads, and as an exported page. If `only` is "products", no model
    is written.
    """
    config = GPT2Config()
    task = {
        "rounds": rounds,
        "only": only,
        "dtype": dtype,
        "shape": SHAPE,
        "rows": ROWS,
        "prompt": 64,
        "context": 64,
        "config": asdict(config),
    }
    (folder / "task.json").write_text(json.dumps(task))
    make_products(folder / "products")
    if only == "products":
        return
    checkpoint, path = RandomCheckpoint(config), folder / "checkpoint"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    save_file({name: checkpoint.read(name) for name in config.parameters}, path / "model.safetensors")
    export(path, folder / dtype, ExportOptions(dtype=dtype))


def make_products(folder: Path) -> None:
    """Writes a program for each kernel, dtype and number of rows, and the matrices: plain f32 for tfjs, and texels."""
    folder.mkdir()
    k, n = SHAPE
    random = np.random.default_rng(0)
    w = random.standard_normal((k, n), np.float32)
    (folder / "w.plain").write_bytes(w.tobytes())
    for m in ROWS:
        x = random.standard_normal((m, k), np.float32)
        (folder / f"x.{m}.plain").write_bytes(x.tobytes())
        for kernel in ("4x8", "4x4"):
            limits = Limits(max_draw_buffers=8 if kernel == "4x8" else 4)
            for dtype in ("f32", "f16"):
                program = product_program(limits, KERNELS[kernel], dtype, (m, k, n))
                (folder / f"{kernel}.{dtype}.{m}.json").write_text(program.to_json())
                for name, values in ((f"x.{m}", x), ("w", w)):
                    texels = program.views[name.split(".")[0]].pack(values)
                    (folder / f"{kernel}.{dtype}.{name}").write_bytes(texels.tobytes())


def measure(folder: Path, chromium: str, flags: list[str]) -> dict[str, Any]:
    """Opens the folder in the browser and returns the result that the page posts."""
    said: queue.Queue[tuple[str, Any]] = queue.Queue()

    async def take(request: Request) -> Response:
        said.put((request.path_params["kind"], await request.json()))
        return Response(status_code=204)

    app = application(folder, Route("/{kind}", take, methods=["POST"]), policy=False)
    with serving(app) as address, tempfile.TemporaryDirectory() as profile:
        command = [chromium, *flags, f"--user-data-dir={profile}", address]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                kind, what = said.get(timeout=SILENCE)
                if kind == "result":
                    return dict(what)
                if kind == "failure":
                    raise GlgptError(f"the page failed: {what}")
                print(f"bench-web: {what}", file=sys.stderr, flush=True)
        except queue.Empty:
            raise GlgptError(f"{chromium} sent no message for {SILENCE} s") from None
        finally:
            browser.terminate()
            browser.wait()


def finish(result: dict[str, Any]) -> dict[str, Any]:
    """Adds to each row of the result the ratio of tfjs's time to the row's time.

    Raises GlgptError if the page's products differ from those of tfjs by more than `TOLERANCE`.
    """
    for what, apart in result["apart"].items():
        if apart > TOLERANCE[what.split()[-1]]:
            raise GlgptError(f"the products {what} differ by {apart:.3g}")
    theirs = {(r["name"], r["shape"]): r["ms"] for r in result["rows"] if r["engine"] == "tfjs"}
    for row in result["rows"]:
        other = theirs.get((row["name"], row["shape"]))
        row["ratio"] = other / row["ms"] if other else None  # None for sampling: tfjs's model is always greedy
    if "tokens" in result:
        expected, found = (ids for _, ids in sorted(result["tokens"].items(), reverse=True))
        result["same_tokens"] = sum(a == b for a, b in zip(expected, found, strict=True)) / len(expected)
    return {"schema": 1} | result


def table(result: dict[str, Any]) -> str:
    """Formats the results as text."""
    lines = [result["renderer"], result["browser"], ""]
    for r in sorted(result["rows"], key=lambda r: (r["name"], r["shape"], r["engine"] != "tfjs")):
        rate = f"{r['gflops']:9.1f} GFLOPS" if "gflops" in r else " " * 16
        ratio = "" if r["engine"] == "tfjs" or r["ratio"] is None else f"{r['ratio']:8.2f}x"
        lines.append(f"{r['name']:11} {r['shape']:22} {r['engine']:10} {r['ms']:10.2f} ms {rate} {ratio}")
    lines += ["", "x: tfjs's time divided by glgpt's"]
    if "same_tokens" in result:
        lines += [f"{result['same_tokens']:.0%} of the greedy tokens of glgpt and tfjs are the same"]
    return "\n".join(lines)


def main() -> int:
    """Runs the command line documented above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "--dtype",
        choices=tuple(FORMATS),
        default="f32",
        help="format of the page's weights; with --train, the page's precision",
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; results are their medians")
    parser.add_argument("--only", choices=("products", "model"), help="measure only this")
    parser.add_argument("--train", action="store_true", help="measure training steps instead")
    sizes = "with --train: nano (the default), small (minutes per round on software GL)"
    parser.add_argument("--sizes", nargs="+", choices=train.SIZES, help=sizes)
    chromium.add_options(parser)
    args = parser.parse_args()
    if args.train and (args.only or args.dtype not in train.APART):
        parser.error("--train requires --dtype f32 or f16 and cannot be combined with --only")
    if args.sizes and not args.train:
        parser.error("--sizes requires --train")
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}; it must be at least 1")
    if not (BUILT / "index.html").is_file():
        parser.error("the benchmark is not built; run make bench-web")
    try:
        with tempfile.TemporaryDirectory(prefix="glgpt-bench-web-") as folder:
            print("bench-web: writing weights and pages", file=sys.stderr, flush=True)
            shutil.copytree(BUILT, folder, dirs_exist_ok=True)
            if args.train:
                train.make_folder(Path(folder), args.rounds, list(dict.fromkeys(args.sizes or ["nano"])), args.dtype)
            else:
                make_folder(Path(folder), args.dtype, args.rounds, args.only)
            found = measure(Path(folder), args.chromium, args.flags.split())
            result = train.finish(found, args.dtype) if args.train else finish(found)
    except (GlgptError, OSError) as error:
        print(f"bench-web: error: {error}", file=sys.stderr)
        return 2
    lines = train.table if args.train else table
    print(json.dumps(result, indent=1) if args.json else lines(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
