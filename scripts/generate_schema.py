"""Writes JSON schemas and TypeScript modules from Python definitions, so that the page uses the same definitions.

    python scripts/generate_schema.py            rewrites the files that are not current
    python scripts/generate_schema.py --check    lists the files that are not current, and exits with 1 if there are any

The schemas are written to `viewer/schema`, the types and constants to `viewer/src/runtime/generated`.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from glgpt.checkpoint import generation_config
from glgpt.federation import protocol, replies
from glgpt.gguf import splits, tokenizer_files
from glgpt.page import prompts
from glgpt.page.documents import manifest, packed, player, recorded, reference, training
from glgpt.program import spec
from glgpt.program.formats import ALL
from glgpt.text import runs
from glgpt.text.token_ids import MAX_IDS
from glgpt.text.untrusted import tokenizer_document
from glgpt.text.untrusted.patterns import checked_pattern
from glgpt.wire import client, hidden, messages

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "viewer/src/runtime/generated"
WIDTH = 120  # maximum characters of a line


def literal(value: Any, before: int = 0, indent: int = 0, quote: bool = False) -> str:
    """Returns a JSON value as TypeScript; with `quote`, as JSON: with all keys quoted and no trailing commas.

    `before` is the number of other characters on the value's line. If the line is then too long, each item
    gets a line, indented by `indent` + 2 spaces, and the closing bracket is indented by `indent` spaces. If `before`
    is 0, the value is on one line of any length.
    """
    if isinstance(value, dict):
        keys = [name if name.isidentifier() and not quote else json.dumps(name) for name in value]
        rows = [(f"{key}: ", item) for key, item in zip(keys, value.values(), strict=True)]
        start, end, space = "{", "}", " "
    elif isinstance(value, list | tuple):
        rows, (start, end, space) = [("", item) for item in value], ("[", "]", "")
    else:
        return json.dumps(value)
    line = f"{start}{space}{', '.join(name + literal(item, quote=quote) for name, item in rows)}{space}{end}"
    if before == 0 or before + len(line) < WIDTH:
        return line if rows else start + end
    inner = " " * (indent + 2)
    parts = [f"{inner}{name}{literal(item, indent + 2 + len(name), indent + 2, quote)}" for name, item in rows]
    joined = ",\n".join(parts)
    last = "\n" if quote else ",\n"  # JSON has no trailing comma
    return f"{start}\n{joined}{last}{' ' * indent}{end}"


def constants(about: str, values: dict[str, Any]) -> str:
    """Returns a TypeScript module of constants."""
    lines = [f"// {about} Written by scripts/generate_schema.py.\n"]
    for name, value in values.items():
        start = f"export const {name} = "
        end = " as const" if isinstance(value, dict | list | tuple) else ""
        lines.append(f"{start}{literal(value, len(start) + len(end))}{end};")
    return "\n".join(lines) + "\n"


def pre_tokenizers() -> str:
    """Returns the TypeScript module with the constants of GGUF's tokenizers.

    `PRE_TOKENIZERS` maps the name of a pre-tokenizer to the index of its steps in `STEPS`.
    """
    names = "NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE MAX_MERGES MAX_TOKEN MAX_CHARACTERS NO_TOKEN BLANK ROLES"
    names += " ENDS WHOLE_WORDS NORMALIZERS"
    values = {name: getattr(tokenizer_files, name) for name in names.split()}
    steps: list[Any] = []  # several pre-tokenizers have the same steps
    for found in tokenizer_files.PRE_TOKENIZERS.values():
        steps += [] if found in steps else [found]
    values["STEPS"] = steps
    values["PRE_TOKENIZERS"] = {name: steps.index(found) for name, found in tokenizer_files.PRE_TOKENIZERS.items()}
    return constants("The tokenizers of GGUF files, as in glgpt/gguf/tokenizer_files.py.", values)


def sampling() -> str:
    """Returns the TypeScript module with the example prompts and the sampling settings, of texts and of chats."""
    values = {
        "NEUTRAL_PROMPTS": prompts.NEUTRAL,
        "QUESTIONS": prompts.QUESTIONS,
        "TEXT_SAMPLING": prompts.TEXT_SAMPLING,
        "CHAT_SAMPLING": generation_config.CHAT_SAMPLING,
        "RANGES": generation_config.SAMPLING_RANGES,
        "GGUF_KEYS": tokenizer_files.SAMPLING,
    }
    about = "Example prompts and sampling settings (glgpt/page/prompts.py, glgpt/checkpoint/generation_config.py)."
    return constants(about, values)


def patterns() -> str:
    """Returns the TypeScript module with the regular expressions that the page's tokenizers run."""
    known = {checked_pattern(pattern): splits.javascript(pattern) for pattern in splits.PAGE_PATTERNS}
    about = "Regular expressions of a tokenizer.json in JavaScript (glgpt/gguf/splits.py), and limits."
    limits = {"MAX_GROWTH": tokenizer_document.MAX_GROWTH, "MAX_RUN": runs.MAX_RUN_CHARACTERS, "MAX_IDS": MAX_IDS}
    return constants(about, {"GPT2": splits.javascript(splits.GPT2.pattern), "PATTERNS": known, **limits})


