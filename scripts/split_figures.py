"""Measures a split model: how rounding hidden states changes the loss, which tokens the states reveal, and the speed.

The results are in docs/design/performance.md and docs/guide/split.md.

python scripts/split_figures.py loss [MODEL] [--windows 5]
python scripts/split_figures.py probe [MODEL]
python scripts/split_figures.py distance
python scripts/split_figures.py token [MODEL] [--device gpu] [--blocks 6-11] [--wire f16]
python scripts/split_figures.py sessions [MODEL] [--device gpu] [--blocks 1-11] [--dtype f16]

MODEL is a folder or a Hub name. Without it, `loss` and `probe` use the embedded model; `token` and `sessions` use
random weights of GPT-2's 124M shape.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.split_proxies import Delaying  # noqa: E402
from helpers.split_serving import running  # noqa: E402
from websockets.asyncio.client import connect  # noqa: E402

from glgpt import GPT2, load  # noqa: E402
from glgpt.bench.engine import RandomCheckpoint  # noqa: E402
from glgpt.checkpoint.opening import Checkpoint  # noqa: E402
from glgpt.inference.stages.model import look  # noqa: E402
from glgpt.inference.stages.stage import Stage  # noqa: E402
from glgpt.models.families.gpt2 import GPT2Config  # noqa: E402
from glgpt.models.part import Part  # noqa: E402
from glgpt.program.formats import Floats  # noqa: E402
from glgpt.split.engine import Engine  # noqa: E402
from glgpt.split.server import StageServer  # noqa: E402
from glgpt.wire import hidden, messages  # noqa: E402
from glgpt.wire.messages import Ask, Open, Step  # noqa: E402

TEXT = ROOT / "tests" / "data" / "shakespeare-validation.txt"
# `probe` trains a linear map on the first LEARNED windows (texts as long as the context) and tests the map on the
# following JUDGED windows.
JUDGED, LEARNED = 20, 100
LOSS_WINDOWS = 20
PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\n"
ROUND_TRIPS = (0, 5, 50, 200)  # milliseconds
CLIENTS = (1, 2, 4, 8)
ROUNDS = 3  # how often each variant (such as split and unsplit) is measured; the variants alternate


def windows(model: GPT2, count: int) -> list[list[int]]:
    """Returns the token ids of `count` consecutive parts of `TEXT`, each as long as the context."""
    ids, n = model.encode(TEXT.read_text(encoding="utf-8")), model.config.n_positions
    return [ids[i * n : (i + 1) * n] for i in range(count)]


def nats(logits: Floats, ids: list[int]) -> Floats:
    """Returns the loss of each token after the first, in nats; the result has shape `[T - 1]`."""
    x = logits[:-1].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    losses: Floats = np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), ids[1:]]
    return losses


def loss(name: str | None, count: int) -> None:
    """Prints how much the loss and the greedy tokens change, for each split point and encoding of hidden states."""
    with GPT2.from_pretrained(name, device="software") as model:
        texts, names = windows(model, count), model.config.stream()
        runs = [model.run_with_cache(ids, names) for ids in texts]
        config = model.config
    plain = float(np.mean([nats(run[0], ids).mean() for run, ids in zip(runs, texts, strict=True)]))
    print(f"{name}: {sum(map(len, texts))} tokens, {plain:.5f} nats unsplit", flush=True)
    for cut in range(config.n_layer):
        with Checkpoint.open(name) as checkpoint:
            stage = Stage.load(checkpoint, Part(cut, config.n_layer, False, True), device="software")
        captures = stage.captures()
        for wire in ("f16", "int8"):
            different, extra, tokens = 0, 0.0, 0
            for (logits, found), ids in zip(runs, texts, strict=True):
                states = found[names[cut]]
                sent = hidden.unpack(hidden.pack(states, wire), len(states), states.shape[1], wire)
                ours, _ = look(captures, sent, ())
                different += int((ours.argmax(axis=1) != logits.argmax(axis=1)).sum())
                extra += float((nats(ours, ids) - nats(logits, ids)).mean()) / len(texts)
                tokens += len(ids)
            print(
                f"before block {cut}  {wire:5} {extra:+.6f} nats, {different} of {tokens} greedy tokens differ",
                flush=True,
            )
        captures.close()
        stage.close()


def probe(name: str | None) -> None:
    """Prints, at each depth, the share of tokens of unseen text that a linear map of the hidden states recovers."""
    with GPT2.from_pretrained(name, device="software") as model:
        names = model.config.stream()
        texts = windows(model, LEARNED + JUDGED)
        states: dict[str, list[Floats]] = {n: [] for n in names}
        for ids in texts:
            for n, array in model.run_with_cache(ids, names)[1].items():
                states[n].append(array)
        vocab = model.config.vocab_size
    n_positions = len(texts[0])
    targets = np.concatenate([np.asarray(ids) for ids in texts])
    cut = LEARNED * n_positions
    for n in names:
        x = np.concatenate(states[n]).astype(np.float64)
        x = (x - x[:cut].mean(axis=0)) / (x[:cut].std(axis=0) + 1e-9)
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        onehot = np.zeros((cut, vocab))
        onehot[np.arange(cut), targets[:cut]] = 1
        onehot /= np.sqrt(onehot.sum(axis=0) + 1)  # so that rare tokens count nearly as much as common tokens
        w = np.linalg.solve(x[:cut].T @ x[:cut] + 1e-1 * np.eye(x.shape[1]), x[:cut].T @ onehot)
        right = float(((x[cut:] @ w).argmax(axis=1) == targets[cut:]).mean())
        print(f"{n}: {100 * right:.1f}% of {len(targets) - cut} unseen tokens", flush=True)


@contextlib.contextmanager
def server(model: str | None = None, blocks: str = "4-5", **options: Any) -> Iterator[StageServer]:
    """Runs a server of the given blocks of a model, by default on software GL."""
    engine = Engine(model, blocks, **{"device": "software"} | options)
    with contextlib.closing(engine), running(StageServer(engine, port=0)) as made:
        yield made


@contextlib.contextmanager
def model_or_random(name: str | None) -> Iterator[str]:
    """Yields the model's name; without one, a folder of random weights of GPT-2's 124M shape."""
    if name:
        yield name
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(RandomCheckpoint(GPT2Config()).save(Path(folder)))


@contextlib.contextmanager
def serving(model: str, blocks: str, device: str, dtype: str) -> Iterator[str]:
    """Runs `glgpt split serve` as a separate process and yields its address."""
    call = [sys.executable, "-m", "glgpt", "split", "serve", "--model", model, "--blocks", blocks, "--listen", "0"]
    call += ["--json", "--device", device, "--dtype", dtype]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate()


def token(name: str | None, device: str, blocks: str | None, dtype: str, wire: str, tokens: int) -> None:
    """Prints the milliseconds per decoded token, unsplit and split with a local server, in alternating runs."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(model_or_random(name))
        with Checkpoint.open(folder) as checkpoint:
            config = checkpoint.config
        blocks = blocks or f"{config.n_layer // 2}-{config.n_layer - 1}"
        url = stack.enter_context(serving(folder, blocks, device, dtype))
        whole = stack.enter_context(GPT2.from_pretrained(folder, dtype, device=device))
        split = stack.enter_context(load(folder, dtype, rest=url, wire=wire, device=device))
        print(f"{Path(folder).name if name else 'random 124M'}, {blocks} on the server, {wire} on the wire", flush=True)
        prompt = np.random.default_rng(0).integers(0, config.vocab_size, 64).tolist()
        for temperature in (0.0, 1.0):
            taken: dict[str, list[float]] = {"unsplit": [], "split": []}
            texts = set()
            for round_ in range(ROUNDS + 1):  # the first round compiles
                for label, model in (("unsplit", whole), ("split", split)):
                    stream = model.generate_ids(prompt, tokens, temperature=temperature, seed=1)
                    texts.add(tuple(stream))
                    if round_:
                        taken[label].append(1000 * stream.stats.decode_s / stream.stats.decode_tokens)
            ms = {label: statistics.median(found) for label, found in taken.items()}
            more = ms["split"] - 1.15 * ms["unsplit"]  # target: at most 1.5
            print(
                f"temperature {temperature}: unsplit {ms['unsplit']:.2f} ms per token, split {ms['split']:.2f}, "
                f"{ms['split'] / ms['unsplit']:.2f}x; split - 1.15 * unsplit: {more:+.2f} ms"
                + ("" if len(texts) == 1 else "  TEXTS DIFFER"),
                flush=True,
            )


