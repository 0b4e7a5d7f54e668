// From texels to the matrix they hold, as `glgpt/tensor.py` packs it.

import type { View } from "./program";

export type Texels = Float32Array | Uint32Array;

/** Texels of all layers to `[rows, cols]`. f16: two neighbouring column tiles share a layer, as packed halves. */
export function unpack(view: View, texels: Texels): Float32Array {
  const { rows, cols, dtype } = view;
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
      const layer = (i * tc + j - (j % pairs)) / pairs;
      const first = j * width * 4;
      const base = (layer * height + y) * width;
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
