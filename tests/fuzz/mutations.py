"""Mutates files. Each mutation is determined by one number, so a case is a list of numbers, and can be shortened.

Mutations use the structure of the formats: the nodes of JSON, the header and data of safetensors, the entries of zip
files, the opcodes of pickles, the parts of texts, and the bytes of other files.
"""

from __future__ import annotations

import io
import json
import pickletools
import random
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

Files = dict[str, bytes]
NUMBERS = [0, 1, -1, 2, 3, 7, 64, 255, 256, 65536, 2**24, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, 10**400]
TEXTS = [
    "",
    "a",
    "\x00",
    "\x1b[2J\x07",
    "\n",
    "\u202e",
    "é",
    "🙂",
    "\ud800",
    "../x",
    "/dev/zero",
    "x" * 5000,
    "NaN",
    "0",
]
# Pieces of text that a tokenizer may misread, to be repeated: kinds of characters, and texts that look like tokens.
UNITS = [
    "a", "A", "1", " ", "-", "'", "\n", "\r\n", "\t", "\0", "\x1c", "\x1b[2J", "\x85",
    "\xa0", "\xad", "\u1680", "\u2028", "\u3000", "\u200b", "\u200d", "\u202e", "\ufeff",
    "\ufffd", "\uffff", "\ue000", "\U000f0000", "\U0010ffff", "\u0301", "e\u0301",
    "\u0323\u0307", "o\u0308\u0332\u034f", "\ud800", "\udc00", "\ud83d\ude42", "é", "Å",
    "ſ", "İ", "ß", "ﬁ", "½", "²", "Ⅷ", "٣", "०", "日本", "ЖЩ", "ω", "שלום", "مرحبا", "हिन्दी",
    "ไทย", "한국", "ᄒ\u1161\u11ab", "🙂", "👩\u200d👩\u200d👧", "🇫🇷", "👍🏽", "'S", "'ll", "I'M",
    "'ſ", "the", " the", "12", "in er", "to be", "==", "<|endoftext|>", "<|endoftext|",
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>", "<|end|>", "<s>",
    "</s>", " </s> ", "<unk>", "<0x41>", "<0xFF>", "▁", "Ġ", "Ċ", "▁the", "Ġthe", "<|",
    "|>",
]  # fmt: skip
COUNTS = [1, 1, 1, 2, 3, 5, 16, 64, 255, 1023, 1024, 1025, 5000, 30_000, 100_000]
OTHERS: list[Any] = [None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), [], {}, [[]], {"": {}}]
OPCODES = [bytes([code.code.encode("latin-1")[0]]) for code in pickletools.opcodes]
PICKLED = [
    b"(", b")", b"}", b"]", b"N", b"0", b"2", b"a", b"e", b"s", b"u", b"t", b"\x85", b"\x86", b"\x87", b"Q", b"R",
    b"b", b".", b"\x94", b"q\x00", b"h\x00", b"K\x01", b"M\xff\xff", b"J\xff\xff\xff\xff", b"\x8a\x01\x7f",
    b"\x8a\x09" + b"\xff" * 8 + b"\x7f", b"X\x01\0\0\0a", b"X\xff\xff\xff\xff", b"cos\nsystem\n", b"\x93",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n",
]  # fmt: skip


def mutated(files: Files, steps: list[int]) -> Files:
    """Returns the files after the mutations that these numbers determine, in order."""
    found = dict(files)
    for step in steps:
        draw = random.Random(step)
        name = draw.choice(sorted(found))
        found[name] = _one(name, found[name], draw)
    return found


def _one(name: str, data: bytes, draw: random.Random) -> bytes:
    known: list[Callable[[bytes, random.Random], bytes]] = [_bytes]
    if name.endswith(".parts.json"):
        known = [_parts, _parts, _parts, _parts, _parts, _json]
    elif name.endswith((".json", ".argv", ".http")):
        known = [_json, _json, _json, _bytes]
    elif name.endswith(".jsonl"):
        known = [_json_lines, _json_lines, _lines, _bytes]
    elif name.endswith(".txt"):
        known = [_lines, _lines, _bytes]
    elif name.endswith(".gguf"):
        known = [_gguf, _gguf, _gguf, _bytes]
    elif name.endswith(".safetensors"):
        known = [_safetensors, _safetensors, _safetensors, _bytes]
    elif data[:2] == b"PK":
        known = [_zip, _zip, _zip, _bytes]
    elif name.endswith(".bin"):
        known = [_pickle, _pickle, _pickle, _bytes]
    try:
        return draw.choice(known)(data, draw)
    except Exception:  # an earlier mutation has broken the format
        return _bytes(data, draw)


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of GGUF's types of numbers