# JSON schemas


def plain(schema: Any) -> Any:
    """Returns a schema of pydantic without its titles, defaults and discriminators, which nothing reads.

    Removes the underscore at the beginning of names, and replaces `oneOf` by `anyOf`.
    """
    if isinstance(schema, list):
        return [plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema.replace("#/$defs/_", "#/$defs/") if isinstance(schema, str) else schema
    found = {}
    for name, value in schema.items():
        if name in {"$defs", "properties"}:
            found[name] = {key.removeprefix("_"): plain(item) for key, item in value.items()}
        elif name not in ("title", "default", "discriminator"):
            found["anyOf" if name == "oneOf" else name] = plain(value)
    return found


# A validator checks a schema's keys in their order. If these keys come first, its first error is the clearest.
ORDER = ("$schema", "$id", "title", "description", "type", "additionalProperties", "required")


def ordered(schema: Any) -> Any:
    """Returns a schema as written to a file: with its keys in order and without `tsType`, which only TypeScript needs.

    Also removes `items` and `additionalProperties` where they accept every value. There, they check nothing, but the
    page would take the time to check each of a tokenizer's 100,000 tokens against them.
    """
    if isinstance(schema, list):
        return [ordered(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    first = {key: schema[key] for key in ORDER if key in schema and not isinstance(schema[key], dict)}
    needless = {"array": ("items", {}), "object": ("additionalProperties", True)}.get(str(schema.get("type")))
    found = {key: value for key, value in (first | schema).items() if key != "tsType" and (key, value) != needless}
    return {key: ordered(value) for key, value in found.items()}


def document(name: str, definition: Any, mode: Literal["validation", "serialization"] = "validation") -> dict[str, Any]:
    """Returns the JSON schema of the document `name`, from its Python definition."""
    schema = plain(TypeAdapter(definition).json_schema(by_alias=True, mode=mode))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"glgpt:{name}", **schema}


def title(name: str) -> str:
    """Returns the name with its first letter as a capital."""
    return name[0].upper() + name[1:]


def type_of(schema: Any, indent: int = 0) -> str:
    """Returns the TypeScript type of a JSON schema."""
    if not schema or schema is True:
        return "unknown"
    if "tsType" in schema or "$ref" in schema:
        return str(schema.get("tsType") or title(schema["$ref"].rpartition("/")[2]))
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if "anyOf" in schema or isinstance(kind, list):
        options = schema.get("anyOf") or [schema | {"type": each} for each in kind]
        return " | ".join(dict.fromkeys(type_of(option, indent) for option in options))
    if kind == "array":
        return array_type(schema, indent)
    if kind == "object":
        return object_type(schema, indent)
    return {"integer": "number"}.get(str(kind), str(kind))


def array_type(schema: dict[str, Any], indent: int) -> str:
    """Returns an array's type: a tuple if the length is fixed, and either is at most 4 or each item has its schema."""
    first = [type_of(item, indent) for item in schema.get("prefixItems", [])]
    item, length = type_of(schema.get("items"), indent), schema.get("maxItems")
    if length is not None and length == schema.get("minItems") and (length <= 4 or length == len(first)):
        return tuple_type([*first, *[item] * (length - len(first))], indent)
    return f"readonly ({item})[]" if " " in item and not item.startswith("{") else f"readonly {item}[]"


def tuple_type(items: Sequence[str], indent: int) -> str:
    """Returns the type of a tuple; a long type has several lines."""
    line = ", ".join(items)
    if len(line) < WIDTH // 2:
        return f"readonly [{line}]"
    lines = [f"{' ' * (indent + 2)}{item}," for item in items]
    return "\n".join(["readonly [", *lines, f"{' ' * indent}]"])


def object_type(schema: dict[str, Any], indent: int) -> str:
    """Returns the type of an object: an object with the schema's properties, or a record if the schema has none."""
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


def comment(text: str) -> str:
    """Returns a documentation comment, on one line if it fits."""
    lines = textwrap.wrap(" ".join(text.split()), WIDTH - 3)
    if len(lines) == 1 and len(lines[0]) < WIDTH - 7:
        return f"/** {lines[0]} */"
    return "\n".join(["/**", *(f" * {line}" for line in lines), " */"])


def types(about: str, schema: dict[str, Any], whole: str) -> str:
    """Returns the TypeScript module of a schema's types; `whole` is the name of the document's type."""
    lines = [f"// {about} Written by scripts/generate_schema.py.\n"]
    others = sorted(set(re.findall(r'"glgpt:(\w+)#/\$defs/(\w+)"', json.dumps(schema))))
    for other in dict.fromkeys(other for other, _ in others):
        imported = ", ".join(title(part) for each, part in others if each == other)
        lines.append(f'import type {{ {imported} }} from "./{other}";\n')
    parts: list[tuple[str, dict[str, Any]]] = [*schema.get("$defs", {}).items(), (whole, schema)]
    return "\n".join([*lines, *(declaration(part, definition) for part, definition in parts)])


def declaration(name: str, schema: dict[str, Any]) -> str:
    """Returns the declaration of a type, after the schema's description as a comment."""
    about = schema.get("description")
    found, upper = type_of(schema), title(name)
    kind = f"interface {upper} {found}" if found.startswith("{") else union(upper, found)
    return f"{comment(about)}\nexport {kind}\n" if about else f"export {kind}\n"


def union(name: str, found: str) -> str:
    """Returns the declaration of a union, with a line for each part if it does not fit on one line."""
    line = f"type {name} = {found};"
    names = re.fullmatch(r"\w+( \| \w+)+", found)
    return line if not names or len(line) < WIDTH - 7 else f"type {name} =\n  | " + found.replace(" | ", "\n  | ") + ";"


SIZE, COUNT, NAME = {"type": "integer", "minimum": 1}, {"minimum": 0}, {"minLength": 1}
# Conditions of a program's fields, by the field's name, that the types in `program.spec` do not express
FIELDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("width", "height", "layers", "rows", "cols", "stack"), SIZE),
    **{name: {"items": SIZE} for name in ("tiles", "viewport")},
    **dict.fromkeys(("panel", "flops", "nbytes", "first_column"), COUNT),
    "slices": {"minimum": 0, "maximum": spec.MAX_SLICES},
    **dict.fromkeys(("name", "shader", "texture"), NAME),
    "format": {"enum": spec.TEXTURE_FORMATS}, "role": {"enum": spec.ROLES}, "dtype": {"enum": list(ALL)},
    "schema": {"const": spec.SCHEMA}, "scalars": {"additionalProperties": {"enum": ["int", "float"]}},
    "shaders": {"additionalProperties": {"type": "string", **NAME}},
}  # fmt: skip


