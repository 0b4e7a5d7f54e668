// From texels to the matrix they hold. The cases in tests/page/shared_cases.json are packed by Python.

import type { Block, Texels } from "../gl/player";
import type { View } from "../gl/program";

/** Where rows y.. of a layer belong in the texture of `view`, of a matrix cut into `tiles` whose tiles are not stacked. */
export function* blocks(view: View, tiles: readonly number[], layer: number, y: number, rows: number): Generator<Block> {
  const [tr, tc] = [tiles[0]!, tiles[1]!];
  const stride = Math.ceil(view.cols / (4 * tc));
  if (tr === view.tiles[0] && tc === view.tiles[1]) {
    yield { layer, x: 0, y, width: stride, rows, stride, skip: 0 };
    return;
  }
  const row = Math.floor(layer / tc) * Math.ceil(view.rows / tr) + y;
  const first = (layer % tc) * stride; // of the matrix's columns of texels
  const end = Math.min(first + stride, Math.ceil(view.cols / 4));
  const panel = Math.ceil(view.cols / (4 * view.tiles[1]));
  for (let from = first; from < end; ) {
    const tile = Math.floor(from / panel);
    const next = Math.min(end, (tile + 1) * panel);
    const [layer, below] = [Math.floor(tile / view.stack), tile % view.stack];
    const place = { layer, x: from - tile * panel, y: below * view.rows + row };
    yield { ...place, width: next - from, rows, stride, skip: from - first };
    from = next;
  }
}

/** Texels of all layers to `[rows, cols]`. f16: two neighbouring column tiles share a layer, as packed halves. */
export function unpack(view: View, texels: Texels): Float32Array {
  const { rows, cols, dtype, stack } = view;
  const [tr, tc] = view.tiles;
  const pairs = dtype === "f16" ? 2 : 1;
  const height = Math.ceil(rows / tr);
  const width = Math.ceil(cols / (4 * tc));
  const out = new Float32Array(rows * cols);
  const halves = dtype === "f16" ? new Uint16Array(texels.buffer, texels.byteOffset, texels.length * 2) : null;
  for (let r = 0; r < rows; r++) {
    const i = Math.floor(r / height);
    const y = r % height;
    for (let j = 0; j < tc; j++) {
      const layer = i * Math.ceil(tc / (pairs * stack)) + Math.floor(j / (pairs * stack));
      const first = j * width * 4;
      const base = (layer * height * stack + (j % stack) * height + y) * width;
      const end = Math.min(width * 4, cols - first);
      for (let c = 0; c < end; c++) {
        const texel = base + (c >> 2);
        out[r * cols + first + c] = halves
          ? fromHalf(halves[texel * 8 + (j % 2) * 4 + (c & 3)] ?? 0)
          : (texels[texel * 4 + (c & 3)] ?? 0);
      }
    }
  }
  return out;
}

export function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