def _gguf(data: bytes, draw: random.Random) -> bytes:
    """Replaces one to three fields of a GGUF header: numbers, or texts with their lengths."""
    try:
        fields = gguf_fields(data)
    except (IndexError, KeyError):  # an earlier mutation has broken the header
        return _bytes(data, draw)
    fields = draw.choice([fields, fields[:60], fields[-150:]])  # most fields are tokens; sizes come first, tensors last
    for start, size, text in sorted(draw.sample(fields, min(len(fields), draw.randint(1, 3))), reverse=True):
        if text:
            new = draw.choice([*TEXTS, *UNITS]).encode("utf-8", "surrogatepass")
            new = draw.choice([new, bytes(draw.randrange(256) for _ in range(size))])
            data = data[: start - 8] + len(new).to_bytes(8, "little") + new + data[start + size :]
        else:
            old = int.from_bytes(data[start : start + size], "little")
            number = draw.choice([draw.choice(NUMBERS), old + draw.randint(-3, 3), old * 2, draw.getrandbits(8 * size)])
            data = data[:start] + (number % (1 << 8 * size)).to_bytes(size, "little") + data[start + size :]
    return data


def gguf_fields(data: bytes) -> list[tuple[int, int, bool]]:
    """Returns (start, size, whether it is a text) of each field in the header of a valid file."""
    found: list[tuple[int, int, bool]] = []
    at = 4

    def number(size: int) -> int:
        nonlocal at
        found.append((at, size, False))
        at += size
        if at > len(data):
            raise IndexError
        return int.from_bytes(data[at - size : at], "little")

    def text() -> None:
        nonlocal at
        size = number(8)
        found.append((at, size, True))
        at += size
        if at > len(data):
            raise IndexError

    def value(kind: int) -> None:
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            inner, count = number(4), number(8)
            if inner == 8:
                for _ in range(count):
                    text()
            else:
                found.append((at, _SIZES[inner], False))
                at += count * _SIZES[inner]
        else:
            number(_SIZES[kind])

    number(4)
    tensors, keys = number(8), number(8)
    for _ in range(keys):
        text()
        value(number(4))
    for _ in range(tensors):
        text()
        for _ in range(number(4)):
            number(8)
        number(4)
        number(8)
    return found


def _bytes(data: bytes, draw: random.Random) -> bytes:
    a, b = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    b = min(b, a + draw.choice([1, 4, 64, 4096]))
    kind = draw.randrange(7)
    if kind == 0 and a < len(data):
        return data[:a] + bytes([data[a] ^ 1 << draw.randrange(8)]) + data[a + 1 :]
    if kind == 1:
        return data[:a]
    if kind == 2:
        return data[:a] + data[b:]
    if kind == 3:
        return data[:b] + data[a:b] * draw.choice([1, 1, 3, 100]) + data[b:]
    if kind == 4:
        return data[:a] + draw.randbytes(b - a) + data[b:]
    if kind == 5:
        return data[:a] + draw.choice(TEXTS).encode("utf-8", "surrogatepass") + data[a:]
    number = draw.choice(NUMBERS) & (2**64 - 1)
    width = draw.choice([1, 2, 4, 8])
    return data[:a] + number.to_bytes(8, "little")[:width] + data[a + width :]


def value(draw: random.Random) -> Any:
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice(NUMBERS) * draw.choice([1, 1, -1])
    if kind == 1:
        return draw.choice(TEXTS)
    if kind == 2:
        return draw.choice(OTHERS)
    deep: Any = draw.choice(OTHERS)
    for _ in range(draw.choice([2, 50, 300])):
        deep = [deep] if draw.random() < 0.5 else {"a": deep}
    return deep


def changed(whole: Any, draw: random.Random) -> Any:
    """Returns a JSON value with one node removed, repeated, renamed, changed, or replaced by a new or another node."""
    nodes: list[tuple[Any, Any]] = []

    def walk(node: Any, depth: int) -> None:
        if len(nodes) < 20_000 and depth < 100:
            for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
                nodes.append((node, key))
                walk(node[key], depth + 1)

    walk(whole, 0)
    if not nodes or draw.random() < 0.02:
        return value(draw)
    holder, key = draw.choice(nodes)
    other, there = draw.choice(nodes)
    kind = draw.randrange(8)
    if kind < 3:
        holder[key] = value(draw)
    elif kind == 3:
        holder[key] = (
            other[there] if not isinstance(other[there], (dict, list)) else json.loads(json.dumps(other[there]))
        )
    elif kind == 4:
        del holder[key]
    elif kind == 5 and isinstance(holder, dict):
        holder[str(value(draw))[:200] if draw.random() < 0.5 else str(there)] = holder.pop(key)
    elif kind == 6 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), holder[key])
    elif isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = draw.choice([holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2, str(holder[key])])
    else:
        holder[key] = value(draw)
    return whole


