"""Kills and interrupts training, tokenizer training, exports and servers at random moments, and counts losses.

Run with `make fuzz-signals`, COUNT=500, SEED=0, ONLY=training,tokenizers,exports,serving. A loss is one of: a run that
does not resume, a folder that is half written under its final name, a complete but wrong answer of the server, a
traceback, and an exit code other than 0, 130, 143 or the signal's.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from safetensors.numpy import load_file

TESTS = Path(__file__).parents[1]
FAKE = str(TESTS / "helpers/fake_trainer.py")
PLAY = TESTS / "data/shakespeare-validation.txt"
SMALL = "--n-layer 1 --n-embd 8 --n-head 1 --context 16 --batch 4 --eval-tokens 320 --eval-every 30".split()
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
MAIN = """
import os, signal, sys
from glgpt.__main__ import LINES, entry, leave
for number in LINES:  # as `entry` does first of all
    signal.signal(number, leave)
open(os.environ["FAKE_STARTED"], "w").close()
sys.exit(entry())
"""


def started(line: list[str], folder: Path) -> subprocess.Popen[str]:
    """Starts a command. Returns its process once its signal handlers are set, or once it has ended."""
    mark = folder / "started"
    mark.unlink(missing_ok=True)
    environment = os.environ | {"FAKE_SECONDS": "0.005", "FAKE_STARTED": str(mark), "PYTHONFAULTHANDLER": "1"}
    process = subprocess.Popen(
        [sys.executable, *line],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not mark.exists() and process.poll() is None:
        time.sleep(0.01)
    return process


def struck(line: list[str], folder: Path, number: int, after: float, ends: bool = True) -> str:
    """Sends a command the signal `number` after `after` seconds. Returns what was wrong, or "".

    `ends` is False for a server, which must not exit with 0.
    """
    process = started(line, folder)
    time.sleep(after)
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # makes the fault handler print where the process is
        return f"{signal.Signals(number).name} ended nothing in a minute: {process.communicate()[1][-3000:]}"
    wanted = {-number if number == signal.SIGKILL else 128 + number} | ({0} if ends else set())
    if process.returncode not in wanted or "Traceback" in err:
        return f"exit {process.returncode} after {signal.Signals(number).name}: {err[-300:]!r}"
    return ""


def training(folder: Path, draw: random.Random, number: int) -> str:
    """Checks that a run resumes from its checkpoint, or leaves no folder if it ends before its first checkpoint."""
    run = folder / "run"
    line = [FAKE, "train", "play.txt", "--out", "run", "--save-every", "10", "--sample-tokens", "5", *SMALL]
    if run.exists():
        line = [FAKE, "train", "--resume", "run", "--steps", "100000", "--warmup", "0"]
    wrong = struck(line, folder, number, draw.uniform(0.0, 2.5))
    if wrong or not run.exists():
        return wrong
    try:
        reached = int(load_file(run / "state.safetensors")["step"][0])
    except Exception as error:
        return f"the state is lost: {error}"
    again = started([FAKE, "train", "--resume", "run", "--steps", str(reached + 3), "--warmup", "0"], folder)
    try:
        _, err = again.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        again.send_signal(signal.SIGABRT)
        return f"resuming takes more than five minutes: {again.communicate()[1][-3000:]}"
    if draw.random() < 0.2:
        shutil.rmtree(run)
    return "" if again.returncode == 0 else f"resuming: exit {again.returncode}: {err[-300:]!r}"


def tokenizers(folder: Path, draw: random.Random, number: int) -> str:
    line = ["-c", MAIN, "tokenizer", "train", "play.txt", "--vocab", "1024", "--out", "bpe"]
    wrong = struck(line, folder, number, draw.uniform(0.0, 1.0))
    there = {p.name for p in (folder / "bpe").glob("[!.]*")}
    shutil.rmtree(folder / "bpe", ignore_errors=True)
    whole = {"vocab.json", "merges.txt", "tokenizer_config.json"}
    return wrong or ("" if number == signal.SIGKILL or there in (set(), whole) else f"bpe holds {sorted(there)}")


def exports(folder: Path, draw: random.Random, number: int) -> str:
    """Checks that the page is complete, either the previous or the new one. Only SIGKILL may leave other files."""
    page = folder / "page"
    before = (page / "manifest.json").read_bytes() if page.exists() else b""
    model = TESTS / "goldens" / draw.choice(["one-f16", "vocab3-untied"])
    line = ["-c", MAIN, "export", "--model", str(model), "--out", "page", "--device", "software"]
    wrong = struck(line, folder, number, draw.uniform(0.0, 5.0))
    left = list(folder.glob(".page.*"))
    for beside in left:
        shutil.rmtree(beside)
    if wrong or (left and number != signal.SIGKILL):
        return wrong or f"{left[0].name} is left"
    if not page.exists():
        return "the earlier page is gone" if before else ""
    text = (page / "manifest.json").read_bytes()
    if before and text != before and json.loads(text)["model"] != model.name:
        return "the page is neither the earlier one nor the new one"
    manifest = json.loads(text)
    listed = manifest["files"] | {shard["file"]: shard for shard in manifest["shards"]}
    bad = [f for f, about in listed.items() if hashlib.sha256((page / f).read_bytes()).hexdigest() != about["sha256"]]
    if draw.random() < 0.3:
        shutil.rmtree(page)
    return f"the page's {bad[0]} differs from its manifest" if bad else ""


def serving(folder: Path, draw: random.Random, number: int) -> str:
    """Checks that the server's complete answers equal the file, and that its port is free afterwards."""
    site = folder / "site"
    if not site.exists():
        site.mkdir()
        (site / "index.html").write_text("<title>page</title>")
        (site / "large.bin").write_bytes(random.Random(1).randbytes(1 << 20))
    large = (site / "large.bin").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended, bad = threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("GET", "/large.bin")
                if connection.getresponse().read() != large:
                    bad.append("an answer is not the file")
            except (OSError, http.client.HTTPException):  # the server has not started or has ended
                time.sleep(0.02)
            finally:
                connection.close()

    client = threading.Thread(target=ask)
    client.start()
    line = ["-c", MAIN, "serve", "site", "--port", str(port)]
    wrong = struck(line, folder, number, draw.uniform(0.0, 3.0), ends=False)
    ended.set()
    client.join()
    if not wrong and not bad:
        with socket.create_server(("127.0.0.1", port)):
            pass
    return wrong or "".join(bad[:1])


KINDS = (training, tokenizers, exports, serving)


def main() -> int:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # jobs in a shell's background ignore SIGINT, as do their children
    count, draw = int(os.environ.get("COUNT") or 500), random.Random(int(os.environ.get("SEED") or 0))
    only = os.environ.get("ONLY", "")
    kinds = [kind for kind in KINDS if not only or kind.__name__ in only.split(",")]
    tally, losses = Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="glgpt-signals-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        shutil.copyfile(PLAY, folder / "play.txt")
        for i in range(count):
            kind, number = kinds[i % len(kinds)], draw.choice(SIGNALS)
            wrong = kind(folder, draw, number)
            tally[f"{kind.__name__} {signal.Signals(number).name}"] += 1
            if i % 25 == 24:
                print(f"{i + 1} of {count} strikes, {len(losses)} losses", flush=True)
            if wrong:
                losses.append(f"{kind.__name__}: {wrong}")
                print(losses[-1], flush=True)
    print(f"{count} strikes, {len(losses)} losses: " + ", ".join(f"{k} {n}" for k, n in sorted(tally.items())))
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