def program() -> dict[str, Any]:
    """Returns the schema of programs: the fields of the classes in `program.spec`, as `Program.to_json` writes them."""
    schema = document("program", spec.Program, "serialization")
    for part in (schema, *schema["$defs"].values()):
        part["additionalProperties"] = False
        part["required"] = [name for name in part["properties"] if name != "ping_pong"]
        for name, field in part["properties"].items():
            part["properties"][name] = narrowed(field, FIELDS.get(name, {}))
    entry, step = schema["$defs"]["Entry"]["properties"], schema["$defs"]["Pass"]["properties"]
    step["inputs"] |= {"maxItems": 16}
    step["outputs"] |= {"minItems": 1, "maxItems": 8}
    for pairs in (step["inputs"], step["outputs"], entry["ping_pong"]):
        pairs["items"]["prefixItems"] = [
            item | (NAME if item["type"] == "string" else COUNT) for item in pairs["items"]["prefixItems"]
        ]
    schema["properties"]["entries"] |= {"minProperties": 1}
    return schema


def narrowed(field: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a field with the conditions `more` added."""
    if "items" in more:
        return {"type": "array", "minItems": 2, "maxItems": 2, **more}
    return {"enum": list(more["enum"])} if "enum" in more else more if "const" in more else field | more


def formats() -> str:
    """Returns the TypeScript module with the storage formats."""
    found = {}
    for name, fmt in ALL.items():
        coding = fmt.coding
        levels = {} if coding is None else {
            "memory": f"{'u' if coding.unsigned else 'i'}{coding.bits}", "bits": coding.bits, "group": coding.group,
            "scaleRows": coding.scale_rows, "minimum": coding.minimum, "signed": not coding.unsigned,
            "wide": coding.wide,
        }  # fmt: skip
        found[name] = {"texture": fmt.texture, "columnTiles": fmt.column_tiles_per_texel, **levels}
    return constants("Storage formats, as in glgpt/program/formats.py.", {"FORMATS": found})


def protocols() -> str:
    """Returns the TypeScript module with the constants of split servers and of federations."""
    about = "The messages of split servers (glgpt/wire) and federations (glgpt/federation/protocol.py)."
    split = {
        "PROTOCOL": messages.PROTOCOL, "AGAIN": messages.AGAIN, "MAX_GUESSES": messages.MAX_GUESSES,
        "MAX_FROM_SERVER": messages.MAX_ALTERNATIVES, "MAX_REPLAYS": client.MAX_REPLAYS,
        "ANSWER_TIMEOUT_MS": round(1000 * client.ANSWER_TIMEOUT_S), "WIRES": hidden.FORMATS,
    }  # fmt: skip
    federation = {
        "MAX_NAME": protocol.MAX_NAME, "MAX_DEVICE": protocol.MAX_DEVICE,
        "FRAME": protocol.MAX_FRAME_BYTES, "BLOCK": protocol.BLOCK, "DTYPES": protocol.DTYPES,
        "FATAL": (protocol.NO_TOKEN, protocol.REMOVED, protocol.FULL),
    }  # fmt: skip
    return constants(about, split | federation)


# Modules of message types. For each module: its description, and the definitions of its unions of messages, by name
MESSAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "split-messages": (
        "The messages of split servers, as in glgpt/wire/messages.py.",
        {"ClientMessage": messages.ClientSaid, "ServerMessage": messages.Said},
    ),
    "federation-messages": (
        "The messages of federations, as in protocol.py and replies.py of glgpt/federation.",
        {"ClientMessage": protocol.Said, "GatewayMessage": replies.GatewayMessage, "RestAnswer": replies.RestAnswer},
    ),
}


def message_types(about: str, unions: dict[str, Any]) -> str:
    """Returns the TypeScript module with the types of messages, and with the named `unions` of these types."""
    lines = [f"// {about} Written by scripts/generate_schema.py.\n"]
    parts: dict[str, dict[str, Any]] = {}
    for name, definition in unions.items():
        schema = plain(TypeAdapter(definition).json_schema())
        parts |= schema.pop("$defs") | {name: schema}
    for name, schema in parts.items():
        for field, about_field in schema.get("properties", {}).items():
            if "const" in about_field:  # the tag of a union: always sent, although it has a default
                schema["required"] = [*schema.get("required", ()), field]
        lines.append(declaration(name, schema))
    return "\n".join(lines)


# Documents of a page: for each, its class, and the name of another document whose definitions it shares ("": none)
DOCUMENTS: dict[str, tuple[Any, str]] = {
    "manifest": (manifest.Manifest, ""),
    "training": (training.Training, "manifest"),
    "recorded": (recorded.Recorded, ""),
    "reference": (reference.Reference, ""),
    "player": (player.PlayerIndex, ""),
    "shape": (player.ShapeDescription, "manifest"),
    "packed": (packed.Packed, "program"),
}
UNCHECKED = ("shape", "packed")  # no schema, only types: a page verifies these files by SHA-256


def page_documents(schemas: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Adds the schemas of `DOCUMENTS` to `schemas`, and returns `schemas`."""
    for name, (definition, other) in DOCUMENTS.items():
        schema = closed(document(name, definition))
        schemas[name] = sharing(schema, other, schemas[other]["$defs"]) if other else schema
    return schemas


def closed(schema: Any) -> Any:
    """Returns a schema in which no object may have further fields, except objects that allow them explicitly."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if schema.get("type") != "object" or "properties" not in schema:
        return found
    more = found.pop("additionalProperties", False)
    return found if more is True else found | {"additionalProperties": False}


def sharing(schema: dict[str, Any], name: str, shared: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema that refers to the definitions `shared` of the document `name` instead of containing copies."""
    parts = {part: value for part, value in schema["$defs"].items() if part not in shared}
    text = json.dumps(schema | {"$defs": parts})
    for part in shared:
        text = text.replace(f'"#/$defs/{part}"', f'"glgpt:{name}#/$defs/{part}"')
    found: dict[str, Any] = json.loads(text)
    return found


def files() -> dict[str, str]:
    """Returns the contents of all files by path."""
    modules = {
        "gguf-tokenizers": pre_tokenizers,
        "patterns": patterns,
        "sampling": sampling,
        "formats": formats,
        "protocols": protocols,
    }
    found = {f"{GENERATED}/{name}.ts": content() for name, content in modules.items()}
    found |= {f"{GENERATED}/{name}.ts": message_types(*definition) for name, definition in MESSAGES.items()}
    schemas = {"program": program(), "tokenizer": document("tokenizer", tokenizer_document.PageTokenizer)}
    for name, schema in page_documents(schemas).items():
        whole = {"program": "Program", "tokenizer": "TokenizerSchema"}.get(name, f"{name.title()}Document")
        source = "glgpt/page/documents" if name in UNCHECKED else f"viewer/schema/{name}.schema.json"
        found[f"{GENERATED}/{name}.ts"] = types(f"The types of {source}.", schema, whole)
        if name not in UNCHECKED:
            found[f"viewer/schema/{name}.schema.json"] = literal(ordered(schema), 1, quote=True) + "\n"
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
