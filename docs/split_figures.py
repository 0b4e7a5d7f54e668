"""The figures of docs/split.md: what rounding hidden states costs, what they give away, tokens/s over long lines.

python docs/split_figures.py loss [MODEL]
python docs/split_figures.py probe [MODEL]
python docs/split_figures.py distance
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "split")]

from proxies import Delaying  # noqa: E402

from glgpt import GPT2  # noqa: E402
from glgpt.checkpoint.opening import Checkpoint  # noqa: E402
from glgpt.inference.stages.model import look  # noqa: E402
from glgpt.inference.stages.stage import Stage  # noqa: E402
from glgpt.models.part import Part  # noqa: E402
from glgpt.program.formats import Floats  # noqa: E402
from glgpt.split.engine import Engine  # noqa: E402
from glgpt.split.server import StageServer  # noqa: E402
from glgpt.wire import hidden  # noqa: E402

TEXT = ROOT / "tests" / "data" / "shakespeare-validation.txt"
JUDGED, LEARNED = 20, 100  # windows of a whole context each
PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\n"
ROUND_TRIPS = (0, 5, 50, 200)  # milliseconds


def windows(model: GPT2, count: int) -> list[list[int]]:
    """Texts of a whole context, one after another."""
    ids, n = model.encode(TEXT.read_text(encoding="utf-8")), model.config.n_positions
    return [ids[i * n : (i + 1) * n] for i in range(count)]


def nats(logits: Floats, ids: list[int]) -> Floats:
    """The loss of each next token, `[T - 1]`."""
    x = logits[:-1].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    losses: Floats = np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), ids[1:]]
    return losses


def loss(name: str | None) -> None:
    """Loss and greedy agreement by the depth of the cut and how states travel."""
    with GPT2.from_pretrained(name, device="software") as model:
        texts, names = windows(model, JUDGED), model.config.stream()
        runs = [model.run_with_cache(ids, names) for ids in texts]
        config = model.config
    plain = float(np.mean([nats(run[0], ids).mean() for run, ids in zip(runs, texts, strict=True)]))
    print(f"{name}: {sum(map(len, texts))} tokens, {plain:.5f} nats unsplit", flush=True)
    for cut in range(config.n_layer):
        with Checkpoint.open(name) as checkpoint:
            stage = Stage.load(checkpoint, Part(cut, config.n_layer, False, True), device="software")
        captures = stage.captures()
        for wire in ("f16", "int8"):
            apart, extra, tokens = 0, 0.0, 0
            for (logits, found), ids in zip(runs, texts, strict=True):
                states = found[names[cut]]
                sent = hidden.unpack(hidden.pack(states, wire), len(states), states.shape[1], wire)
                ours, _ = look(captures, sent, ())
                apart += int((ours.argmax(axis=1) != logits.argmax(axis=1)).sum())
                extra += float((nats(ours, ids) - nats(logits, ids)).mean()) / len(texts)
                tokens += len(ids)
            print(
                f"before block {cut}  {wire:5} {extra:+.6f} nats, {apart} of {tokens} greedy tokens differ", flush=True
            )
        captures.close()
        stage.close()


def probe(name: str | None) -> None:
    """How many tokens of unseen text a linear map recovers from their hidden states, by depth."""
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
        onehot /= np.sqrt(onehot.sum(axis=0) + 1)  # rare tokens count as much as common ones nearly
        w = np.linalg.solve(x[:cut].T @ x[:cut] + 1e-1 * np.eye(x.shape[1]), x[:cut].T @ onehot)
        right = float(((x[cut:] @ w).argmax(axis=1) == targets[cut:]).mean())
        print(f"{n}: {100 * right:.1f}% of {len(targets) - cut} unseen tokens", flush=True)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of a server of the embedded model's last two blocks, on software GL."""
    engine = Engine(None, "4-5", device="software")
    made = StageServer(engine, port=0)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    try:
        yield made.url
    finally:
        made.stop()
        thread.join()
        engine.close()


def distance() -> None:
    """Tokens/s of one client over lines of several lengths, with and without speculation."""
    with server() as url:
        for temperature in (0.0, 0.8):
            for round_trip in ROUND_TRIPS:
                proxy = Delaying(url, round_trip / 1000)
                line = f"temperature {temperature}, {round_trip:3} ms"
                texts = set()
                for speculate in (False, True):
                    split = GPT2.from_pretrained(rest=proxy.url, speculate=speculate, device="software")
                    with split:
                        split.generate(PROMPT, 20, temperature=temperature, seed=1).read()
                        run = split.generate(PROMPT, 150, temperature=temperature, seed=1)
                        texts.add(run.read())
                        line += (
                            f"  {'speculating' if speculate else 'plain'} {run.figures()['decode_tokens_per_s']:.1f}/s"
                        )
                print(line + ("" if len(texts) == 1 else "  TEXTS DIFFER"), flush=True)
                proxy.close()


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["help"]
    if what == "distance":
        distance()
    elif what in ("loss", "probe"):
        (loss if what == "loss" else probe)(rest[0] if rest else None)
    else:
        print(__doc__)
