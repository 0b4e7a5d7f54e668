"""The lines between a shader and its tensors: for each sampler its accessors, for each output its STORE macro.

An input `x` becomes the sampler `u_x` and gets `X_W`, `X_H` (texels and rows of a tile), `X_TR`, `X_TC` (tiles),
`X_ROWS`, `X_COLS`, `X_ACROSS` (layers of a row of tiles), `X(layer, y, texel)`, the raw fetch (vec4, or uvec4 for f16),
`X_PLACE(c4)`, where the columns of c4 lie as ivec3(texel, first row, layer of a row of tiles), and `x_at(row, c4)`, any
texel of the matrix as a vec4. An output `y` gets the same numbers, `Y_TILES(F)`, which repeats F(n, i, j) for each tile
(i, j) the pass writes, `Y_N` of them, and `STORE_Y(v)` for an array v of Y_N vec4. `Y_ROWTILES(F)` and `Y_COLTILES(F)`
likewise repeat F(n, i) and F(n, j), for the `Y_NR` rows of tiles from `Y_I` on and the `Y_NC` columns from `Y_J` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glgpt.program.layout import Layout


def _numbers(upper: str, layout: Layout) -> list[str]:
    values = {
        "W": layout.width,
        "H": layout.height,
        "TR": layout.tiles[0],
        "TC": layout.tiles[1],
        "ACROSS": layout.across,
        "ROWS": layout.rows,
        "COLS": layout.cols,
    }
    return [f"#define {upper}_{key} {value}" for key, value in values.items()]


def accessors(name: str, layout: Layout) -> str:
    """GLSL text declaring sampler `name` and reading it."""
    upper, half = name.upper(), layout.dtype == "f16"
    step = f"vec2({1 / layout.width:.10e}, {1 / layout.lines:.10e})"
    fetch = f"FETCH(u_{name}, {step}, k, y, l)"
    tr, tc = layout.tiles
    tile = f"(c4) / {layout.width}"
    place = (
        f"(c4) % {layout.width}" if tc > 1 else "(c4)",
        f"{tile} % {layout.stack} * {layout.height}" if layout.stack > 1 else "0",
        f"{tile} / {layout.stack * layout.pairs}" if layout.across > 1 else "0",
    )
    layer, y = (f"row / {layout.height} * {layout.across} + ", f"row % {layout.height}") if tr > 1 else ("", "row")
    texel = f"{upper}({layer}p.z, {y} + p.y, p.x)"
    if half:
        body = f"uvec4 t = {texel}; return (c4 / {layout.width}) % 2 == 0 ? even_half(t) : odd_half(t);"
    else:
        body = f"return {texel};"
    body = f"ivec3 p = {upper}_PLACE(c4); {body}"
    return "\n".join(
        [
            f"uniform {'usampler2DArray' if half else 'FLOAT_SAMPLER'} u_{name};",
            *_numbers(upper, layout),
            *([f"#define {upper}_F16"] if half else []),
            f"#define {upper}(l, y, k) {fetch if half else f'TO_FLOAT({fetch})'}",
            f"#define {upper}_PLACE(c4) ivec3({', '.join(place)})",
            f"vec4 {name}_at(int row, int c4) {{ {body} }}",
        ]
    )


@dataclass(frozen=True)
class Part:
    """The tiles that a pass writes of each output: ranges of row and of column tiles; None: all."""

    rows: range | None = None
    cols: range | None = None

    def of(self, layout: Layout) -> tuple[range, range]:
        """The ranges in an output of this layout."""
        tr, tc = layout.tiles
        return self.rows or range(tr), self.cols or range(tc)

    def count(self, layout: Layout) -> int:
        """How many tiles."""
        rows, cols = self.of(layout)
        return len(rows) * len(cols)

    def layers(self, layout: Layout) -> list[int]:
        """The layers that hold them, in the order of the colour attachments."""
        rows, cols = self.of(layout)
        return [i * layout.across + j // layout.pairs for i in rows for j in cols[:: layout.pairs]]


def split(layouts: Sequence[Layout], most: int, columns: int | None = None) -> list[Part]:
    """The passes that write outputs of these layouts, none more than `most` layers and `columns` column tiles.

    The row tiles of a column stay together where they fit, since what a fragment fetches serves all of them. Raises
    ValueError for outputs that cannot be split alike.
    """
    first, (tr, tc) = layouts[0], layouts[0].tiles
    if (columns or tc) >= tc and sum(t.layers for t in layouts) <= most:
        return [Part()]
    if len(layouts) > most or any((t.tiles, t.pairs) != (first.tiles, first.pairs) for t in layouts):
        raise ValueError(f"{layouts} cannot be written in passes of {most} layers")
    room = most // len(layouts) * first.pairs  # tiles of each output
    wide = max(first.pairs, min(columns or tc, room // tr) // first.pairs * first.pairs)
    high = min(tr, room // wide)
    return [
        Part(range(i, min(i + high, tr)), range(j, min(j + wide, tc)))
        for i in range(0, tr, high)
        for j in range(0, tc, wide)
    ]


def interface(outputs: Mapping[str, Layout], part: Part) -> str:
    """GLSL text declaring the colour attachments of `outputs` and how they are stored."""
    lines: list[str] = []
    location = 0
    for name, layout in outputs.items():
        if layout.stack > 1:
            raise ValueError(f"{name}: stacked tiles cannot be written")
        upper, half = name.upper(), layout.dtype == "f16"
        rows, cols = part.of(layout)
        tiles = [(i, j) for i in rows for j in cols]
        lines += _numbers(upper, layout)
        numbers = {"N": len(tiles), "I": rows.start, "J": cols.start, "NR": len(rows), "NC": len(cols)}
        lines += [f"#define {upper}_{key} {value}" for key, value in numbers.items()]
        lines.append(f"#define {upper}_TILES(F) " + " ".join(f"F({n}, {i}, {j})" for n, (i, j) in enumerate(tiles)))
        lines.append(f"#define {upper}_ROWTILES(F) " + " ".join(f"F({n}, {i})" for n, i in enumerate(rows)))
        lines.append(f"#define {upper}_COLTILES(F) " + " ".join(f"F({n}, {j})" for n, j in enumerate(cols)))
        stores = []
        for n in range(0, len(tiles), layout.pairs):
            kind = "uvec4" if half else "FLOAT_TEXEL"
            lines.append(f"layout(location = {location}) out {kind} out_{location};")
            value = f"pack_halves(v[{n}], v[{n + 1}])" if half else f"FROM_FLOAT(v[{n}])"
            stores.append(f"out_{location} = {value};")
            location += 1
        lines.append(f"#define STORE_{upper}(v) {' '.join(stores)}")
    return "\n".join(lines)
