"""Runs llama.cpp in a separate Python environment: python llama_scores.py FILE.gguf IDS.json OUT.npz

IDS.json holds lists of token ids. Writes the logits of each list as `0`, `1` and so on. With `--losses`, writes the
losses of each list's tokens, except the first token, instead of the logits.
"""

import json
import sys

import numpy as np
from llama_cpp import Llama


def main() -> None:
    path, asked, out = sys.argv[1:4]
    with open(asked) as file:  # noqa: PTH123 - a script of another environment
        texts = json.load(file)
    model = Llama(path, n_ctx=max(map(len, texts)), logits_all=True, verbose=False)
    found = {}
    for i, ids in enumerate(texts):
        model.reset()
        model.eval(ids)
        logits = np.array(model.scores[: len(ids)])
        if "--losses" in sys.argv:
            rows = logits[:-1].astype(np.float64)
            logits = np.logaddexp.reduce(rows, axis=1) - rows[np.arange(len(rows)), ids[1:]]
        found[str(i)] = logits
    np.savez(out, **found)


if __name__ == "__main__":
    main()
