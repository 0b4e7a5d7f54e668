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

from pydantic import TypeAdapter

from glgpt.gguf import splits, tokenizer_files
from glgpt.text.untrusted.patterns import checked_pattern
from glgpt.text.untrusted.tokenizer_document import PageTokenizer

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


def patterns() -> str:
    """Returns the module of the regular expressions that the page's tokenizers run."""
    known = {checked_pattern(pattern): splits.javascript(pattern) for pattern in splits.PAGE_PATTERNS}
    about = "Regular expressions of a tokenizer.json in JavaScript, from glgpt/gguf/splits.py."
    return constants(about, {"GPT2": splits.javascript(splits.GPT2.pattern), "PATTERNS": known})


# JSON schemas


def plain(schema: Any) -> Any:
    """Returns a schema of pydantic without the titles, defaults and discriminators that nothing reads."""
    if isinstance(schema, list):
        return [plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema.replace("#/$defs/_", "#/$defs/") if isinstance(schema, str) else schema
    found = {}
    for name, value in schema.items():
        if name == "$defs" or name == "properties":
            found[name] = {key.removeprefix("_"): plain(item) for key, item in value.items()}
        elif name not in ("title", "default", "discriminator"):
            found["anyOf" if name == "oneOf" else name] = plain(value)
    return found


def without(schema: Any, key: str) -> Any:
    """Returns a schema without a key."""
    if isinstance(schema, list):
        return [without(item, key) for item in schema]
    return {k: without(v, key) for k, v in schema.items() if k != key} if isinstance(schema, dict) else schema


def document(name: str, definition: Any) -> dict[str, Any]:
    """Returns the JSON schema of a document."""
    schema = plain(TypeAdapter(definition).json_schema(by_alias=True, mode="validation"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"glgpt:{name}", **schema}


def type_of(schema: Any, indent: int = 0) -> str:
    """Returns the TypeScript type of a JSON schema."""
    if not schema or schema is True:
        return "unknown"
    if "tsType" in schema:
        return str(schema["tsType"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(option, indent) for option in schema["anyOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of(schema | {"type": each}, indent) for each in kind)
    if kind == "array":
        return array_type(schema, indent)
    if kind == "object":
        return object_type(schema, indent)
    return {"integer": "number"}.get(str(kind), str(kind))


def array_type(schema: dict[str, Any], indent: int) -> str:
    """Returns the type of an array, a tuple if its length is fixed."""
    first = [type_of(item, indent) for item in schema.get("prefixItems", [])]
    item, length = type_of(schema.get("items"), indent), schema.get("maxItems")
    if length is not None and length == schema.get("minItems") and length <= 4:
        return f"readonly [{', '.join([*first, *[item] * (length - len(first))])}]"
    return f"readonly ({item})[]" if " " in item and not item.startswith("{") else f"readonly {item}[]"


def object_type(schema: dict[str, Any], indent: int) -> str:
    """Returns the type of an object: one with the properties of the schema, or a record."""
    others = schema.get("additionalProperties")
    if "properties" not in schema:
        return f"Record<string, {type_of(others, indent)}>"
    space, lines = " " * (indent + 2), []
    for name, field in schema["properties"].items():
        if about := field.get("description") if isinstance(field, dict) else None:
            lines.append(f"{space}/** {about} */\n")
        missing = "" if name in schema.get("required", ()) else "?"
        lines.append(f"{space}{name}{missing}: {type_of(field, indent + 2)};\n")
    return f"{{\n{''.join(lines)}{' ' * indent}}}"


def types(name: str, schema: dict[str, Any], whole: str) -> str:
    """Returns the TypeScript module of a schema's types; `whole` is the name of the document's."""
    lines = [f"// The types of viewer/schema/{name}.schema.json. Written by scripts/generate_schema.py.\n"]
    for title, part in [*schema.get("$defs", {}).items(), (whole, schema)]:
        if about := part.get("description"):
            lines.append(f"/** {' '.join(about.split())} */")
        found = type_of(part)
        lines.append(f"export interface {title} {found}\n" if found.startswith("{") else f"export type {title} = {found};\n")
    return "\n".join(lines)


DOCUMENTS: dict[str, tuple[str, Any]] = {"tokenizer": ("TokenizerSchema", PageTokenizer)}


def files() -> dict[str, str]:
    """Returns the contents of all files by path."""
    found = {f"{GENERATED}/gguf-tokenizers.ts": pre_tokenizers(), f"{GENERATED}/patterns.ts": patterns()}
    for name, (whole, definition) in DOCUMENTS.items():
        schema = document(name, definition)
        found[f"{GENERATED}/{name}.ts"] = types(name, schema, whole)
        found[f"viewer/schema/{name}.schema.json"] = json.dumps(without(schema, "tsType"), indent=2) + "\n"
    return found


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
