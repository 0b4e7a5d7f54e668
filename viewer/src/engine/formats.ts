// Storage formats: how numbers lie in 128-bit texels, as glgpt/program/formats.py packs them.

import type { Texels } from "../gl/player";
import type { Dtype, TextureSpec } from "../gl/program";

export interface Format {
  name: Dtype;
  /** The format of its textures. */
  texture: TextureSpec["format"];
  /** Column tiles that share a texel, four values of each. */
  columnTiles: number;
  /** What a texel is called for people. */
  texel: string;
  /** Reads values by their place: 4 * columnTiles of a texel, texel after texel. */
  reader: (texels: Texels) => (place: number) => number;
}

export const FORMATS: Readonly<Record<Dtype, Format>> = {
  f32: {
    name: "f32",
    texture: "float",
    columnTiles: 1,
    texel: "four floats",
    reader: (texels) => (place) => texels[place] ?? 0,
  },
  f16: {
    name: "f16",
    texture: "uint",
    columnTiles: 2,
    texel: "eight halves",
    reader: (texels) => {
      const halves = new Uint16Array(texels.buffer, texels.byteOffset, texels.length * 2);
      return (place) => fromHalf(halves[place] ?? 0);
    },
  },
};

export function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const scratch = new DataView(new ArrayBuffer(4));

/** The bits of the half nearest to a number; halfway, of the even one. */
export function half(value: number): number {
  scratch.setFloat32(0, value);
  const word = scratch.getUint32(0);
  const sign = (word >>> 16) & 0x8000;
  const size = word & 0x7fffffff;
  if (size >= 0x47800000) return sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (size < 0x38800000) {
    const steps = Math.abs(value) * 2 ** 24; // subnormal: multiples of 2^-24
    const whole = Math.floor(steps);
    const rest = steps - whole;
    return sign | (whole + (rest > 0.5 || (rest === 0.5 && whole & 1) ? 1 : 0));
  }
  const rounded = size + 0xfff + ((size >>> 13) & 1);
  return sign | (rounded >= 0x47800000 ? 0x7c00 : (rounded - 0x38000000) >>> 13);
}
