"""Checks the regular expressions of a tokenizer.json: their time must grow only linearly with the text's length.

The expressions run in a backtracking engine (Oniguruma, with Ruby's syntax), on texts of a megabyte and more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARACTERS = 10_000
MAX_STEPS = 2000  # maximum steps of a failed match at one position, not counting unbounded repeats
_CLASS = r"\[(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])+\]"
_TOKEN = re.compile(
    r"(?P<atom>\\[pP]\{\^?\w{1,40}\}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[dDwWsSrntbBAzZhH]|\\[^\w\s]|\\ "
    rf"|{_CLASS}|[^\\\[\](){{}}*+?|])"
    r"|(?P<open>\((?P<look>\?(?:=|!|<=|<!))?(?:\?(?:[im-]{1,4}:|:|>))?(?!\?))|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<repeat>[*+?](?P<kind>[?+]?)|\{(?P<least>\d{1,3})(?P<comma>,(?P<most>\d{0,3}))?\})(?![*+?{])",
    re.DOTALL,
)


def checked_pattern(pattern: str) -> str:
    """Returns the regular expression. Raises ValueError if it could be slow, or is not supported.

    A search must not scan a run of characters again from each position in the run. Therefore an unbounded repeat must
    be outside groups. In addition, either nothing after the repeat can fail, as in `\\p{L}+` and `\\s+(?!\\S)`, or the
    next alternative matches the whole run that was scanned, as in `\\s*[\\r\\n]+|\\s+`. `\\p{L}+\\p{N}` is refused: if
    no number follows a run of letters, a search scans the run again from each letter.

    A group may be repeated more than once only if it has a single alternative, contains no other group and always
    matches the same length: `(?:\\d{3})*`, but not `(a+)*` or `(a|b)*`. Back-references, calls, conditions and named
    groups are not supported.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise ValueError(f"the regular expression has {len(pattern):,} characters; the limit is {MAX_CHARACTERS:,}")
    at, seen = 0, _Reader(pattern)
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise ValueError(f"the regular expression is not supported from character {at} on")
        why = seen.problem(token)
        if why:
            raise ValueError(f"the regular expression {why}, at character {at}")
        at = token.end()
    if len(seen.groups) > 1:
        raise ValueError("the regular expression does not close a group")
    why = _slow(seen.groups[0].alternatives)
    if why:
        raise ValueError(f"the regular expression {why}")
    return pattern


@dataclass
class _Item:
    """An atom (one character or class), a group or a lookaround, with its repeat."""

    text: str
    ways: int = 1  # number of ways in which the item can match once
    length: int = 1  # maximum steps of matching the item once
    plain: bool = True  # False for a group of varying length, with several alternatives, or with a group inside
    look: bool = False
    within: bool = False  # True for a group that contains an unbounded repeat
    least: int = 1
    most: int | None = 1
    lazy: bool = False
    repeated: bool = False

    @property
    def unbounded(self) -> bool:
        return self.most is None

    @property
    def harmless(self) -> bool:
        """True if the item can match an empty text. It then never fails, so items before it are not tried again."""
        return self.least == 0

    def all_ways(self) -> int:
        return self.ways * (1 if self.most is None else max(1, self.most - self.least + 1))

    def all_steps(self) -> int:
        return self.length * max(1, self.least, self.most or 0)


class _Group:
    """The alternatives of an open group, or of the whole expression."""

    def __init__(self, start: int, look: bool = False) -> None:
        self.start, self.look, self.nested = start, look, False
        self.alternatives: list[list[_Item]] = [[]]

    def item(self, text: str) -> _Item:
        """Returns the group as one item."""
        exact = all(item.least == item.most for items in self.alternatives for item in items)
        return _Item(
            text,
            ways=sum(_ways(items) for items in self.alternatives),
            length=sum(_length(items) for items in self.alternatives),
            plain=exact and not self.nested and len(self.alternatives) == 1,
            look=self.look,
            within=any(item.unbounded or item.within for items in self.alternatives for item in items),
        )