async def client(url: str, width: int, tokens: int) -> None:
    """Runs a session that sends the same hidden state `tokens` times."""
    states = np.random.default_rng(0).standard_normal((1, width)).astype("<f4").tobytes()
    async with connect(url, compression=None, proxy=None, max_size=None) as socket:
        await socket.send(messages.encode(Open(protocol=messages.PROTOCOL)))
        await socket.recv()
        for pos in range(tokens):
            await socket.send(messages.encode(Step(seq=pos, pos=pos, n=1, ask=Ask()), states))
            said, _ = messages.decode_answer(await socket.recv())
            if not isinstance(said, messages.Stepped):
                raise SystemExit(f"the server answered {said}")


def clients(url: str, count: int, width: int, tokens: int) -> None:
    """Runs `count` sessions at once and prints the seconds until all have ended."""

    async def run() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(client(url, width, tokens) for _ in range(count)))
        return time.perf_counter() - start

    print(asyncio.run(run()))


def sessions(name: str | None, device: str, blocks: str | None, dtype: str, tokens: int) -> None:
    """Prints a server's tokens/s for several numbers of sessions. Clients run in another process, without a model."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(model_or_random(name))
        with Checkpoint.open(folder) as checkpoint:
            config = checkpoint.config
        blocks = blocks or f"1-{config.n_layer - 1}"
        made = stack.enter_context(server(folder, blocks, device=device, dtype=dtype))
        engine: Any = made.app.engine
        renderer = engine.stage.player.device.renderer
        print(f"{Path(folder).name if name else 'random 124M'}, {blocks} in {dtype} on {renderer}", flush=True)

        def rate(count: int, each: int) -> float:
            call = [sys.executable, __file__, "clients", made.url, str(count), str(config.n_embd), str(each)]
            return count * each / float(subprocess.run(call, check=True, capture_output=True, text=True).stdout)

        for count in CLIENTS:
            rate(count, 4)  # so that the measurements do not include compiling
        rates: dict[int, list[float]] = {count: [] for count in CLIENTS}
        for _ in range(ROUNDS):
            for count, found in rates.items():
                found.append(rate(count, tokens))
        alone = statistics.median(rates[1])
        for count, found in rates.items():
            middle = statistics.median(found)
            print(f"{count} sessions: {middle:.1f} tokens/s, {middle / alone:.2f}x", flush=True)


def distance() -> None:
    """Prints a client's tokens/s over several network latencies, with and without speculation."""
    with server() as made:
        for temperature in (0.0, 0.8):
            for round_trip in ROUND_TRIPS:
                proxy = Delaying(made.url, round_trip / 1000)
                line = f"temperature {temperature}, {round_trip:3} ms"
                texts = set()
                for speculate in (False, True):
                    split = load(rest=proxy.url, speculate=speculate, device="software")
                    with split:
                        split.generate(PROMPT, 20, temperature=temperature, seed=1).read()
                        run = split.generate(PROMPT, 150, temperature=temperature, seed=1)
                        texts.add(run.read())
                        line += (
                            f"  {'speculating' if speculate else 'plain'} {run.figures()['decode_tokens_per_s']:.1f}/s"
                        )
                print(line + ("" if len(texts) == 1 else "  TEXTS DIFFER"), flush=True)
                proxy.close()


