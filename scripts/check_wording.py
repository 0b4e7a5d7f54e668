"""Checks wording in comments, docstrings, messages and documents, and the subjects of a branch's commits.

    python scripts/check_wording.py            list the places that match `RULES` (most are in CONTRIBUTING.md)
    python scripts/check_wording.py --commits origin/main      also check the subjects of the commits since origin/main

Each of `RULES` is a pattern and what to write instead. Phrases in `ALLOWED` are correct English and are skipped.
Exits with 1 if there is a hit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

RULES = {
    r"behind": "after, following",
    r"beside": "next to, compared with, as well as",
    r"anew|once more": "again",
    r"so many": "this many",
    r"in place of": "instead of",
    r"hears? of": "is notified of, receives",
    r"(?:is|are|was|were) away": "is offline, is disconnected",
    r"whoever|nobody": "name the actor",
    r"(?:run|token|step|round|version|visit) before": "previous",
    r"(?:it|that|which) never knows?|never knows": "does not depend on",
    r"what (?:came|comes|lies|is due|is left)": "name the thing",
    r"(?:is|are) no": "is not a",
    r"theirs|foreign": "remote",
    r"wish(?:es)?": "options",
    r"of (?:its|one's|their|his) own": "own, separate",
    r"in vain": "discarded, without effect",
    r"where there (?:is|are) (?:none|any|no)": "if there is none",
    r"goes? on": "continues",
    r"mend(?:s|ed|ing)?": "fix",
}
ALLOWED = re.compile(
    r"behind (?:(?:a|an|the|its|one) )?(?:reverse )?(?:proxy|path|prefix|nginx|Caddy|TLS|NAT)"
    r"|left behind|\.beside\(|foreign (?:key|origin)|own (?:tokens|blocks|weight)"
    r"|in (?:its|their) own way|a token before the previous one|each of its own blocks"
    r"|there (?:is|are) no|(?:is|are) no (?:longer|more|larger|slower|less)",
    re.IGNORECASE,
)
NOUN_CLAUSE = re.compile(r'^\s*(?:"""|/\*\*|//|#)\s*(?:What|Whether|Where|How|All that|That which)\b(?!.*\?)')
STRING = r'"(?:[^"\\\n]|\\.)*"'
TEXTS = {
    ".py": rf'#.*$|"""[\s\S]*?"""|{STRING}',
    ".ts": rf"(?<!:)//.*$|/\*[\s\S]*?\*/|{STRING}|`[^`]*`",
    ".frag": r"//.*$",
    ".toml": r"#.*$",
}
TEXTS |= {".tsx": TEXTS[".ts"] + r"|>[^<>{}=;]{8,}<", ".glsl": TEXTS[".frag"]}
SKIPPED = re.compile(
    r"^(?:tests/data/|tests/fuzz/regressions/|weights/|glgpt/data/bundled|glgpt/inspection/format_cost|scripts/check_wording|CONTRIBUTING)|mutants|shakespeare|\.lock$"
)
MAX_SUBJECT = 72  # characters


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for the lines of a source file's comments and strings, or of a document's prose."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.split("\n"), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    for found in re.finditer(TEXTS[path.suffix], text, re.MULTILINE):
        if found[0][0] in '"`' and len(found[0].split()) < 3:  # a key or a name
            continue
        first = text.count("\n", 0, found.start()) + 1
        for offset, line in enumerate(found.group().split("\n")):
            yield first + offset, line


def wording(root: Path) -> Iterator[str]:
    """Yields a message for each match of a rule in the source files and documents that git tracks."""
    rules = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), better) for pattern, better in RULES.items()]
    for name in git(root, "ls-files").splitlines():
        path = root / name
        if SKIPPED.search(name) or path.suffix not in {*TEXTS, ".md"} or not path.is_file():
            continue
        for number, line in texts(path):
            checked = ALLOWED.sub("", line)
            for rule, better in rules:
                if found := rule.search(checked):
                    yield f"{name}:{number}: {found[0]!r}: write {better}"
            if path.suffix != ".md" and NOUN_CLAUSE.search(checked):
                yield f"{name}:{number}: start with a verb: {line.strip()[:60]}"


def subjects(root: Path, base: str) -> Iterator[str]:
    """Yields a message for each fault in the subjects of the commits since `base`."""
    for line in git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD").splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > MAX_SUBJECT:
            yield f"{commit}: the subject has {len(subject)} characters; {MAX_SUBJECT} at most: {subject}"
        if subject.endswith(".") or ";" in subject or not subject[:1].isupper():
            yield f"{commit}: write one imperative sentence without a full stop: {subject}"


def git(root: Path, *arguments: str) -> str:
    """Returns what a git command prints. Raises CalledProcessError if it fails."""
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Prints the hits and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", metavar="BASE", help="also check the subjects of the commits since BASE")
    arguments = parser.parse_args()
    root = Path(__file__).parent.parent
    hits = [*wording(root), *(subjects(root, arguments.commits) if arguments.commits else ())]
    print("\n".join(hits) or "wording: no hits")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