class _Reader:
    """Reads a regular expression into alternatives of items."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.groups = [_Group(0)]

    def problem(self, token: re.Match[str]) -> str:
        """Reads a token; returns what is wrong with it, or an empty string."""
        group = self.groups[-1]
        if token["open"]:
            group.nested = True
            self.groups.append(_Group(token.start(), bool(token["look"])))
        elif token["close"]:
            if len(self.groups) == 1:
                return "closes a group that is not open"
            self.groups.pop()
            self.groups[-1].alternatives[-1].append(group.item(self.pattern[group.start : token.end()]))
        elif token["bar"]:
            group.alternatives.append([])
        elif token["repeat"]:
            return self._repeat(token, group.alternatives[-1])
        else:
            group.alternatives[-1].append(_Item(token["atom"]))
        return self._excess()

    def _repeat(self, token: re.Match[str], items: list[_Item]) -> str:
        if not items or items[-1].repeated or items[-1].look:
            return "repeats something that cannot be repeated"
        item = items[-1]
        least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(token["repeat"][0], (0, 0))
        if token["least"]:
            least = int(token["least"])
            most = least if not token["comma"] else int(token["most"]) if token["most"] else None
        if not item.plain and most != 1:
            return "repeats a group of varying length"
        item.least, item.most, item.lazy, item.repeated = least, most, token["kind"] == "?", True
        return self._excess()

    def _excess(self) -> str:
        steps = sum(_ways(items) * _length(items) for group in self.groups for items in group.alternatives)
        return f"can take more than {MAX_STEPS:,} steps at one position" if steps > MAX_STEPS else ""


def _ways(items: list[_Item]) -> int:
    product = 1
    for item in items:
        product *= item.all_ways()
    return product


def _length(items: list[_Item]) -> int:
    return sum(item.all_steps() for item in items)


def _slow(alternatives: list[list[_Item]]) -> str:
    """Returns the reason why a search could scan a run of characters repeatedly, or an empty string."""
    for items, after in zip(alternatives, [*alternatives[1:], []], strict=True):
        if any(item.within for item in items):
            return "has an unbounded repeat within a group"
        first = _first_unbounded(items)
        if first is None or _matches_what_it_scans(items, first):
            continue
        if not _scans_once(items[first + 1 :]):
            return "tries each length of a run of characters again for each length of another run"
        if not _consumes(after, items[first].text):
            shown = items[first].text
            return (
                f"could scan a run of {shown} again from each position in the run: if the rest fails, the next "
                "alternative does not match the run"
            )
    return ""


def _first_unbounded(items: list[_Item]) -> int | None:
    return next((at for at, item in enumerate(items) if item.unbounded), None)


def _matches_what_it_scans(items: list[_Item], first: int) -> bool:
    """True if nothing after the unbounded repeat `first` can fail more than once."""
    rest = items[first + 1 :]
    if items[first].text == r"\s" and not items[first].lazy and [item.text for item in rest] == [r"(?!\S)"]:
        return True  # `(?!\S)` can fail only at the end of the run: at an earlier position, a blank follows
    return all(item.harmless for item in rest)


def _scans_once(rest: list[_Item]) -> bool:
    """True if what follows an unbounded repeat fails in a bounded number of steps."""
    again = _first_unbounded(rest)
    if again is None:
        return True
    return rest[again].least <= 1 and all(item.harmless for item in rest[again + 1 :])


def _consumes(items: list[_Item], text: str) -> bool:
    """True if the alternative `items` matches any run of `text`, possibly without one character of the run."""
    first = _first_unbounded(items)
    if first is None or not _matches_what_it_scans(items, first):
        return False
    run = items[first]
    return run.text == text and run.least <= 1 and not run.lazy and all(item.harmless for item in items[:first])
