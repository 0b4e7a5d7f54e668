"""What a tokenizer.json says about special tokens, as the `tokenizers` library reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any


def added_ids(vocab: Mapping[str, int], contents: Iterable[str]) -> dict[str, int]:
    """The id of each added token: its id in `vocab`, or else the next one after the vocabulary.

    The ids that the file itself gives are not used: `tokenizers` renumbers such tokens when it loads them.
    """
    following = itertools.count(len(vocab))
    return {
        content: vocab[content] if content in vocab else next(following)
        for content in filter(None, dict.fromkeys(contents))
    }


def around_text(post_processor: Any) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer.json's post-processor puts before and after a single text."""
    before, after = list[int](), list[int]()
    steps = post_processor.get("processors", [post_processor]) if isinstance(post_processor, dict) else []
    for step in steps:
        if step["type"] in ("BertProcessing", "RobertaProcessing"):
            before, after = [step["cls"][1]], [step["sep"][1]]
        elif step["type"] == "TemplateProcessing":
            side = before
            for piece in step["single"]:
                if "Sequence" in piece:
                    side = after
                else:
                    side += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return before, after
