"""Generates the GLSL with which a shader accesses its tensors: accessors for each input, a STORE macro for each output.

For an input `x`, which is read through the sampler `u_x`, the shader gets these numbers (`Layout`):

- `X_W` and `X_H`: texels per row of a tile, and rows of a tile;
- `X_TR` and `X_TC`: number of row tiles and of column tiles;
- `X_ROWS` and `X_COLS`: size of the matrix;
- `X_ACROSS`: number of layers that hold one row tile, with all its column tiles;
- `X_SHARED` and `X_TEXELS`: number of column tiles that share a texel, and number of texels that hold a row.

The shader also gets these macros and functions:

- `X(layer, y, texel)` fetches a texel, of type `X_TEXEL` (vec4 or uvec4);
- `X_DECODE(t, tile)` returns the four values that texel t holds for one of its column tiles, and `X_EACH_SHARED(F)`
  repeats F(tile) for each of these tiles;
- `X_AT(t)` returns the place of texel t of a matrix row: ivec3(texel in a row of the texture, first row of the texel's
  panel (0 without panels), layer within a row tile);
- `X_PLACE(c4)` returns the place of the texel with columns 4 c4 .. 4 c4 + 3;
- `x_at(row, c4)` returns the values of a matrix row in these four columns as a vec4;
- `x_one(row, c)` returns the value of a matrix row in column c; quantised formats do not have this function;
- `X_Y(row)` returns which row of texels holds the given row of a tile, counted from the first row that `X_AT` returns.

For a quantised format, `X_DECODE` returns levels, and `x_at` returns weights. The shader also gets

- `X_GROUP`, the number of rows that share a scale, and `X_MINIMUM`, which is defined if the format has minima;
- `x_scaling(row tile, row, place, tile)`, which returns the scales and minima of four columns;
- `X_WEIGHTS(levels, scaling)`, which turns levels into weights;
- `X_PLUS_SCALED(sum, levels, scaling, n)`, which adds the dot product of weights and factors to `sum`: `levels` is the
  dot product of the weights' levels and these factors, and n is the sum of the factors;
- `X_PLACED(t, tile)` and `X_UNIT(tile)`, whose product is equal to `X_DECODE(t, tile)`: in formats with unsigned
  levels, X_PLACED takes fewer operations than X_DECODE, and X_UNIT is a power of two; in others, X_PLACED is X_DECODE,
  and X_UNIT is 1.

An output `y` gets the same numbers, except `Y_SHARED` and `Y_TEXELS`. It also gets `Y_TILES(F)`, which repeats
F(n, i, j) for each of the `Y_N` tiles (i, j) that the pass writes, and `STORE_Y(v)`, which stores an array v of Y_N
vec4, one for each of these tiles. `Y_ROWTILES(F)` repeats F(n, i) for the `Y_NR` row tiles from `Y_I` on, and
`Y_COLTILES(F)` repeats F(n, j) for the `Y_NC` column tiles from `Y_J` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glgpt.program.layout import Layout
from glgpt.program.quantised import Coding


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
    """Returns GLSL that declares the sampler of the input `name` and the accessors that read it."""
    upper, fmt, packed_bits = name.upper(), layout.format, layout.format.texture == "uint"
    shared, w = fmt.column_tiles_per_texel, layout.width
    step = f"vec2({1 / layout.texture_width:.10e}, {1 / layout.texture_height:.10e})"
    fetch = f"FETCH(u_{name}, {step}, k, y, l)"
    texel = f"(c4) / {shared * w} * {w} + (c4) % {w}" if layout.groups > 1 else f"(c4) % {w}" if shared > 1 else "(c4)"
    tile = f"(c4) / {w} % {shared}" if shared > 1 else "0"
    row_tile, y = (f"row / {layout.height}", f"row % {layout.height}") if layout.tiles[0] > 1 else ("0", "row")
    layer = f"{row_tile} * {layout.across} + p.z" if layout.tiles[0] > 1 else "p.z"
    read, fetched = f"{upper}({layer}, {upper}_Y({y}) + p.y, p.x)", ""
    texel_of_row = read
    if shared > 1:  # a decoding macro may use its argument twice, so the texel is fetched first
        read, fetched = "t", f"{upper}_TEXEL t = {read}; "
    read = f"{upper}_DECODE({read}, {tile})"
    if fmt.quantised:
        read = f"{upper}_WEIGHTS({read}, {name}_scaling({row_tile}, {y}, p, {tile}))"
    each = " ".join(f"F({t})" for t in range(shared))
    return "\n".join(
        [
            f"uniform {'usampler2DArray' if packed_bits else 'FLOAT_SAMPLER'} u_{name};",
            *_numbers(upper, layout),
            f"#define {upper}_SHARED {shared}",
            f"#define {upper}_TEXELS {layout.row_texels}",
            f"#define {upper}_TEXEL {'uvec4' if packed_bits else 'vec4'}",
            f"#define {upper}(l, y, k) {fetch if packed_bits else f'TO_FLOAT({fetch})'}",
            f"#define {upper}_DECODE(t, tile) {fmt.name}_decode(t, tile)",
            f"#define {upper}_EACH_SHARED(F) {each}",
            *_rows(name, layout),
            f"#define {upper}_AT(t) {_place(layout)}",
            f"#define {upper}_PLACE(c4) {upper}_AT({texel})",
            f"vec4 {name}_at(int row, int c4) {{ ivec3 p = {upper}_PLACE(c4); {fetched}return {read}; }}",
            *_one(name, layout, texel_of_row, tile),
        ]
    )


def _one(name: str, layout: Layout, texel: str, tile: str) -> list[str]:
    """Returns GLSL that decodes one column of a row without its neighbours; nothing for a quantised format."""
    if layout.format.quantised:
        return []
    value = f"{layout.format.name}_one({texel}, {tile}, c % 4)"
    return [
        f"float {name}_one(int row, int c) {{ int c4 = c / 4; ivec3 p = {name.upper()}_PLACE(c4); return {value}; }}"
    ]


def _rows(name: str, layout: Layout) -> list[str]:
    """Returns GLSL for the places of the rows of a tile, and for their scales and minima."""
    upper, coding = name.upper(), layout.format.coding
    if not coding:
        return [f"#define {upper}_Y(row) (row)"]
    group, above = coding.group, coding.scale_rows
    across = f"tile_row * {layout.across} + " if layout.tiles[0] > 1 else ""

    def fetch(number: str) -> str:
        return f"{upper}({across}p.z, row / {group} * {group + above} + {number} + p.y, p.x)"

    if coding.wide:
        first = "2 * tile" if coding.minimum else "tile"
        minimum = f"uintBitsToFloat({fetch('2 * tile + 1')})" if coding.minimum else "vec4(0.0)"
        read = f"return Scaling(uintBitsToFloat({fetch(first)}), {minimum});"
    elif coding.minimum:
        read = f"uvec4 t = {fetch('tile')}; return Scaling(unpack_four(t.xy), unpack_four(t.zw));"
    else:
        read = f"uvec4 t = {fetch('tile / 2')}; return Scaling(f16_decode(t, tile % 2), vec4(0.0));"
    return [
        f"#define {upper}_Y(row) ((row) + ((row) / {group} + 1) * {above})",
        f"#define {upper}_GROUP {group}",
        *([f"#define {upper}_MINIMUM 1"] if coding.minimum else []),
        f"#define {upper}_WEIGHTS(levels, s) ((levels) * (s).scale{' + (s).minimum' if coding.minimum else ''})",
        *_levels_in_place(upper, coding),
        # Each product is added directly to a sum. All drivers that compute a product and a sum as one operation (FMA)
        # then combine the same product with the same sum.
        f"#define {upper}_PLUS_SCALED(sum, levels, s, n) "
        f"((sum) + (levels) * (s).scale{' + (n) * (s).minimum' if coding.minimum else ''})",
        f"Scaling {name}_scaling(int tile_row, int row, ivec3 p, int tile) {{ {read} }}",
    ]


def _levels_in_place(upper: str, coding: Coding) -> list[str]:
    """Returns GLSL for `X_PLACED` and `X_UNIT`: the bits of a level stay in place in the texel, which saves a shift."""
    if not coding.unsigned:
        return [f"#define {upper}_PLACED(t, tile) {upper}_DECODE(t, tile)", f"#define {upper}_UNIT(tile) 1.0"]
    bits, top = coding.bits, coding.tiles - 1  # as an int, a level in the top bits could be negative: it is shifted
    placed = f"(tile) == {top} ? (t) >> {32 - bits} : (t) & ({2**bits - 1}u << uint({bits} * (tile)))"
    return [
        f"#define {upper}_PLACED(t, tile) vec4(ivec4({placed}))",
        f"#define {upper}_UNIT(tile) ((tile) == {top} ? 1.0 : 1.0 / float(1 << ({bits} * (tile))))",
    ]


def _place(layout: Layout) -> str:
    """Returns GLSL for the place of texel t of a row, as ivec3(texel, first row, layer within a row tile)."""
    group = f"(t) / {layout.width}"
    if not layout.panel:
        return f"ivec3((t) % {layout.width}, 0, {group})" if layout.groups > 1 else "ivec3((t), 0, 0)"
    x, panel = "(t)", f"(t) / {layout.panel}"
    if layout.groups > 1:
        x = f"((t) % {layout.width})"
        panel = f"({group} * {layout.panels} + {x} / {layout.panel})"
    first_row = f"{panel} % {layout.stack} * {layout.stored_height}" if layout.stack > 1 else "0"
    return f"ivec3({x} % {layout.panel}, {first_row}, {f'{panel} / {layout.stack}' if layout.across > 1 else '0'})"


@dataclass(frozen=True)
class TileRange:
    """The tiles of each output that a pass writes: ranges of row tiles and of column tiles (None: all)."""

    rows: range | None = None
    cols: range | None = None

    def of(self, layout: Layout) -> tuple[range, range]:
        """Returns the range of row tiles and the range of column tiles for an output of this layout."""
        tr, tc = layout.tiles
        return self.rows or range(tr), self.cols or range(tc)

    def count(self, layout: Layout) -> int:
        """Returns how many tiles of an output of this layout the pass writes."""
        rows, cols = self.of(layout)
        return len(rows) * len(cols)

    def layers(self, layout: Layout) -> list[int]:
        """Returns the layers with these tiles, in the order of the colour attachments."""
        rows, cols = self.of(layout)
        across, shared = layout.across, layout.format.column_tiles_per_texel
        return [i * across + j // shared for i in rows for j in cols[::shared]]


def split(layouts: Sequence[Layout], most: int, columns: int | None = None) -> list[TileRange]:
    """Splits outputs of these layouts into passes; returns the tiles that each pass writes.

    A pass writes at most `most` layers and at most `columns` column tiles (None: no limit). All row tiles of a column
    tile are in one pass if they fit, since a fragment can use a texel of a weight for all of them. Raises ValueError
    for outputs that cannot be split in the same way.
    """
    first, (tr, tc) = layouts[0], layouts[0].tiles
    if (columns or tc) >= tc and sum(t.layers for t in layouts) <= most:
        return [TileRange()]
    shared = first.format.column_tiles_per_texel
    if len(layouts) > most or any((t.tiles, t.format) != (first.tiles, first.format) for t in layouts):
        raise ValueError(f"{layouts} cannot be written in passes of {most} layers")
    room = most // len(layouts) * shared  # tiles of each output
    wide = max(shared, min(columns or tc, room // tr) // shared * shared)
    high = min(tr, room // wide)
    return [
        TileRange(range(i, min(i + high, tr)), range(j, min(j + wide, tc)))
        for i in range(0, tr, high)
        for j in range(0, tc, wide)
    ]


def interface(outputs: Mapping[str, Layout], tiles_of_pass: TileRange) -> str:
    """Returns GLSL that declares the colour attachments of `outputs` and the macros that write them.

    Raises ValueError for outputs in panels or in quantised formats.
    """
    lines: list[str] = []
    location = 0
    for name, layout in outputs.items():
        if layout.panel or layout.format.quantised:
            raise ValueError(f"{name}: shaders cannot write panels or quantised formats")
        upper, fmt = name.upper(), layout.format
        rows, cols = tiles_of_pass.of(layout)
        tiles = [(i, j) for i in rows for j in cols]
        lines += _numbers(upper, layout)
        numbers = {"N": len(tiles), "I": rows.start, "J": cols.start, "NR": len(rows), "NC": len(cols)}
        lines += [f"#define {upper}_{key} {value}" for key, value in numbers.items()]
        lines.append(f"#define {upper}_TILES(F) " + " ".join(f"F({n}, {i}, {j})" for n, (i, j) in enumerate(tiles)))
        lines.append(f"#define {upper}_ROWTILES(F) " + " ".join(f"F({n}, {i})" for n, i in enumerate(rows)))
        lines.append(f"#define {upper}_COLTILES(F) " + " ".join(f"F({n}, {j})" for n, j in enumerate(cols)))
        kind = "uvec4" if fmt.texture == "uint" else "FLOAT_TEXEL"
        stores = []
        for n in range(0, len(tiles), fmt.column_tiles_per_texel):
            values = ", ".join(f"v[{n + t}]" for t in range(fmt.column_tiles_per_texel))
            lines.append(f"layout(location = {location}) out {kind} out_{location};")
            stores.append(f"out_{location} = {fmt.name}_encode({values});")
            location += 1
        lines.append(f"#define STORE_{upper}(v) {' '.join(stores)}")
    return "\n".join(lines)
