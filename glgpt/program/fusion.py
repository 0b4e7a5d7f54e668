"""Horizontal fusion: passes of one shader that do not depend on each other become one pass.

A small pass costs its start, not its work, and a training step has dozens of passes that differ in
their textures alone: AdamW of each vector, the last step of each bias's gradient, a transposed weight for each block. A
fused shader runs the text once for each of them, and writes to the colour attachments of all. XLA fuses an optimizer's
updates in the same way.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from glgpt.program.spec import Limits

SMALL = 1 << 17  # texels: a larger pass has work enough, and no larger tensor is kept alive to fuse passes
ROOM = 0.2  # of the scratch memory of the passes by themselves: what a fused entry may take beyond it,
LEAST_ROOM = 4 * SMALL  # .. and what it may in any case, in texels

_DEFINE = re.compile(r"^#define (\w+)", re.MULTILINE)
_GLOBAL = re.compile(r"^(?:const )?\w+ (\w+)(?:\[.*\])?(?: =.*)?[;(]", re.MULTILINE)  # functions and variables
_INTERFACE = re.compile(r"^(?:uniform|layout\(location = \d+\) out) \w+ (\w+);", re.MULTILINE)
_LOCATION = re.compile(r"^layout\(location = (\d+)\) out (\w+) out_\d+;", re.MULTILINE)


Shape = tuple[int, int, int, str]  # of a texture: width, height, layers, format


@dataclass(frozen=True)
class Movable:
    """What decides where a pass may be played: its shader, the tensors that it reads and writes, with their shapes.

    `samplers` and `targets` are what it takes of a device's limits. A tensor of no texels outlives the entry, so moving
    the pass does not lengthen its life. `fixed`: the pass stays by itself.
    """

    shader: str
    reads: Mapping[Hashable, Shape]
    writes: Mapping[Hashable, Shape]
    samplers: int
    targets: int
    fixed: bool = False


def schedule(passes: Sequence[Movable], limits: Limits) -> list[list[int]]:
    """Groups of passes, in an order that computes the same: each group can be one pass of these limits.

    Members have the same shader, and none reads or writes what another one writes. A group is played where its last
    member stood if nothing in between needs what it writes, else where its first stood. Tensors that wait for a group
    have at most `SMALL` texels, or fewer where all together would need more room than `ROOM` and `LEAST_ROOM` give.
    """
    alone = [[i] for i in range(len(passes))]
    taken, small = scratch_texels(passes, alone), SMALL
    while small:
        groups = [_Group.of(i, p) for i, p in enumerate(passes)]
        before = None
        while before != len(groups):  # a merge may make another one possible
            before = len(groups)
            groups = _sweep(groups, limits, small)
        found = [g.members for g in groups]
        if scratch_texels(passes, found) - taken <= max(ROOM * taken, LEAST_ROOM):
            return found
        small //= 2
    return alone


def scratch_texels(passes: Sequence[Movable], groups: Sequence[Sequence[int]]) -> int:
    """The texels of the textures that hold all tensors, each used again for a later tensor of its shape."""
    used = [
        [(t, s) for i in group for held in (passes[i].reads, passes[i].writes) for t, s in held.items()]
        for group in groups
    ]
    last = {t: at for at, tensors in enumerate(used) for t, _ in tensors}
    free: Counter[Shape] = Counter()
    placed: set[Hashable] = set()
    total = 0
    for at, tensors in enumerate(used):
        for t, shape in tensors:
            if t not in placed:
                placed.add(t)
                total += texels(shape) if not free[shape] else 0
                free[shape] -= free[shape] > 0
        free.update(shape for t, shape in dict(tensors).items() if last[t] == at)
    return total


def texels(shape: Shape) -> int:
    """How many a texture of this shape has."""
    return math.prod(shape[:3])


@dataclass(eq=False)
class _Group:
    members: list[int]
    first: Movable
    reads: frozenset[Hashable]
    writes: frozenset[Hashable]
    largest_read: int
    largest_written: int

    @classmethod
    def of(cls, i: int, p: Movable) -> _Group:
        """A pass by itself."""
        largest = (max(map(texels, held.values()), default=0) for held in (p.reads, p.writes))
        return cls([i], p, frozenset(p.reads), frozenset(p.writes), *largest)

    def conflicts(self, other: _Group) -> bool:
        """Whether one writes what the other reads or writes."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def _sweep(groups: Sequence[_Group], limits: Limits, small: int) -> list[_Group]:
    done: list[_Group] = []
    found: dict[str, _Group] = {}
    for group in groups:
        done.append(group)
        if group.first.fixed:
            continue
        earlier = found.get(group.first.shader)
        if not (earlier and _fit(earlier, group, limits) and _merge(done, earlier, small)):
            found[group.first.shader] = group
    return done


def _fit(a: _Group, b: _Group, limits: Limits) -> bool:
    count = len(a.members) + len(b.members)
    return count * a.first.targets <= limits.max_draw_buffers and count * a.first.samplers <= limits.max_texture_units


def _merge(groups: list[_Group], earlier: _Group, small: int) -> bool:
    """Makes an earlier group and the last one into one, whichever of the two can move; False if neither can."""
    at, last = groups.index(earlier), groups[-1]
    between = groups[at + 1 : -1]
    if earlier.conflicts(last):
        return False
    if earlier.largest_read <= small and not any(g.conflicts(earlier) for g in between):
        del groups[at]
        groups[-1] = earlier
    elif last.largest_written <= small and not any(g.conflicts(last) for g in between):
        groups.pop()
    else:
        return False
    earlier.members += last.members
    earlier.reads |= last.reads
    earlier.writes |= last.writes
    earlier.largest_read = max(earlier.largest_read, last.largest_read)
    earlier.largest_written = max(earlier.largest_written, last.largest_written)
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
