"""Measures the cost of drawing the page: generates texts in alternating runs, each with another tab open.

python tests/browser/strip_cost.py [--rounds 12] [--tokens 120] [--dtype f16] [--flags="--use-angle=..."] [--json]

`closed` shows the Device tab, which draws nothing during generation. `open` shows the Text tab with alternatives,
settings and the picture of the model's blocks. `attention` shows the Attention tab, whose grid grows with the text. The
result is the median, over all rounds, of the ratio to `closed` in the same round: the computer's speed may differ from
round to round. Processor time includes all of Chromium's processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from browser import FLAGS, find_chromium, served, wait_without_eval
from playwright.sync_api import sync_playwright

from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions

VIEWS = {"closed": "Device", "open": "Text", "attention": "Attention"}
NOTE = """() => {
  const generate = glgpt.generate.bind(glgpt);
  glgpt.generate = async (options) => {
    const made = await generate(options);
    glgpt.written?.(made.decodeMs / (made.ids.length - 1), made.ids.length);
    return made;
  };
}"""
# A new seed generates a new text. The script waits on a promise, since polling would make the page draw.
WRITE = """(seed) => new Promise((done) => {
  glgpt.written = (...told) => done(told);
  location.hash = location.hash.replace(/seed=\\d+/, `seed=${seed}`);
})"""


def below(root: int) -> list[int]:
    """Returns the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # the process has ended
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def processor_seconds() -> float:
    """Returns the processor seconds of all descendants of this process; 0 if the system does not report them."""
    ticks = 0
    for pid in below(os.getpid())[1:]:
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(page: Any, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Returns (milliseconds, processor milliseconds) per token for each view and round, without the first round."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in VIEWS}
    seeds = itertools.count(2)
    for number in range(rounds + 1):
        for kind in sorted(VIEWS, reverse=bool(number % 2)):
            seed = next(seeds)
            page.get_by_role("navigation", name="Views").get_by_role("button", name=VIEWS[kind], exact=True).click()
            page.wait_for_timeout(1500)  # until the view has finished drawing
            before = processor_seconds()
            ms, count = page.evaluate(WRITE, seed)
            used = processor_seconds() - before
            if number:
                found[kind].append((ms, 1e3 * used / count))
    return found


def figures(found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Returns each view's medians, and the medians of the view's ratios to `closed` in the same round."""
    told: dict[str, Any] = {}
    for kind, runs in found.items():
        told[kind] = {
            "ms": statistics.median(ms for ms, _ in runs),
            "processor_ms": statistics.median(p for _, p in runs),
        }
        if kind != "closed":
            pairs = list(zip(runs, found["closed"], strict=True))
            told[kind]["times_closed"] = statistics.median(a[0] / b[0] for a, b in pairs)
            told[kind]["processor_times_closed"] = statistics.median(a[1] / max(b[1], 1e-9) for a, b in pairs)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--flags", help="Chromium's flags instead of the tests' (for a GPU: --use-angle=vulkan)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        export(None, Path(folder) / "page", ExportOptions(args.dtype))
        with served(Path(folder) / "page") as address:
            flags = args.flags.split() if args.flags else FLAGS
            browser = p.chromium.launch(executable_path=find_chromium(), args=flags)
            page = wait_without_eval(browser.new_page(viewport={"width": 1366, "height": 768}))
            page.set_default_timeout(600_000)
            page.goto(f"{address}#tokens={args.tokens}&seed=1")
            page.evaluate("glgpt.ready")
            page.wait_for_function(
                "!document.querySelector('.text-caret') && document.querySelector('.text-rate')", timeout=600_000
            )
            page.evaluate(NOTE)
            told = {"renderer": page.evaluate("glgpt.info().renderer"), **figures(measured(page, args.rounds))}
            browser.close()
    if args.json:
        print(json.dumps(told, indent=1))
        return
    print(told.pop("renderer"))
    for kind, row in told.items():
        share = f", {row['times_closed']:.3f} of closed" if "times_closed" in row else ""
        used = f", {row['processor_times_closed']:.3f} of closed" if "times_closed" in row else ""
        print(f"{kind:10} {row['ms']:7.2f} ms per token{share}; processor {row['processor_ms']:7.2f} ms{used}")


if __name__ == "__main__":
    main()
