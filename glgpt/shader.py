"""The lines between a shader and its tensors: for each sampler its accessors, for each output its STORE macro.

An input `x` becomes the sampler `u_x` and gets `X_W`, `X_H` (texels and rows of a tile), `X_TR`, `X_TC` (tiles),
`X_ROWS`, `X_COLS`, `X_ACROSS` (layers of a row of tiles), `X(layer, y, texel)`, the raw fetch (vec4, or uvec4 for f16),
`X_PLACE(c4)`, where the columns of c4 lie as ivec3(texel, first row, layer of a row of tiles), and `x_at(row, c4)`, any
texel of the matrix as a vec4. An output `y` gets the same numbers, `Y_TILES(F)`, which repeats F(n, i, j) for each tile
(i, j) the pass writes, `Y_N` of them, `Y_ROWTILES(F)` and `Y_COLTILES(F)` likewise F(i) and F(n, j), and `STORE_Y(v)`
for an array v of Y_N vec4.
"""

from __future__ import annotations

from collections.abc import Mapping

from glgpt.tensor import Layout


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


def interface(outputs: Mapping[str, Layout], columns: range | None = None) -> str:
    """GLSL text declaring the colour attachments of `outputs` and how they are stored."""
    lines: list[str] = []
    location = 0
    for name, layout in outputs.items():
        if layout.stack > 1:
            raise ValueError(f"{name}: stacked tiles cannot be written")
        upper, half = name.upper(), layout.dtype == "f16"
        cols = columns if columns is not None else range(layout.tiles[1])
        tiles = [(i, j) for i in range(layout.tiles[0]) for j in cols]
        lines += _numbers(upper, layout)
        lines.append(f"#define {upper}_N {len(tiles)}")
        lines.append(f"#define {upper}_TILES(F) " + " ".join(f"F({n}, {i}, {j})" for n, (i, j) in enumerate(tiles)))
        lines.append(f"#define {upper}_ROWTILES(F) " + " ".join(f"F({i})" for i in range(layout.tiles[0])))
        lines.append(f"#define {upper}_COLTILES(F) " + " ".join(f"F({n}, {j})" for n, j in enumerate(cols)))
        lines.append(f"#define {upper}_NC {len(cols)}")
        stores = []
        for n in range(0, len(tiles), layout.pairs):
            kind = "uvec4" if half else "FLOAT_TEXEL"
            lines.append(f"layout(location = {location}) out {kind} out_{location};")
            value = f"pack_halves(v[{n}], v[{n + 1}])" if half else f"FROM_FLOAT(v[{n}])"
            stores.append(f"out_{location} = {value};")
            location += 1
        lines.append(f"#define STORE_{upper}(v) {' '.join(stores)}")
    return "\n".join(lines)
