"""Draws one head's attention over a sentence as a PNG, with tokens on both axes.

    python examples/attention_figure.py "To be, or not to be: that is the question." --layer 1 --head 6

`glgpt dump` draws all heads at once. This example makes a custom figure from the attention weights of one head.
"""

from __future__ import annotations

import argparse

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from glgpt import LanguageModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentence", nargs="?", default="To be, or not to be: that is the question.")
    parser.add_argument(
        "--model", default="shakespeare", help="the embedded model, a Hub name such as gpt2, or a folder"
    )
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--head", type=int, default=6)
    parser.add_argument("--out", default="attention.png")
    args = parser.parse_args()

    name = f"h.{args.layer}.attn.pattern"
    with LanguageModel.from_pretrained(args.model) as model:
        ids = model.encode(args.sentence)
        _, cache = model.run_with_cache(ids, name)
        pattern = cache[name][args.head]  # (T, T): row = the token that attends, column = the token attended to
        labels = [model.tokenizer.label(i) for i in ids]

    figure, axes = plt.subplots(figsize=(1.5 + 0.3 * len(ids), 1 + 0.3 * len(ids)), layout="constrained")
    image = axes.imshow(pattern, cmap="magma", vmin=0, vmax=1)
    axes.set_xticks(range(len(ids)), labels, rotation=90)
    axes.set_yticks(range(len(ids)), labels)
    axes.set(title=f"{args.model}, layer {args.layer}, head {args.head}", xlabel="attends to", ylabel="token")
    figure.colorbar(image, label="weight")
    figure.savefig(args.out, dpi=150)
    print(args.out)


if __name__ == "__main__":
    main()