def _dumped(whole: Any) -> bytes:
    return json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _json(data: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.02:
        return data.replace(b"}", b',"a":' + draw.choice([b"[", b'{"a":']) * draw.choice([500, 5000, 200_000]), 1)
    return _dumped(changed(json.loads(data), draw))


def _parts(data: bytes, draw: random.Random) -> bytes:
    """Changes `parts` of a JSON object, a list of (unit of a text, number of repetitions)."""
    whole = json.loads(data)
    parts = whole["parts"]
    at = draw.randrange(len(parts) + 1)
    kind = draw.randrange(5) if at < len(parts) else 0
    if kind == 0:
        parts[at:at] = [[draw.choice(UNITS), draw.choice(COUNTS)] for _ in range(draw.choice([1, 1, 2, 8, 30]))]
    elif kind == 1:
        parts[at] = [draw.choice(UNITS), draw.choice(COUNTS)]
    elif kind == 2:
        parts[at][1] = draw.choice(COUNTS)
    elif kind == 3:
        parts[at][0] += draw.choice(UNITS)
    else:
        draw.shuffle(parts)
    return json.dumps(whole).encode()


def _json_lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = _json(lines[at], draw)
    return b"\n".join(lines)


def _lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        lines.insert(to, lines[at])
    elif kind == 1:
        lines.insert(to, lines.pop(at))
    elif kind == 2:
        lines[at] = _bytes(lines[at], draw)
    elif kind == 3:
        words = lines[at].split(b" ")
        draw.shuffle(words)
        lines[at] = b" ".join(words)
    else:
        lines[at] = lines[to].split(b" ")[0] + b" " + lines[at].split(b" ")[-1]
    return b"\n".join(lines)


def _safetensors(data: bytes, draw: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + size], data[8 + size :]
    kind = draw.randrange(6)
    if kind == 0:
        return draw.choice([0, 1, size - 1, size + 1, len(data), 2**31, 2**63]).to_bytes(8, "little") + data[8:]
    if kind == 1:
        return data[: 8 + size] + _bytes(rest, draw)
    if kind == 2:
        entries = json.loads(header)
        entry = draw.choice([e for e in entries.values() if "shape" in e])
        what = draw.randrange(4)
        if what == 0:
            entry["shape"] = entry["shape"][::-1]
        elif what == 1:
            entry["dtype"] = draw.choice(["F16", "BF16", "F64", "F32", "I8", "BOOL", "F8_E4M3", "X"])
        elif what == 2:
            at = draw.randrange(2)
            entry["data_offsets"][at] += draw.choice([-4, 4, 1, -1, 2**32, len(rest)])
        else:
            entry["shape"] = draw.choice([[], [0], entry["shape"] + [1], [1] + entry["shape"], [1] * 100])
        header = _dumped(entries)
    elif kind == 3:
        header = header[:1] + header[1:].replace(b'"', b"\\u0022", draw.randrange(3))
    else:
        entries = json.loads(header)
        said = entries.get("__metadata__", {})
        if "glgpt" in said and draw.random() < 0.7:
            said["glgpt"] = _dumped(changed(json.loads(said["glgpt"]), draw)).decode("utf-8", "replace")
            if draw.random() < 0.8:
                said.pop("sha256", None)
        else:
            entries = changed(entries, draw)
        header = _dumped(entries)
    return len(header).to_bytes(8, "little") + header + rest


def _pickle(data: bytes, draw: random.Random) -> bytes:
    """Changes one operation of the pickles with which a file starts."""
    file, starts = io.BytesIO(data), []
    while file.tell() < len(data) and len(starts) < 20_000:
        try:
            base = file.tell() if data[file.tell() : file.tell() + 1] == b"\x80" else -1
            if base < 0:
                break
            starts += [at for _, _, at in pickletools.genops(file) if at is not None]
        except (ValueError, IndexError, UnicodeDecodeError):
            break
    if len(starts) < 2:
        return _bytes(data, draw)
    i = draw.randrange(len(starts) - 1)
    a, b = starts[i], starts[i + 1]
    kind = draw.randrange(6)
    if kind == 0:
        return data[:a] + data[b:]
    if kind == 1:
        return data[:a] + data[a:b] * draw.choice([2, 3, 1000]) + data[b:]
    if kind == 2:
        return data[:a] + draw.choice(PICKLED) + data[b:]
    if kind == 3:
        return data[:a] + draw.choice(PICKLED) * draw.choice([1, 1, 2, 50_000]) + data[a:]
    if kind == 4:
        j = draw.randrange(len(starts) - 1)
        return data[:a] + data[starts[j] : starts[j + 1]] + data[b:]
    return data[:a] + draw.choice(OPCODES) + data[a + 1 :]


def _zip(data: bytes, draw: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        entries = [(info.filename, old.read(info), info.compress_type) for info in old.infolist()]
    at = draw.randrange(len(entries))
    if draw.random() < 0.6:
        at = next(i for i, (name, _, _) in enumerate(entries) if name.endswith(".pkl"))
    name, content, how = entries[at]
    kind = draw.randrange(8)
    if kind < 4:
        entries[at] = name, (_pickle if name.endswith(".pkl") else _bytes)(content, draw), how
    elif kind == 4:
        entries.pop(at)
    elif kind == 5:
        entries.append(entries[at])
    elif kind == 6:
        entries[at] = name, content, zipfile.ZIP_DEFLATED
    else:
        entries[at] = draw.choice([name.upper(), name + "x", "../" + name, draw.choice(entries)[0]]), content, how
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as new:
        warnings.simplefilter("ignore")  # two entries may have the same name on purpose
        for name, content, how in entries:
            new.writestr(zipfile.ZipInfo(name.replace("\0", "")), content, how)
    return out.getvalue()
