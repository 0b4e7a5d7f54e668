"""Provides texts on which tokenizers are compared: a mix of words, digits, code, blanks, CJK, emoji, special tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

PIECES = (
    "To be, or not to be", " the", "the", "and ", "I'll they've WE'D it'S 'ſ", "don't", "O, ", "<", "|>",
    "naïve café", "e\u0301", "\u1e9b\u0323", "\ufb01", "Straße İstanbul", "日本語", "漢字かな交じり", "한국어",
    "العربية", "हिन्दी", "ไทย", "🙂", "👩‍👩‍👧‍👦", "🇩🇪", "☃", "1234567", " 42", "3.14", "½", "²", "٣", "Ⅷ",
    "१२३", "x5", "\n", "\n\n", "\r\n", "\t", " ", "  ", "    ", "\u00a0", "\u2003", "\u0085", "\u200b",
    "\ufeff", "\x1c", "\x00", "\u3000", "\u2028", "def f(x):\n    return x**2  # ok\n",
    "if (a && b) { c[i] += 0x1F; }", "<div class=\"a\">", "https://example.org/a?b=c&d=%20", "$\\alpha_1$",
    "camelCase snake_case", "...", "—", "“quoted”", "¿qué?", "\U0001d54f", "\ufffd", "▁", "<0x41>", "Ġ",
)  # fmt: skip


def texts(count: int, special: Sequence[str], seed: int = 1) -> list[str]:
    """Returns `count` texts, some of which hold the texts of special tokens."""
    draw = random.Random(seed)
    found = ["", *PIECES, *special]
    while len(found) < count:
        parts = []
        for _ in range(draw.randint(1, 9)):
            kind = draw.random()
            if kind < 0.12 and special:
                parts.append(draw.choice(special))
            elif kind < 0.2:
                parts.append(
                    chr(
                        draw.choice(
                            (draw.randint(1, 0x2FF), draw.randint(0x300, 0xD7FF), draw.randint(0x10000, 0x1FFFF))
                        )
                    )
                )
            else:
                parts.append(draw.choice(PIECES))
        found.append("".join(parts))
    return found[:count]
