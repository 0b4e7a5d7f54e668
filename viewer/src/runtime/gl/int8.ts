// Encodes rows of numbers as int8, with one scale per row, in the format of glgpt/wire/int8.py.

/** Encodes numbers in rows of `width`: first the f32 scales of all rows, then all values as int8. */
export function encodeInt8(values: Float32Array, width: number): Uint8Array<ArrayBuffer> {
  const rows = Math.ceil(values.length / width);
  const out = new Uint8Array(int8Bytes(values.length, width));
  const scales = new DataView(out.buffer);
  const levels = new Int8Array(out.buffer, 4 * rows);
  for (let r = 0; r < rows; r++) {
    const row = values.subarray(r * width, (r + 1) * width);
    let peak = 0;
    for (const x of row) peak = Math.max(peak, Math.abs(x));
    const scale = Math.fround(peak / 127) || 1; // a row of zeros has scale 1
    scales.setFloat32(4 * r, scale, true);
    for (let c = 0; c < row.length; c++) {
      const level = roundEven(Math.fround(row[c]! / scale));
      // With a subnormal scale, which is imprecise, a level may exceed 127.
      levels[r * width + c] = Math.min(127, Math.max(-127, level));
    }
  }
  return out;
}

/** Decodes `count` numbers in rows of `width`. */
export function decodeInt8(data: Uint8Array<ArrayBuffer>, count: number, width: number): Float32Array<ArrayBuffer> {
  const { buffer } = data.slice();
  const scales = new DataView(buffer);
  const levels = new Int8Array(buffer, 4 * Math.ceil(count / width), count);
  return Float32Array.from(levels, (level, i) => level * scales.getFloat32(4 * Math.floor(i / width), true));
}

/** Returns the number of bytes of `count` numbers in rows of `width`. The last row may be shorter. */
export const int8Bytes = (count: number, width: number) => count + 4 * Math.ceil(count / width);

/** Returns the nearest integer. Ties round to even. */
function roundEven(x: number): number {
  const down = Math.floor(x);
  const over = x - down;
  return over > 0.5 || (over === 0.5 && down % 2 !== 0) ? down + 1 : down;
}