def main() -> None:
    """Runs one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="MEASUREMENT")
    for figure in (loss, probe):
        p = commands.add_parser(figure.__name__, help=figure.__doc__)
        p.add_argument("name", nargs="?", metavar="MODEL")
        p.set_defaults(run=figure)
        if figure is loss:
            p.add_argument(
                "--windows", type=int, default=LOSS_WINDOWS, dest="count", help="number of texts as long as the context"
            )
    commands.add_parser("distance", help=distance.__doc__).set_defaults(run=distance)
    for served, held in ((token, "the latter half"), (sessions, "all but the first, without the embedding")):
        p = commands.add_parser(served.__name__, help=served.__doc__)
        p.add_argument("name", nargs="?", metavar="MODEL")
        p.add_argument("--device", default="software")
        p.add_argument("--blocks", metavar="A-B", help=f"blocks that the server holds (default: {held})")
        p.add_argument("--dtype", default="f32")
        p.add_argument("--tokens", type=int, default=40, help="number of tokens per session and round")
        p.set_defaults(run=served)
        if served is token:
            p.add_argument("--wire", default="f32")
    p = commands.add_parser("clients", help="the clients that `sessions` starts")
    p.add_argument("url")
    for number in ("count", "width", "tokens"):
        p.add_argument(number, type=int)
    p.set_defaults(run=clients)
    args = vars(parser.parse_args())
    args.pop("run")(**args)


if __name__ == "__main__":
    main()
