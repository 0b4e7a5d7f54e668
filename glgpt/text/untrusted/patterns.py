"""Checks the regular expressions of a tokenizer.json: only those whose failed matches take little time may run.

They run in a backtracking engine, on texts of a megabyte and more.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 10_000
MAX_REPEATS = 3  # unbounded repeats in an alternative; each multiplies a failed match's steps by the text's length
MAX_WAYS = 1000  # ways in which an alternative can match, apart from those repeats
_CLASS = r"\[(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])+\]"
_TOKEN = re.compile(
    r"(?P<atom>\\[pP]\{\^?\w{1,40}\}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[dDwWsSrntbBAzZhH]|\\[^\w\s]|\\ "
    rf"|{_CLASS}|[^\\\[\](){{}}*+?|])"
    r"|(?P<open>\((?:\?(?:[imx-]{1,6}:|:|=|!|<=|<!|>))?(?!\?))|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<repeat>[*+?]|\{(?P<least>\d{1,3})(?P<comma>,(?P<most>\d{0,3}))?\})(?P<kind>[?+]?)",
    re.DOTALL,
)


def checked_pattern(pattern: str) -> str:
    """Returns the regular expression. Raises ValueError if it could take long, or is not supported.

    A group may be repeated only if it contains no other group and always matches the same length: `(?:\\d{3})*`, but
    not `(a+)*` or `(a|ab)*`. Back-references, calls, conditions and named groups are not supported.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise ValueError(f"the regular expression has {len(pattern):,} characters; the limit is {MAX_CHARACTERS:,}")
    at, seen = 0, _Seen()
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise ValueError(f"the regular expression is not supported from character {at} on")
        why = seen.problem(token)
        if why:
            raise ValueError(f"the regular expression {why}, at character {at}")
        at = token.end()
    if seen.groups:
        raise ValueError("the regular expression does not close a group")
    return pattern


class _Group:
    """An open group: its alternatives so far; `plain` if it has one length and contains no group."""

    def __init__(self) -> None:
        self.alternatives, self.plain = 1, True


class _Seen:
    """The open groups of a regular expression, and the cost of the alternative being read."""

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.repeats, self.ways = 0, 1
        self._last: _Group | None = None  # the group that ended with the last token

    def problem(self, token: re.Match[str]) -> str:
        """Reads a token; returns what is wrong with it, or an empty string."""
        last, self._last = self._last, None
        if token["open"]:
            self._varies()
            self.groups.append(_Group())
        elif token["close"]:
            if not self.groups:
                return "closes a group that is not open"
            self._last = self.groups.pop()
            self.ways *= self._last.alternatives
        elif token["bar"]:
            if self.groups:
                self.groups[-1].alternatives += 1
                self._varies()
            else:
                self.repeats, self.ways = 0, 1
        elif token["repeat"]:
            return self._repeated(token, last)
        return self._excess()

    def _repeated(self, token: re.Match[str], last: _Group | None) -> str:
        least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(token["repeat"], (0, 0))
        if token["least"]:
            least = int(token["least"])
            most = least if not token["comma"] else int(token["most"]) if token["most"] else None
        if most != least:
            self._varies()
        if last and not last.plain and most != 1:
            return "repeats a group of varying length"
        if most is None:
            self.repeats += 1
        else:
            self.ways *= max(1, most - least + 1)
        return self._excess()

    def _varies(self) -> None:
        if self.groups:
            self.groups[-1].plain = False

    def _excess(self) -> str:
        if self.repeats > MAX_REPEATS:
            return f"has more than {MAX_REPEATS} unbounded repeats in one alternative"
        return f"can match in more than {MAX_WAYS:,} ways" if self.ways > MAX_WAYS else ""
