"""The regular expressions with which byte-level BPE tokenizers split a text before merging: GPT-2's and Llama's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Split:
    """A way of splitting: a regular expression for tiktoken, and an equivalent one for JavaScript.

    JavaScript's `\\s` differs in two characters, and it has neither possessive quantifiers nor inline flags.
    """

    name: str
    pattern: str
    javascript: str


# Possessive quantifiers, so that a long run of blanks does not backtrack.
GPT2 = Split(
    "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s++",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+",
)
# SmolLM2's: each digit is separate, and the text between digits is split as GPT-2 does.
DIGITS = Split(
    "digits",
    r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?[^\s\p{L}\p{N}]++|\s+(?=\p{N})|\s+(?!\S)|\s++",
    r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?=\p{N})"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+",
)
# Llama 3's: groups of up to three digits, a punctuation mark together with the following word, separate line ends.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3 = Split(
    "llama3",
    _LLAMA3,
    r"'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*|\p{White_Space}*[\r\n]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+",
)


def split_of(pre_tokenizer: Any) -> tuple[Split, bool] | None:
    """Returns the split of a tokenizer.json's `pre_tokenizer`, and True if it adds a space before the text.

    Returns None if it is none of those above.
    """
    if not isinstance(pre_tokenizer, Mapping):
        return None
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps) or not steps:
        return None
    *before, last = steps
    if last.get("type") != "ByteLevel":
        return None
    space, regex = last.get("add_prefix_space", True) is True, last.get("use_regex", True) is not False
    if not before and regex:
        return GPT2, space
    if len(before) != 1 or space:
        return None
    if regex and before[0].get("type") == "Digits" and before[0].get("individual_digits") is True:
        return DIGITS, False
    isolated = {"type": "Split", "pattern": {"Regex": _LLAMA3}, "behavior": "Isolated", "invert": False}
    if not regex and json.dumps(before[0], sort_keys=True) == json.dumps(isolated, sort_keys=True):
        return LLAMA3, False
    return None
