"""Lists the regular expressions by which byte-level BPE tokenizers split a text before they merge bytes to tokens.

The desktop and the page both use these expressions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Split:
    """A way of splitting a text.

    `pattern` is the regular expression for tiktoken. `steps` are the steps of a tokenizer.json's pre-tokenizer that
    splits a text in the same way.
    """

    name: str
    pattern: str
    steps: tuple[dict[str, Any], ...]

    def pre_tokenizer(self, prefix_space: bool) -> dict[str, Any]:
        """Returns the pre-tokenizer for a tokenizer.json. With `prefix_space`, it also adds a space before a text."""
        *before, last = self.steps
        steps = [*before, last | {"add_prefix_space": prefix_space}]
        return {"type": "Sequence", "pretokenizers": steps} if before else steps[0]


BYTE_LEVEL: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PLAIN_BYTES = BYTE_LEVEL | {"use_regex": False}


def isolated(pattern: str) -> dict[str, Any]:
    """Returns the step that separates the matches of a regular expression from the text between them."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# Quantifiers with two plus signs are possessive, so that matching a long run of blanks does not backtrack.
GPT2 = Split(
    "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s++",
    (BYTE_LEVEL,),
)
# SmolLM2's split: each digit is separate, and the text between digits is split as in GPT-2.
DIGITS = Split(
    "digits",
    r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?[^\s\p{L}\p{N}]++|\s+(?=\p{N})|\s+(?!\S)|\s++",
    ({"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
)
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Llama 3's split: digits are split into groups of at most three, a word includes the blank or mark that precedes it,
# and line ends belong to the piece of the marks or blanks that precede them.
_LLAMA3 = rf"{_LETTERS}|\p{{N}}{{1,3}}{_REST}"
LLAMA3 = Split("llama3", _LLAMA3, (isolated(_LLAMA3), PLAIN_BYTES))
QWEN2 = rf"{_LETTERS}|\p{{N}}{_REST}"
# Mistral Nemo's split: a capital letter after a small letter begins a word.
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Regular expressions of the pre-tokenizer that llama.cpp calls "default". Each expression splits the pieces that the
# previous expressions have produced.
DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
# Patterns that the page supports in a tokenizer.json's pre-tokenizer of type "Split"
PAGE_PATTERNS = (LLAMA3.pattern, QWEN2, TEKKEN, *DEFAULT)


def javascript(pattern: str) -> str:
    """Returns a regular expression for JavaScript that matches like `pattern`, which must be a pattern of this module.

    Replaces `\\s`, because in JavaScript it matches U+FEFF instead of U+0085. Also replaces possessive quantifiers
    and inline flags, which JavaScript does not have.
    """
    anyhow = "'(?:[sS\u017f]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    pattern = pattern.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", anyhow).replace("++", "+")
    return pattern.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")


def split_of(pre_tokenizer: Any) -> tuple[Split, bool] | None:
    """Returns the split that a tokenizer.json's `pre_tokenizer` makes, and whether it adds a space before the text.

    Returns None unless the split is `GPT2`, `DIGITS` or `LLAMA3`.
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
    if not regex and json.dumps(before[0], sort_keys=True) == json.dumps(LLAMA3.steps[0], sort_keys=True):
        return LLAMA3, False
    return None
