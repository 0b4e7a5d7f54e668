"""Trains a small model on your text, plots its losses and generates a sample.

    python examples/train_and_plot.py play.txt --steps 300

On the command line, `glgpt train` trains such a model. It shows the progress, and with --resume it continues a stopped
run. Without a file, this example trains on the scenes in tests/data.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

import glgpt

PLAY = Path(__file__).parent.parent / "tests/data/shakespeare-validation.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default=str(PLAY))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", default="runs/example", help="the run's folder, which must be new")
    args = parser.parse_args()

    small = {"n_layer": 2, "n_head": 2, "n_embd": 64, "context": 64, "batch": 8, "tokenizer": "bytes"}
    often = {"eval_every": max(1, args.steps // 10), "eval_tokens": 2048, "sample_every": 0}
    done = glgpt.train(
        args.text,
        out=args.out,
        steps=args.steps,
        lr=1e-3,
        callbacks=glgpt.TrainingCallbacks(
            on_validation=lambda step, nats, bits: print(
                f"step {step:5}  validation loss {nats:.3f} nats, {bits:.3f} bits per byte"
            )
        ),
        **small,
        **often,
    )

    lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    figure, axes = plt.subplots(layout="constrained")
    for key, style in (("loss", {"linewidth": 0.8}), ("validation_loss", {"marker": "o"})):
        points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        axes.plot(*zip(*points, strict=True), label=key.replace("_", " "), **style)
    axes.set(xlabel="step", ylabel="nats per token")
    axes.legend()
    figure.savefig(done.folder / "losses.png", dpi=150)

    with glgpt.LanguageModel.from_pretrained(done.folder) as model:
        print("".join(model.generate("\n", 40, temperature=0.8, seed=1)))
    print(done.folder / "losses.png")


if __name__ == "__main__":
    main()
