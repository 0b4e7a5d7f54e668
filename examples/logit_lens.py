"""The logit lens: prints what the model would predict if each block were the last one.

    python examples/logit_lens.py "To be, or not to"

Takes the residual stream after the embedding and after every block (`h.0.resid_post`, …). Applies the final norm and
the head to each of these states in NumPy, and prints the likeliest next tokens with their probabilities. The method is
from nostalgebraist, "interpreting GPT: the logit lens". `final_norm` is written for GPT-2 and Llama; the example does
not support Gemma and GPT-NeoX.
"""

from __future__ import annotations

import argparse

import numpy as np

from glgpt import LanguageModel


def final_norm(model: LanguageModel, x: np.ndarray) -> np.ndarray:
    """Applies GPT-2's final layer norm, or Llama's final RMS norm, to one token's vector."""
    epsilon, parameters = model.config.layer_norm_epsilon, model.parameters()
    if "ln_f.weight" in parameters:
        x = x - x.mean()
        return x / np.sqrt((x * x).mean() + epsilon) * parameters["ln_f.weight"] + parameters["ln_f.bias"]
    return x / np.sqrt((x * x).mean() + epsilon) * parameters["norm.weight"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="To be, or not to")
    parser.add_argument("--model", default=None, help="a Hub name or a folder (default: the embedded model)")
    parser.add_argument("--top", type=int, default=4, help="number of tokens to show")
    args = parser.parse_args()

    with LanguageModel.from_pretrained(args.model) as model:
        ids = model.encode(args.prompt)
        _, stream = model.run_with_cache(ids, model.config.stream())
        head = model.parameter(model.config.output).astype(np.float64)  # (vocab, n_embd)
        width = max(map(len, stream))
        for name, rows in stream.items():
            logits = head @ final_norm(model, rows[-1].astype(np.float64))  # of the last token
            p = np.exp(logits - logits.max())
            p /= p.sum()
            best = np.argsort(-p)[: args.top]
            print(f"{name:{width}}  " + "  ".join(f"{model.tokenizer.label(int(i)):>8} {p[i]:4.0%}" for i in best))


if __name__ == "__main__":
    main()
