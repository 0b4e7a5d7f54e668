"""Writes packed programs, which take a quarter of the bytes of plain ones.

The programs of a shape (an architecture with its sizes) repeat each other, but gzip finds repetitions only within
32 KiB. A packed program is JSON with the fields of a `Program`. Three of the fields are shorter:

- `shaders`: the text of a shader is a list of runs of lines, `[first line, number of lines, ..]`. Line numbers count
  the lines of `sources()` first, and then `lines`, which are the program's other lines;
- `textures`: `[name, width, height, layers, format, role]`;
- `entries`: a pass is `[kind, label, inputs.., outputs..]`. `kinds[kind]` has the fields that a pass shares with the
  same pass of other blocks: `[shader, samplers, [[index of the output texture, layer], ..], viewport, row, flops,
  nbytes, slices, clear, first_column, keys]`. A number between passes is the number of a block: in the names of the
  passes that follow, `~` stands for it.

`viewer/src/runtime/engine/packed-program.ts` reads packed programs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import cast

from glgpt.page.documents.packed import Kind, PackedEntry, PackedFields, PackedTexture, Step
from glgpt.page.manifest import compact
from glgpt.program.layout import View
from glgpt.program.recorder import shader_files
from glgpt.program.spec import SCHEMA, Entry, Pass, Program

MAX_TRIED = 40  # maximum number of earlier occurrences of a line that are tried as the start of the longest run
BLOCK = re.compile(r"(?<=\.)\d+(?=\.)")  # the number of a block in a name, such as `h.3.mlp.act`


def sources() -> list[str]:
    """Returns the lines of all shader files; most lines of a shader's text are from these files."""
    files = sorted(shader_files().values(), key=lambda path: path.name)
    return [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def packed(program: Program, known: Sequence[str]) -> str:
    """Returns a program as packed JSON; `known` are the lines of `sources`."""
    lines, shaders = line_runs(program.shaders, known)
    kinds: dict[Kind, int] = {}
    entries = [_entry(entry, kinds) for entry in program.entries.values()]
    textures: list[PackedTexture] = [
        (t.name, t.width, t.height, t.layers, t.format, t.role) for t in program.textures.values()
    ]
    fields: PackedFields = {
        "schema": SCHEMA,
        "scalars": program.scalars,
        "textures": textures,
        "views": _views(program.views),
        "lines": lines,
        "shaders": shaders,
    }
    whole = compact(fields)
    return f'{whole[:-1]},"kinds":[{",".join(map(compact, kinds))}],"entries":{compact(entries)}}}'


def line_runs(texts: Mapping[str, str], known: Sequence[str]) -> tuple[list[str], dict[str, list[int]]]:
    """Converts texts to runs of lines, `[first line, number of lines, ..]`.

    Returns the new lines, which are not in `known`, and the runs of each text by its name. The line numbers of the runs
    count the lines of `known` first, and then the new lines.
    """
    lines, places, found = list(known), defaultdict[str, list[int]](list), {}
    for at, line in enumerate(lines):
        places[line].append(at)
    for name, text in texts.items():
        wanted, runs, at = text.split("\n"), list[int](), 0
        while at < len(wanted):
            if not places[wanted[at]]:
                places[wanted[at]].append(len(lines))
                lines.append(wanted[at])
            tried = places[wanted[at]][-MAX_TRIED:]
            length, first = max((_common(lines, first, wanted, at), first) for first in tried)
            if runs and runs[-2] + runs[-1] == first:
                runs[-1] += length
            else:
                runs += [first, length]
            at += length
        found[name] = runs
    return lines[len(known) :], found


def _common(a: Sequence[str], i: int, b: Sequence[str], j: int) -> int:
    """Returns how many lines of `a` from index `i` on equal those of `b` from index `j` on."""
    length, most = 0, min(len(a) - i, len(b) - j)
    while length < most and a[i + length] == b[j + length]:
        length += 1
    return length


def _entry(entry: Entry, kinds: dict[Kind, int]) -> PackedEntry:
    """Returns an entry with packed passes; adds the passes' kinds to `kinds`, which maps each kind to its number."""
    passes: list[Step] = []
    block = ""
    for p in entry.passes:
        outputs = list(dict.fromkeys(name for name, _ in p.outputs))
        names = [p.label, *(name for _, name in p.inputs), *outputs]
        own = _block(names) or block
        if own != block:
            passes.append(int(own))
            block = own
        kind = _kind(p, outputs)
        passes.append([kinds.setdefault(kind, len(kinds)), *(_short(name, block) for name in names)])
    return {
        "name": entry.name,
        "inputs": list(entry.inputs),
        "outputs": _views(entry.outputs),
        "ping_pong": list(entry.ping_pong),
        "passes": passes,
    }


def _views(views: Mapping[str, View]) -> dict[str, View]:
    """Returns the fields of views by name."""
    names = [field.name for field in fields(View)]
    return cast("dict[str, View]", {key: {n: getattr(view, n) for n in names} for key, view in views.items()})


def _kind(p: Pass, outputs: Sequence[str]) -> Kind:
    targets = tuple((outputs.index(name), layer) for name, layer in p.outputs)
    samplers = tuple(sampler for sampler, _ in p.inputs)
    return p.shader, samplers, targets, p.viewport, p.row, p.flops, p.nbytes, p.slices, p.clear, p.first_column, p.keys


def _block(names: Iterable[str]) -> str | None:
    """Returns the block's number in the first of `names` that has one; None if no name has one."""
    return next((found.group() for name in names if (found := BLOCK.search(name))), None)


def _short(name: str, block: str) -> str:
    """Returns a name with `~` instead of the number `block`; a name without this number is returned unchanged."""
    found = BLOCK.search(name)
    return f"{name[: found.start()]}~{name[found.end() :]}" if found and found.group() == block else name
