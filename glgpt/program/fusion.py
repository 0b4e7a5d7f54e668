"""Horizontal fusion: passes of one shader that do not depend on each other become one pass.

A small pass costs its start, not its work (docs/decisions.md), and a training step has dozens of passes that differ in
their textures alone: AdamW of each vector, the last step of each bias's gradient, a transposed weight for each block. A
fused shader runs the text once for each of them, and writes to the colour attachments of all. XLA fuses an optimizer's
updates in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from glgpt.program.spec import Limits

SMALL = 1 << 17  # texels: a larger pass has work enough, and a larger tensor is not kept alive for this

_DEFINE = re.compile(r"^#define (\w+)", re.MULTILINE)
_GLOBAL = re.compile(r"^(?:const )?\w+ (\w+)(?:\[.*\])?(?: =.*)?[;(]", re.MULTILINE)  # functions and variables
_INTERFACE = re.compile(r"^(?:uniform|layout\(location = \d+\) out) \w+ (\w+);", re.MULTILINE)
_LOCATION = re.compile(r"^layout\(location = (\d+)\) out (\w+) out_\d+;", re.MULTILINE)


@dataclass(frozen=True)
class Movable:
    """What the place of a pass depends on: its shader, and the tensors that it reads and writes, with their texels.

    `samplers` and `targets` are what it takes of a device's limits. A tensor of 0 texels outlives the entry, so that
    moving the pass keeps it no longer. `fixed`: the pass stays by itself.
    """

    shader: str
    reads: Mapping[Hashable, int]
    writes: Mapping[Hashable, int]
    samplers: int
    targets: int
    fixed: bool = False


def schedule(passes: Sequence[Movable], limits: Limits) -> list[list[int]]:
    """Groups of passes, in an order that computes the same: each group can be one pass of these limits.

    Members have the same shader, and none reads or writes what another one writes. A group is played where its last
    member stood if nothing in between needs what it writes, else where its first stood.
    """
    groups = [_Group([i], p, frozenset(p.reads), frozenset(p.writes)) for i, p in enumerate(passes)]
    before = None
    while before != len(groups):  # what has moved may have made room for what it read
        before = len(groups)
        groups = _sweep(groups, limits)
    return [g.members for g in groups]


@dataclass(eq=False)
class _Group:
    members: list[int]
    first: Movable
    reads: frozenset[Hashable]
    writes: frozenset[Hashable]

    def conflicts(self, other: _Group) -> bool:
        """Whether one writes what the other reads or writes."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def _sweep(groups: Sequence[_Group], limits: Limits) -> list[_Group]:
    done: list[_Group] = []
    found: dict[str, _Group] = {}
    for group in groups:
        done.append(group)
        if group.first.fixed:
            continue
        earlier = found.get(group.first.shader)
        if not (earlier and _fit(earlier, group, limits) and _merge(done, earlier)):
            found[group.first.shader] = group
    return done


def _fit(a: _Group, b: _Group, limits: Limits) -> bool:
    count = len(a.members) + len(b.members)
    return count * a.first.targets <= limits.max_draw_buffers and count * a.first.samplers <= limits.max_texture_units


def _merge(groups: list[_Group], earlier: _Group) -> bool:
    """Makes an earlier group and the last one into one, whichever of the two can move; False if neither can."""
    at, last = groups.index(earlier), groups[-1]
    between = groups[at + 1 : -1]
    if earlier.conflicts(last):
        return False
    if max(earlier.first.reads.values(), default=0) <= SMALL and not any(g.conflicts(earlier) for g in between):
        del groups[at]
        groups[-1] = earlier
    elif max(last.first.writes.values()) <= SMALL and not any(g.conflicts(last) for g in between):
        groups.pop()
    else:
        return False
    earlier.members += last.members
    earlier.reads |= last.reads
    earlier.writes |= last.writes
    return True


def sampler_of(name: str, copy: int) -> str:
    """The name of a sampler in a copy of a shader."""
    return f"{name}_{copy}" if copy else name


def fused_text(shared: str, own: str, copies: int) -> str:
    """The text of a shader that runs `copies` times what `own` runs once; `shared` declares what needs one copy."""
    macros = "\n".join(f"#undef {name}" for name in dict.fromkeys(_DEFINE.findall(own)))
    calls = " ".join(f"main_{k}();" for k in range(copies))
    return "\n".join([shared, *(f"{_copy(own, k)}\n{macros}" for k in range(copies)), f"void main() {{ {calls} }}"])


def _copy(text: str, k: int) -> str:
    targets = len(_LOCATION.findall(text))
    text = _LOCATION.sub(lambda m: f"layout(location = {int(m[1]) + k * targets}) out {m[2]} out_{int(m[1])};", text)
    names = {*_GLOBAL.findall(text), *_INTERFACE.findall(text)}
    renamed = {name: sampler_of(name, k) if name.startswith("u_") else f"{name}_{k}" for name in names}
    return re.sub(r"\b(" + "|".join(map(re.escape, sorted(renamed))) + r")\b", lambda m: renamed[m[1]], text)
