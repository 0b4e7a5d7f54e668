// Defines the storage formats: the layout of numbers in 128-bit texels, as glgpt/program/formats.py packs them.

import { FORMATS as TABLE } from "../generated/formats";
import { fromFloat16 } from "../gl/float16";
import type { Texels } from "../gl/player";
import type { Dtype, Integers, Program, TextureSpec } from "../gl/program";

export interface Format {
  name: Dtype | Integers;
  /** The format of the textures that hold this storage format. */
  texture: TextureSpec["format"];
  /** Number of column tiles that share a texel; the texel holds four values of each tile. */
  columnTiles: number;
  /**
   * `group`: rows of a tile that share a scale in each column; 0: no scales. `scaleRows`: number of rows of texels
   * above each group that hold the group's scales.
   */
  group: number;
  scaleRows: number;
  /** True if each scale has a minimum, which is added to the products of levels (the stored integers) and scales. */
  minimum: boolean;
  /** True if the stored numbers (in quantised formats, the levels) can be negative. */
  signed: boolean;
  /** True if scales and minima are f32, four per texel; false if they are f16, eight per texel. */
  wide: boolean;
  /** The format in which raw memory is shown: for quantised formats, the levels without scales; else the same. */
  memory: Dtype | Integers;
  /** Description of a texel for the user. */
  texel: string;
  /** Returns a function that reads a value by index. Each texel has 4 * columnTiles consecutive indices. */
  reader: (texels: Texels) => (place: number) => number;
}

const PLAIN = { group: 0, scaleRows: 0, minimum: false, wide: false };
const FLOAT = { ...PLAIN, signed: true };
const TEXELS: Readonly<Record<number, string>> = { 8: "sixteen bytes", 4: "32 numbers of four bits" };

const FLOATS: readonly Format[] = [
  {
    ...{ name: "f32", memory: "f32", texel: "four floats", ...FLOAT, ...TABLE.f32 },
    reader: (texels) => (place) => texels[place] ?? 0,
  },
  {
    ...{ name: "f16", memory: "f16", texel: "eight f16 numbers", ...FLOAT, ...TABLE.f16 },
    reader: (texels) => {
      const halves = new Uint16Array(texels.buffer, texels.byteOffset, texels.length * 2);
      return (place) => fromFloat16(halves[place] ?? 0);
    },
  },
];

/**
 * Returns two formats of a quantised coding: the levels with scales (and possibly minima) above each group of rows, and
 * the levels alone. Returns no formats for f32 and f16.
 */
function quantised([name, coding]: [string, (typeof TABLE)[Dtype]]): Format[] {
  if (!("memory" in coding)) return [];
  const { bits, ...facts } = coding;
  const { memory, group, minimum, signed, wide } = facts;
  const levels = TEXELS[bits]!;
  const numbers = wide ? "four f32 numbers" : "eight f16 numbers";
  const scales = minimum ? "scales and minima" : "scales";
  const texel = `${levels}; above each ${group} rows, their ${scales}, ${numbers} per texel`;
  const reader = integers(bits, signed);
  return [
    { ...facts, name: name as Dtype, texel, reader },
    { ...facts, ...PLAIN, name: memory, texel: levels, reader },
  ];
}

/**
 * Returns a reader of levels, which are signed or, if `signed` is false, count from 0. Each component of a texel holds
 * one column of every tile, with the first tile in the lowest bits.
 */
function integers(bits: number, signed: boolean): Format["reader"] {
  const values = 128 / bits;
  return (texels) => {
    const words = new Uint32Array(texels.buffer, texels.byteOffset, texels.length);
    return (place) => {
      const within = place % values;
      const word = words[4 * ((place - within) / values) + (within & 3)] ?? 0;
      const top = word << (32 - bits - bits * (within >> 2));
      return signed ? top >> (32 - bits) : top >>> (32 - bits);
    };
  };
}

const all = [...FLOATS, ...Object.entries(TABLE).flatMap(quantised)];
export const FORMATS = Object.fromEntries(all.map((format) => [format.name, format])) as Readonly<
  Record<Dtype | Integers, Format>
>;

/** Returns the formats in which the textures of programs are shown, as matrices and in memory layout. */
export function formatsOf(...programs: readonly Pick<Program, "views">[]): Format[] {
  const names = new Set<Dtype | Integers>(["f32", "f16"]);
  for (const { views } of programs) {
    for (const { dtype } of Object.values(views)) names.add(dtype).add(FORMATS[dtype].memory);
  }
  return [...names].map((name) => FORMATS[name]);
}

/** Returns a function that reads scales or minima by index. Four consecutive ones belong to a texel's four columns. */
export function scaleReader({ wide }: Format, texels: Texels): (place: number) => number {
  if (wide) {
    const floats = new Float32Array(texels.buffer, texels.byteOffset, texels.length);
    return (place) => floats[place] ?? 0;
  }
  const halves = new Uint16Array(texels.buffer, texels.byteOffset, texels.length * 2);
  return (place) => fromFloat16(halves[place] ?? 0);
}

/** Returns how many rows of texels hold `rows` rows of a tile and the scales above them. */
export function storedRows({ group, scaleRows }: Format, rows: number): number {
  return group ? rows + Math.ceil(rows / group) * scaleRows : rows;
}
