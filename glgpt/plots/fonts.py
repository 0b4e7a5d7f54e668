"""Finds fonts for the characters of any token: matplotlib's font and, for characters that it lacks, installed fonts."""

from __future__ import annotations

import functools

from matplotlib import font_manager

# Fonts that common desktops install; together they cover nearly every script.
FALLBACKS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Serif CJK JP", "Noto Serif CJK SC", "Source Han Sans",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAGothic", "Noto Sans", "Noto Sans Symbols2",
    "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Arial Unicode MS", "Yu Gothic", "Microsoft YaHei",
    "Malgun Gothic", "Segoe UI Symbol", "FreeSans", "Unifont",
)  # fmt: skip


@functools.cache
def families(first: str) -> list[str]:
    """Returns fonts for matplotlib's `family`: `first`, then installed fonts for the characters that `first` lacks."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [first, *(["DejaVu Sans"] if first != "DejaVu Sans" else []), *(n for n in FALLBACKS if n in installed)]


def drawable(text: str) -> str:
    """Replaces each character that no font has (it would be drawn as an empty box) by its escape, such as \\u65e5."""
    return "".join(c if c.isascii() or ord(c) in _known() else ascii(c)[1:-1] for c in text)


@functools.cache
def _known() -> frozenset[int]:
    """Returns every character that can be drawn."""
    known: set[int] = set()
    for name in families("DejaVu Sans"):
        known.update(font_manager.get_font(font_manager.findfont(name)).get_charmap())
    return frozenset(known)
