"""Combines passes that use the same shader and do not depend on each other into one pass (horizontal fusion).

A small pass takes longer to start than to run. A training step has dozens of passes that differ only in their textures:
AdamW for each vector, the last pass of the gradient of each bias, the transposition of a weight in each block. A fused
shader contains the text of the shader once for each of these passes, and it writes to the colour attachments of all
these passes. XLA fuses the updates of an optimizer in the same way.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from glgpt.program.spec import Limits

# In texels. A pass that draws more texels is not fused. A pass may be moved only if the textures that are then needed
# for longer have at most this many texels each.
SMALL = 1 << 17
# An entry with fused passes may use more scratch memory than without fusion: the fraction `ROOM` more, or `MIN_ROOM`
# texels more if that is greater.
ROOM = 0.2
MIN_ROOM = 4 * SMALL

_DEFINE = re.compile(r"^#define (\w+)", re.MULTILINE)
_GLOBAL = re.compile(r"^(?:const )?\w+ (\w+)(?:\[.*\])?(?: =.*)?[;(]", re.MULTILINE)  # functions and variables
_INTERFACE = re.compile(r"^(?:uniform|layout\(location = \d+\) out) \w+ (\w+);", re.MULTILINE)
_LOCATION = re.compile(r"^layout\(location = (\d+)\) out (\w+) out_\d+;", re.MULTILINE)


Shape = tuple[int, int, int, str]  # width, height, layers and format of a texture


@dataclass(frozen=True)
class Movable:
    """A pass as input of `schedule`: its shader, and the tensors that it reads and writes, with their shapes.

    `samplers` and `targets` are the numbers of texture units and draw buffers that the pass needs. The shape of a
    tensor that outlives the entry is given as 0 x 0 texels, since moving the pass does not change how long that tensor
    needs memory. A `fixed` pass is not fused.
    """

    shader: str
    reads: Mapping[Hashable, Shape]
    writes: Mapping[Hashable, Shape]
    samplers: int
    targets: int
    fixed: bool = False


def schedule(passes: Sequence[Movable], limits: Limits) -> list[list[int]]:
    """Groups passes so that each group can be one pass within the limits; returns the groups in the order to run them.

    A group is a list of numbers of passes. The new order computes the same result. Members of a group have the same
    shader, and none reads or writes what another member writes. When two groups are merged, the earlier one moves to
    the position of the later one if no pass between them conflicts with it; otherwise the later one moves to the
    position of the earlier one. After a move, the textures of some tensors are needed for longer. Only tensors of at
    most `SMALL` texels may be affected; this limit is halved until scratch memory grows by no more than `ROOM` and
    `MIN_ROOM` allow.
    """
    alone = [[i] for i in range(len(passes))]
    taken, small = scratch_texels(passes, alone), SMALL
    while small:
        groups = [_Group.of(i, p) for i, p in enumerate(passes)]
        before = None
        while before != len(groups):  # a merge can make another merge possible
            before = len(groups)
            groups = _sweep(groups, limits, small)
        found = [g.members for g in groups]
        if scratch_texels(passes, found) - taken <= max(ROOM * taken, MIN_ROOM):
            return found
        small //= 2
    return alone


def scratch_texels(passes: Sequence[Movable], groups: Sequence[Sequence[int]]) -> int:
    """Returns the total texels of scratch textures if a free texture is reused for a later tensor of the same shape.

    A group is a list of the numbers of passes that run as one pass. `groups` is in the order of running.
    """
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
    """Returns the number of texels of a texture of this shape."""
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
        """Returns a group of one pass."""
        largest = (max(map(texels, held.values()), default=0) for held in (p.reads, p.writes))
        return cls([i], p, frozenset(p.reads), frozenset(p.writes), *largest)

    def conflicts(self, other: _Group) -> bool:
        """True if one group writes what the other reads or writes."""
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
    """Merges an earlier group with the last group by moving one of the two; returns False if neither can move."""
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
    """Returns the name of a sampler in the copy with number `copy` of a shader."""
    return f"{name}_{copy}" if copy else name


@functools.lru_cache(maxsize=64)  # the blocks of a model have the same shaders
def fused_text(shared: str, texts: tuple[str, ...]) -> str:
    """Returns a shader that runs all `texts`, one after the other; it contains the declarations in `shared` once."""
    calls = " ".join(f"main_{k}();" for k in range(len(texts)))
    targets = [len(_LOCATION.findall(text)) for text in texts]
    own = [_copy(text, k, sum(targets[:k])) for k, text in enumerate(texts)]
    return "\n".join([shared, *own, f"void main() {{ {calls} }}"])


@functools.lru_cache(maxsize=64)
def beside_text(shared: str, texts: tuple[str, ...], widths: tuple[int, ...], targets: int, pairs: bool) -> str:
    """Returns a shader that runs each of the `texts` in its own range of pixel columns.

    `widths` are the widths of these ranges. All texts write to the same `targets` colour attachments; an attachment
    that a text does not write is zero. In a text, PIXEL is the pixel relative to the text's range. With `pairs`, the
    texts treat two pixels as one and compute two values for each attachment (`pair.glsl`).
    """
    values = 2 * targets if pairs else targets
    outs = [f"layout(location = {i}) out FLOAT_TEXEL {'pair' if pairs else 'out'}_{i};" for i in range(targets)]
    if pairs:
        outs.append(f"FLOAT_TEXEL {', '.join(f'out_{i}' for i in range(values))};")
    zeros = " ".join(f"out_{i} = FROM_FLOAT(vec4(0.0));" for i in range(values))
    own, calls, start = [], "", 0
    for k, (text, width) in enumerate(zip(texts, widths, strict=True)):
        pixel = f"#define PIXEL ivec2(int(gl_FragCoord.x) - {start}, int(gl_FragCoord.y){' / 2' if pairs else ''})\n"
        own.append(_copy(pixel + _LOCATION.sub("", text), k, 0))
        start += width
        calls += f"if (x < {start}) main_{k}(); else " if k + 1 < len(texts) else f"main_{k}();"
    sums = (f"over_pair(TO_FLOAT(out_{2 * t}), TO_FLOAT(out_{2 * t + 1}))" for t in range(targets if pairs else 0))
    stores = "".join(f" pair_{t} = FROM_FLOAT({value});" for t, value in enumerate(sums))
    main = f"void main() {{ int x = int(gl_FragCoord.x); {zeros} {calls}{stores} }}"
    return "\n".join([shared, *outs, *own, main])


@functools.lru_cache(maxsize=64)
def merged_samplers(text: str, samplers: tuple[tuple[str, str], ...]) -> str:
    """Returns a shader that reads some textures through other samplers.

    `samplers` has pairs (sampler, the sampler to use instead). The name of a replaced sampler becomes a macro for the
    other one.
    """
    for sampler, other in samplers:
        if sampler != other:
            text = re.sub(rf"^uniform \w+ {sampler};$", f"#define {sampler} {other}", text, flags=re.MULTILINE)
    return text


def _copy(text: str, k: int, first: int) -> str:
    """Returns copy k of a text: its global names end in k, and its colour attachments are numbered from `first` on.

    The samplers of copy 0 keep their names (`sampler_of`). The copy undefines its macros at the end.
    """
    macros = "\n".join(f"#undef {name}" for name in dict.fromkeys(_DEFINE.findall(text)))
    text = f"{text}\n{macros}"
    text = _LOCATION.sub(lambda m: f"layout(location = {int(m[1]) + first}) out {m[2]} out_{int(m[1])};", text)
    names = {*_GLOBAL.findall(text), *_INTERFACE.findall(text)}
    renamed = {name: sampler_of(name, k) if name.startswith("u_") else f"{name}_{k}" for name in names}
    pattern = r"//.*|\b(" + "|".join(map(re.escape, sorted(renamed))) + r")\b"
    return re.sub(pattern, lambda m: renamed[m[1]] if m[1] else m[0], text)  # not in comments
