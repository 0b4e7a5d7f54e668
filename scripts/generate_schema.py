"""Writes what the page needs of the Python definitions: JSON schemas and TypeScript modules.

    python scripts/generate_schema.py            rewrites the files that are not current
    python scripts/generate_schema.py --check    exits with 1 and names them instead

`viewer/schema` gets the schemas, and `viewer/src/runtime/generated` the types and constants.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from glgpt.gguf import tokenizer_files

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "viewer/src/runtime/generated"
WIDTH = 120  # of a line


def literal(value: Any, before: int = 0, indent: int = 0) -> str:
    """Returns a JSON value in TypeScript, on one line if that fits after `before` characters."""
    if isinstance(value, dict):
        rows = [(f"{name if name.isidentifier() else json.dumps(name)}: ", item) for name, item in value.items()]
        start, end, space = "{", "}", " "
    elif isinstance(value, list | tuple):
        rows, (start, end, space) = [("", item) for item in value], ("[", "]", "")
    else:
        return json.dumps(value)
    line = f"{start}{space}{', '.join(name + literal(item) for name, item in rows)}{space}{end}"
    if before == 0 or before + len(line) < WIDTH:
        return line if rows else start + end
    inner = " " * (indent + 2)
    parts = [f"{inner}{name}{literal(item, indent + 2 + len(name), indent + 2)},\n" for name, item in rows]
    return f"{start}\n{''.join(parts)}{' ' * indent}{end}"


def constants(about: str, values: dict[str, Any]) -> str:
    """Returns a TypeScript module of constants."""
    lines = [f"// {about} Written by scripts/generate_schema.py.\n"]
    for name, value in values.items():
        start = f"export const {name} = "
        end = " as const" if isinstance(value, dict | list | tuple) else ""
        lines.append(f"{start}{literal(value, len(start) + len(end))}{end};")
    return "\n".join(lines) + "\n"


def pre_tokenizers() -> str:
    """Returns the module of the constants of GGUF's tokenizers."""
    names = "NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE MAX_MERGES MAX_TOKEN MAX_CHARACTERS NO_TOKEN BLANK ROLES"
    names += " ENDS WHOLE_WORDS PRE_TOKENIZERS"
    values = {name: getattr(tokenizer_files, name) for name in names.split()}
    return constants("The tokenizers of GGUF files, as in glgpt/gguf/tokenizer_files.py.", values)


def files() -> dict[str, str]:
    """Returns the contents of all files by path."""
    return {f"{GENERATED}/gguf-tokenizers.ts": pre_tokenizers()}


def main(arguments: list[str]) -> int:
    """Writes the files, or checks them; returns the exit code."""
    stale = []
    for name, content in files().items():
        path = ROOT / name
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            stale.append(name)
            if arguments != ["--check"]:
                path.parent.mkdir(exist_ok=True)
                path.write_text(content, encoding="utf-8")
    verb = "not current; run python scripts/generate_schema.py" if arguments == ["--check"] else "written"
    for name in stale:
        print(f"{name}: {verb}", file=sys.stderr)
    return int(bool(stale) and arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
