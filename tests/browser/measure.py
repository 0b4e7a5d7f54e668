"""The page beside the desktop, by turns, on one machine: time a token, prefill, load, and memory while loading.

python tests/browser/measure.py [MODEL] [--dtype f16] [--rounds 7] [--flags="--use-angle=..."]

MODEL is a folder or Hub name, `shakespeare` (default) or `random-124M`, GPT-2's size with random weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser import FLAGS, find_chromium, served, wait_without_eval
from playwright.sync_api import sync_playwright

from glgpt.bench.engine import RandomCheckpoint
from glgpt.inference.model import GPT2
from glgpt.models.gpt2.config import GPT2Config
from glgpt.page.export import export
from glgpt.program.formats import FORMATS

TOKENS = 48  # a measured generation
PROMPT = 64


def desktop_times(model: GPT2, ids: list[int]) -> tuple[float, float]:
    """Milliseconds of the first token and of each that follows."""
    start = time.perf_counter()
    tokens = model.generate_ids(ids, TOKENS, temperature=0)
    next(tokens)
    first = time.perf_counter()
    count = sum(1 for _ in tokens)
    return 1e3 * (first - start), 1e3 * (time.perf_counter() - first) / count


PAGE_TIMES = """async ([ids, tokens]) => {
  glgpt.model.cached = [];
  const r = await glgpt.generate({ids, tokens, temperature: 0});
  return [r.prefillMs, r.decodeMs / (r.ids.length - 1)];
}"""


WATCH = """
globalThis.most = 0;
setInterval(() => { most = Math.max(most, performance.memory.usedJSHeapSize); }, 4);"""


def load_figures(page: Any, visit: Callable[[], Any], weights: int) -> dict[str, float]:
    """Seconds until the page can be used, and the most memory its script held, buffers too, in weights."""
    start = time.perf_counter()
    visit()
    page.evaluate("glgpt.ready")
    seconds = time.perf_counter() - start
    return {
        "load_s": seconds,
        "memory_of_weights": page.evaluate("most") / weights,
        **page.evaluate("glgpt.model.times"),
    }


def main() -> None:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="shakespeare")
    parser.add_argument("--dtype", default="f32", choices=tuple(FORMATS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--flags", default=" ".join(FLAGS), help="of Chromium")
    parser.add_argument("--work", default=None, help="folder to keep the model and its page in (default: a new one)")
    args = parser.parse_args()
    work = Path(args.work or tempfile.mkdtemp())
    work.mkdir(exist_ok=True)
    source: Any = args.model
    if args.model == "random-124M":
        source = work / "random-124M"
        if not (source / "config.json").exists():
            RandomCheckpoint(GPT2Config()).save(source)
    out = work / f"page-{args.model}-{args.dtype}"
    if not out.exists():
        export(source, out, args.dtype)
    weights = sum(shard["bytes"] for shard in json.loads((out / "manifest.json").read_text())["shards"])
    with served(out) as site, sync_playwright() as p, GPT2.from_pretrained(source, dtype=args.dtype) as model:
        context = p.chromium.launch_persistent_context(
            tempfile.mkdtemp(),
            executable_path=find_chromium(),
            args=[*args.flags.split(), "--enable-precise-memory-info"],
        )
        page = wait_without_eval(context.pages[0])
        page.set_default_timeout(300_000)
        address = f"{site}#tokens=1"
        page.add_init_script(WATCH)
        figures: dict[str, Any] = {}
        for visit, go in {"first visit": lambda: page.goto(address), "second visit": page.reload}.items():
            figures[visit] = load_figures(page, go, weights)
            page.wait_for_function("!document.querySelector('.caret')")
        ids = [(7 * i) % model.config.vocab_size for i in range(PROMPT)]
        turns: dict[str, Callable[[], Any]] = {
            "page": lambda: page.evaluate(PAGE_TIMES, [ids, TOKENS]),
            "desktop": lambda: desktop_times(model, ids),
        }
        times: dict[str, list[Any]] = {name: [] for name in turns}
        for turn in range(args.rounds + 1):
            for name, run in turns.items():
                found = run()
                if turn:  # the first warms up
                    times[name].append(found)
        for i, what in enumerate(("prefill", "decode")):
            ms = {name: [t[i] for t in found] for name, found in times.items()}
            middle = {name: statistics.median(values) for name, values in ms.items()}
            least = {name: min(values) for name, values in ms.items()}
            ratio = [a / b for a, b in zip(ms["page"], ms["desktop"], strict=True)]
            figures[what] = {
                "median_ms": middle,
                "least_ms": least,
                "ratio_of_medians": middle["page"] / middle["desktop"],
                "ratio_of_least": least["page"] / least["desktop"],
                "median_of_ratios": statistics.median(ratio),
            }
        info = page.evaluate("glgpt.info()")
        figures |= {key: info[key] for key in ("renderer", "kernel", "rows", "fetch", "probeMs")}
        figures["desktop kernel"] = {"kernel": model.choice.kernel.name, "contiguous": model.choice.kernel.contiguous}
        context.close()
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
