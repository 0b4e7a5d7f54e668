// Converts between numbers and the bits of float16. Many browsers have no type for float16.

const words = new Uint32Array(1);
const floats = new Float32Array(words.buffer); // shares the four bytes of `words`

/** Returns the number that the bits of a float16 stand for. */
export function fromFloat16(bits: number): number {
  const sign = (bits & 0x8000) << 16;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return (sign ? -1 : 1) * fraction * 2 ** -24;
  words[0] = sign | ((exponent === 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  return floats[0]!;
}

/** Returns the bits of the nearest float16. Ties round to even. */
export function toFloat16(value: number): number {
  floats[0] = value;
  const word = words[0]!;
  const sign = (word >>> 16) & 0x8000;
  const size = word & 0x7fffffff;
  if (size >= 0x47800000) return sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (size < 0x38800000) {
    const steps = Math.abs(floats[0]) * 2 ** 24; // subnormal: multiples of 2^-24
    const whole = Math.floor(steps);
    const rest = steps - whole;
    return sign | (whole + (rest > 0.5 || (rest === 0.5 && whole & 1) ? 1 : 0));
  }
  const rounded = size + 0xfff + ((size >>> 13) & 1);
  return sign | (rounded >= 0x47800000 ? 0x7c00 : (rounded - 0x38000000) >>> 13);
}

/** True if the bits are those of a finite float16. */
export const isFiniteFloat16 = (bits: number) => (bits & 0x7c00) !== 0x7c00;
