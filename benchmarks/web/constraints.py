"""`make bench-constraints`: measures how much longer a token takes in an exported page if a constraint applies.

    python benchmarks/web/constraints.py                       print a table for SmolLM2 in q8
    python benchmarks/web/constraints.py --dtype stored --visits 2 --json >results.json
    python benchmarks/web/constraints.py --only person order --chromium /usr/bin/google-chrome
    LP_NUM_THREADS=0 python benchmarks/web/constraints.py --visits 1 --texts 1 --tokens 8

Exports a page and visits it several times, each time in a new Chromium. In each visit, texts without a constraint and
with each of five constraints alternate, sampled with temperature 0.8 and top-p 0.9. The time of a token is the one
that `glgpt.generate` reports for a text, without the first token. A visit's time for a constraint is the median over
its texts, and its ratio is this time divided by the visit's time without a constraint. The table shows the medians over
the visits, and the smallest and largest ratio. The first text of each kind does not count. Constraints: any text; a
string with minLength; a title and a summary; a person of six fields; an order with items.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromium
from playwright.sync_api import Error as PageFailure
from playwright.sync_api import sync_playwright

from glgpt.errors import GlgptError
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.page.serve import application, serving
from glgpt.program.formats import FORMATS

MODEL, DTYPE = "smollm2", "q8"
VISITS, TEXTS, TOKENS = 5, 3, 100
WARM_UP_TOKENS = 40
PROMPT = "Write a JSON text about a journey to the mountains."
SAMPLING = {"temperature": 0.8, "topP": 0.9}
TIMEOUT_MS = 600_000  # maximum time until the page has loaded
GENERATE = """async (options) => {
  const {ids, decodeMs} = await glgpt.generate(options);
  return ids.length > 1 ? decodeMs / (ids.length - 1) : null;
}"""

Measured = dict[str, Any]
STRING: Measured = {"type": "string"}
INTEGER: Measured = {"type": "integer"}


def has_fields(**fields: Measured) -> Measured:
    """Returns the JSON schema of an object with exactly these fields."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


ITEMS = {"type": "array", "items": has_fields(name=STRING, count=INTEGER), "minItems": 2, "maxItems": 4}
NONE = "none"
CONSTRAINTS: dict[str, Measured | None] = {
    NONE: None,
    "any text": {"regex": "[^]*"},
    "string": {"json_schema": STRING | {"minLength": 600}},
    "title": {"json_schema": has_fields(title=STRING, summary=STRING)},
    "person": {
        "json_schema": has_fields(
            name=STRING, age=INTEGER, city=STRING, job=STRING, hobby=STRING, married={"type": "boolean"}
        )
    },
    "order": {"json_schema": has_fields(customer=STRING, items=ITEMS)},
}


def visit(address: str, names: Sequence[str], args: argparse.Namespace) -> tuple[str, dict[str, float]]:
    """Opens the page in a new Chromium; returns the renderer and the median ms per token with each constraint."""
    times: dict[str, list[float]] = {name: [] for name in names}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="glgpt-bench-constraints-") as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=args.chromium, args=args.flags.split(), handle_sigint=False
        )
        try:
            page = context.pages[0]
            page.set_default_timeout(TIMEOUT_MS)
            page.goto(f"{address}#tokens=1")
            page.evaluate("glgpt.ready")
            for number in range(args.texts + 1):
                tokens = args.tokens if number else min(args.tokens, WARM_UP_TOKENS)
                for name in names if number % 2 else reversed(names):
                    options: Measured = {"prompt": PROMPT, "tokens": tokens, "seed": 1 + number, **SAMPLING}
                    ms = page.evaluate(GENERATE, options | {"constraint": CONSTRAINTS[name]})
                    if number and ms is not None:
                        times[name].append(ms)
            renderer = page.evaluate("glgpt.info().renderer")
        finally:
            context.close()
    if missing := [name for name, own in times.items() if not own]:
        raise GlgptError(f"every text ended after one token with: {', '.join(missing)}; give a higher --texts")
    return renderer, {name: statistics.median(own) for name, own in times.items()}


def summary(name: str, visits: Sequence[dict[str, float]]) -> Measured:
    """Returns the medians of a constraint over the visits, and the ratio of each visit to no constraint."""
    ratios = [times[name] / times[NONE] for times in visits]
    return {
        "constraint": name,
        "token_ms": statistics.median(times[name] for times in visits),
        "ratio": statistics.median(ratios),
        "visits": ratios,
    }


def table(rows: Sequence[Measured]) -> str:
    """Formats the results as text; a percentage is the additional time of a token."""
    lines = [f"{'constraint':12} {'a token':>9} {'more':>6}  range of the visits"]
    for row in rows:
        more = [f"{round(100 * (ratio - 1))}%" for ratio in (row["ratio"], min(row["visits"]), max(row["visits"]))]
        percent = "" if row["constraint"] == NONE else f"{more[0]:>6}  {more[1]} to {more[2]}"
        lines.append(f"{row['constraint']:12} {row['token_ms']:6.2f} ms {percent}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Runs the command line documented above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--model", default=MODEL, help=f"the model of the page (default {MODEL})")
    dtypes = ("stored", *FORMATS)
    parser.add_argument("--dtype", choices=dtypes, default=DTYPE, help=f"format of the weights (default {DTYPE})")
    parser.add_argument("--visits", type=int, default=VISITS, help=f"number of visits (default {VISITS})")
    texts = f"texts of each constraint in a visit (default {TEXTS})"
    parser.add_argument("--texts", type=int, default=TEXTS, help=texts)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"maximum tokens of a text (default {TOKENS})")
    only = [name for name in CONSTRAINTS if name != NONE]
    parser.add_argument("--only", nargs="+", choices=only, help="measure only these constraints")
    chromium.add_options(parser)
    args = parser.parse_args()
    if min(args.visits, args.texts, args.tokens - 1) < 1:
        parser.error("--visits and --texts must be at least 1, and --tokens at least 2")
    if not shutil.which(args.chromium):
        parser.error(f"--chromium {args.chromium} is not a program; give the path of Chromium")
    names = [NONE, *(name for name in only if not args.only or name in args.only)]
    renderer, visits = "", []
    try:
        with tempfile.TemporaryDirectory(prefix="glgpt-bench-constraints-") as folder:
            print("bench-constraints: exporting the page", file=sys.stderr, flush=True)
            export(args.model, Path(folder) / "page", ExportOptions(dtype=args.dtype))
            with serving(application(Path(folder) / "page")) as address:
                for number in range(args.visits):
                    print(f"bench-constraints: visit {number + 1}", file=sys.stderr, flush=True)
                    renderer, times = visit(address, names, args)
                    visits.append(times)
    except (GlgptError, OSError, PageFailure) as error:
        print(f"bench-constraints: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench-constraints: interrupted", file=sys.stderr)
        return 130
    rows = [summary(name, visits) for name in names]
    settings = {name: getattr(args, name) for name in ("model", "dtype", "tokens")} | {"renderer": renderer}
    print(json.dumps({"schema": 1, **settings, "rows": rows}, indent=1) if args.json else f"{renderer}\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
