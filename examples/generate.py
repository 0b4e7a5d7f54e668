"""Generates text and prints it token by token, then the number of tokens and the seed.

    python examples/generate.py "ROMEO:" --tokens 60 --seed 57

`model.generate` yields text in whole characters; `model.generate_ids` yields token ids. The same seed gives the same
text.
"""

from __future__ import annotations

import argparse

from glgpt import LanguageModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="ROMEO:")
    parser.add_argument(
        "--model", default="shakespeare", help="the embedded model, a Hub name such as gpt2, or a folder"
    )
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()

    with LanguageModel.from_pretrained(args.model) as model:
        stream = model.generate(args.prompt, args.tokens, temperature=0.7, top_p=0.9, seed=args.seed, stop="\n\n\n")
        print(args.prompt, end="", flush=True)
        for text in stream:
            print(text, end="", flush=True)
    stats = stream.stats
    print(f"\n\n{stats.prefill_tokens} tokens read, {stats.decode_tokens} decoded, seed {stream.seed}")


if __name__ == "__main__":
    main()
