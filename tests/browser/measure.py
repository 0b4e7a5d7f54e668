"""Compares the page with the desktop on one machine: time per token, prefill, load time, and memory of export and load.

Measures the page and the desktop in alternating runs.

python tests/browser/measure.py [MODEL] [--dtype f16] [--rounds 7] [--mbit 50] [--flags="--use-angle=..."]

MODEL is a folder or Hub name, `shakespeare` (default), or `random-124M`, `random-355M`, `random-774M` or
`random-1558M`: GPT-2's sizes with random weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser import FLAGS, find_chromium, served, wait_without_eval
from playwright.sync_api import sync_playwright

from glgpt.bench.engine import RandomCheckpoint
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import SIZES
from glgpt.program.formats import FORMATS

TOKENS = 48  # tokens of a measured generation
PROMPT = 64
GREEDY: dict[str, float] = {"temperature": 0}
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 1}


def exported(source: str | Path, out: Path, dtype: str) -> dict[str, float]:
    """Exports the page in a separate process. Returns the process's seconds and peak MB, without mapped files."""
    start, most = time.perf_counter(), 0
    command = [sys.executable, "-m", "glgpt", "export", "--model", str(source), "--out", str(out), "--dtype", dtype]
    with subprocess.Popen(command) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            most = max(most, sum(int(lines.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(process.returncode)
    return {"seconds": time.perf_counter() - start, "peak_mb": most * 1024 / 1e6}


def desktop_times(model: LanguageModel, ids: list[int], how: dict[str, Any]) -> tuple[float, float]:
    """Returns the milliseconds of the first token and of each following token."""
    start = time.perf_counter()
    tokens = model.generate_ids(ids, TOKENS, **how)
    next(tokens)
    first = time.perf_counter()
    count = sum(1 for _ in tokens)
    return 1e3 * (first - start), 1e3 * (time.perf_counter() - first) / count


PAGE_TIMES = """async ([ids, tokens, {temperature, top_k, top_p, seed}]) => {
  glgpt.model.cache.ids = [];
  const r = await glgpt.generate({ids, tokens, temperature, topK: top_k, topP: top_p, seed});
  return [r.prefillMs, r.decodeMs / (r.ids.length - 1)];
}"""


WATCH = """
globalThis.most = 0;
setInterval(() => { most = Math.max(most, performance.memory.usedJSHeapSize); }, 4);"""


WRITTEN = (
    "!document.querySelector('.text-caret, .text-recorded') && document.querySelector('.text-token:not(.text-given)')"
)
FETCHED = "performance.getEntriesByType('resource').reduce((bytes, entry) => bytes + entry.transferSize, 0)"


def slow_down(page: Any, mbit: float) -> None:
    """Limits the page's network to this many Mbit/s."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    conditions = {"latency": 20, "downloadThroughput": mbit * 1e6 / 8, "uploadThroughput": mbit * 1e6 / 8}
    session.send("Network.emulateNetworkConditions", {**conditions, "offline": False})


def load_figures(page: Any, visit: Callable[[], Any], weights: int) -> dict[str, float]:
    """Returns the seconds until the page is ready and until its first token, and the MB fetched.

    Also returns the peak size of the page's JavaScript heap as a multiple of the weights' bytes.
    """
    start = time.perf_counter()
    visit()
    page.evaluate("glgpt.ready")
    seconds = time.perf_counter() - start
    page.wait_for_function(WRITTEN)
    return {
        "load_s": seconds,
        "first_token_s": time.perf_counter() - start,
        "fetched_mb": page.evaluate(FETCHED) / 1e6,
        "memory_of_weights": page.evaluate("most") / weights,
        **page.evaluate("glgpt.model.times"),
    }


def main() -> None:
    """Prints the measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="shakespeare")
    parser.add_argument("--dtype", default="f32", choices=tuple(FORMATS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mbit", type=float, default=1000, help="network speed while the page loads")
    parser.add_argument("--flags", default=" ".join(FLAGS), help="Chromium's flags")
    parser.add_argument("--work", default=None, help="folder of the model and page, for later runs too (default: new)")
    args = parser.parse_args()
    work = Path(args.work or tempfile.mkdtemp())
    work.mkdir(exist_ok=True)
    source: Any = args.model
    if args.model.removeprefix("random-") in SIZES:
        source = work / args.model
        if not (source / "config.json").exists():
            RandomCheckpoint(SIZES[args.model.removeprefix("random-")]).save(source)
    out = work / f"page-{args.model}-{args.dtype}"
    figures: dict[str, Any] = {} if out.exists() else {"export": exported(source, out, args.dtype)}
    weights = sum(shard["bytes"] for shard in json.loads((out / "manifest.json").read_text())["shards"])
    with served(out) as site, sync_playwright() as p, LanguageModel.from_pretrained(source, dtype=args.dtype) as model:
        context = p.chromium.launch_persistent_context(
            tempfile.mkdtemp(),
            executable_path=find_chromium(),
            args=[*args.flags.split(), "--enable-precise-memory-info"],
        )
        page = wait_without_eval(context.pages[0])
        page.set_default_timeout(300_000)
        address = f"{site}#tokens=1"
        page.add_init_script(WATCH)
        slow_down(page, args.mbit)
        for visit, go in {"first visit": lambda: page.goto(address), "second visit": page.reload}.items():
            figures[visit] = load_figures(page, go, weights)
            page.evaluate("glgpt.warmUp()")  # an idle page does this automatically
        ids = [(7 * i) % model.config.vocab_size for i in range(PROMPT)]
        turns: dict[str, Callable[[], Any]] = {
            "page": lambda: page.evaluate(PAGE_TIMES, [ids, TOKENS, GREEDY]),
            "desktop": lambda: desktop_times(model, ids, GREEDY),
            "page, sampled": lambda: page.evaluate(PAGE_TIMES, [ids, TOKENS, SAMPLED]),
            "desktop, sampled": lambda: desktop_times(model, ids, SAMPLED),
        }
        times: dict[str, list[Any]] = {name: [] for name in turns}
        for turn in range(args.rounds + 1):
            for name, run in turns.items():
                found = run()
                if turn:  # the first round only warms up
                    times[name].append(found)
        for i, what, how in ((0, "prefill", ""), (1, "decode", ""), (1, "sampled decode", ", sampled")):
            ms = {name: [t[i] for t in times[name + how]] for name in ("page", "desktop")}
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
