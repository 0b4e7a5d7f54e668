// Lists the tensor types of GGUF and splits their blocks into levels (integers), scales and minima, as
// glgpt/gguf/block_types.py does.

import { fromFloat16 } from "../gl/float16";

/** A row of a tensor: value = level * scale + minimum. `TensorType.group` values share a scale and a minimum. */
export interface Row {
  /** Signed bytes, or unsigned ones if the type has minima. */
  levels: Uint8Array;
  scales: Float32Array;
  minima: Float32Array;
}

export interface TensorType {
  name: string;
  /** Number of values in a block. */
  block: number;
  /** Number of bytes of a block. */
  bytes: number;
  /** Number of values that share a scale; 0: the type is not quantised. */
  group: number;
  /** True if levels are not negative and a minimum is added. */
  minimum: boolean;
  /** Splits the block that starts at byte `from`. Its values start at index `at` of the row. null: not quantised. */
  unpack: ((data: DataView, from: number, row: Row, at: number) => void) | null;
}

const halfAt = (data: DataView, at: number) => fromFloat16(data.getUint16(at, true));

/**
 * Reads 32 levels: four bits of each from byte `from` on and, unless `high` is -1, the fifth bits from byte `high` on.
 * Subtracts `shift` from each level.
 */
function nibbles(data: DataView, from: number, high: number, shift: number, levels: Uint8Array, at: number): void {
  const fifth = high < 0 ? 0 : data.getUint32(high, true);
  for (let i = 0; i < 16; i++) {
    const byte = data.getUint8(from + i);
    levels[at + i] = ((byte & 15) | (((fifth >>> i) & 1) << 4)) - shift;
    levels[at + 16 + i] = ((byte >> 4) | (((fifth >>> (i + 16)) & 1) << 4)) - shift;
  }
}

/** Returns a type whose blocks hold 32 values and a scale, and possibly a minimum and fifth bits. */
function simple(name: string, bytes: number, minimum: boolean, five: boolean, shift: number): TensorType {
  const high = minimum ? 4 : 2;
  return {
    name,
    block: 32,
    bytes,
    group: 32,
    minimum,
    unpack: (data, from, row, at) => {
      row.scales[at / 32] = halfAt(data, from);
      row.minima[at / 32] = minimum ? halfAt(data, from + 2) : 0;
      nibbles(data, from + high + (five ? 4 : 0), five ? from + high : -1, shift, row.levels, at);
    },
  };
}

/**
 * Reads the scales and minima of the eight groups of a super-block (256 values). A scale is a 6-bit integer multiplied
 * by a float16 number; a minimum is the negative of such a product.
 */
function superScales(data: DataView, from: number, row: Row, at: number): void {
  const [whole, low] = [halfAt(data, from), halfAt(data, from + 2)];
  const byte = (i: number) => data.getUint8(from + 4 + i);
  for (let i = 0; i < 8; i++) {
    const scale = i < 4 ? byte(i) & 63 : (byte(i + 4) & 15) | ((byte(i - 4) >> 6) << 4);
    const minimum = i < 4 ? byte(i + 4) & 63 : (byte(i + 4) >> 4) | ((byte(i) >> 6) << 4);
    row.scales[at / 32 + i] = whole * scale;
    row.minima[at / 32 + i] = -Math.fround(low * minimum);
  }
}

/**
 * Reads 256 levels: four bits of each from byte `from` on and, unless `high` is -1, the fifth bits from byte `high` on.
 * Each 32 bytes hold one group in their low four bits and the next group in their high four bits.
 */
function superLevels(data: DataView, from: number, high: number, levels: Uint8Array, at: number): void {
  for (let g = 0; g < 8; g += 2) {
    for (let i = 0; i < 32; i++) {
      const byte = data.getUint8(from + 16 * g + i);
      const fifth = high < 0 ? 0 : data.getUint8(high + i) >> g;
      levels[at + 32 * g + i] = (byte & 15) | ((fifth & 1) << 4);
      levels[at + 32 * g + 32 + i] = (byte >> 4) | (((fifth >> 1) & 1) << 4);
    }
  }
}

const plain = (name: string, bytes: number): TensorType => ({
  name,
  block: 1,
  bytes,
  group: 0,
  minimum: false,
  unpack: null,
});

const Q8_0: TensorType = {
  name: "Q8_0",
  block: 32,
  bytes: 34,
  group: 32,
  minimum: false,
  unpack: (data, from, row, at) => {
    row.scales[at / 32] = halfAt(data, from);
    for (let i = 0; i < 32; i++) row.levels[at + i] = data.getUint8(from + 2 + i);
  },
};

const Q4_K: TensorType = {
  name: "Q4_K",
  block: 256,
  bytes: 144,
  group: 32,
  minimum: true,
  unpack: (data, from, row, at) => {
    superScales(data, from, row, at);
    superLevels(data, from + 16, -1, row.levels, at);
  },
};

const Q5_K: TensorType = {
  name: "Q5_K",
  block: 256,
  bytes: 176,
  group: 32,
  minimum: true,
  unpack: (data, from, row, at) => {
    superScales(data, from, row, at);
    superLevels(data, from + 48, from + 16, row.levels, at);
  },
};

const Q2_K: TensorType = {
  name: "Q2_K",
  block: 256,
  bytes: 84,
  group: 16,
  minimum: true,
  unpack: (data, from, row, at) => {
    const [whole, low] = [halfAt(data, from + 80), halfAt(data, from + 82)];
    for (let i = 0; i < 16; i++) {
      const byte = data.getUint8(from + i);
      row.scales[at / 16 + i] = whole * (byte & 15);
      row.minima[at / 16 + i] = -Math.fround(low * (byte >> 4));
    }
    for (let g = 0; g < 8; g++) {
      for (let i = 0; i < 32; i++) {
        const byte = data.getUint8(from + 16 + 32 * (g >> 2) + i);
        row.levels[at + 32 * g + i] = (byte >> (2 * (g % 4))) & 3;
      }
    }
  },
};

const Q3_K: TensorType = {
  name: "Q3_K",
  block: 256,
  bytes: 110,
  group: 16,
  minimum: false,
  unpack: (data, from, row, at) => {
    const whole = halfAt(data, from + 108);
    const byte = (i: number) => data.getUint8(from + 96 + i);
    for (let i = 0; i < 16; i++) {
      const low = i < 8 ? byte(i) & 15 : byte(i - 8) >> 4;
      const upper = (byte(8 + (i % 4)) >> (2 * (i >> 2))) & 3;
      row.scales[at / 16 + i] = whole * ((low | (upper << 4)) - 32);
    }
    for (let g = 0; g < 8; g++) {
      for (let i = 0; i < 32; i++) {
        const low = (data.getUint8(from + 32 + 32 * (g >> 2) + i) >> (2 * (g % 4))) & 3;
        const third = (data.getUint8(from + i) >> g) & 1;
        row.levels[at + 32 * g + i] = (low | (third << 2)) - 4;
      }
    }
  },
};

const Q6_K: TensorType = {
  name: "Q6_K",
  block: 256,
  bytes: 210,
  group: 16,
  minimum: false,
  unpack: (data, from, row, at) => {
    const whole = halfAt(data, from + 208);
    for (let i = 0; i < 16; i++) row.scales[at / 16 + i] = whole * data.getInt8(from + 192 + i);
    for (let half = 0; half < 2; half++) {
      for (let i = 0; i < 32; i++) {
        const [first, second] = [data.getUint8(from + 64 * half + i), data.getUint8(from + 64 * half + 32 + i)];
        const pairs = data.getUint8(from + 128 + 32 * half + i);
        const to = at + 128 * half + i;
        row.levels[to] = ((first & 15) | ((pairs & 3) << 4)) - 32;
        row.levels[to + 32] = ((second & 15) | (((pairs >> 2) & 3) << 4)) - 32;
        row.levels[to + 64] = ((first >> 4) | (((pairs >> 4) & 3) << 4)) - 32;
        row.levels[to + 96] = ((second >> 4) | ((pairs >> 6) << 4)) - 32;
      }
    }
  },
};

/** The levels of IQ4_NL and IQ4_XS, by their four-bit indices. */
const IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/** Reads 32 levels of IQ4 from 16 bytes. */
function levelsOfIq4(data: DataView, from: number, levels: Uint8Array, at: number): void {
  for (let i = 0; i < 16; i++) {
    const byte = data.getUint8(from + i);
    levels[at + i] = IQ4[byte & 15]!;
    levels[at + 16 + i] = IQ4[byte >> 4]!;
  }
}

const IQ4_NL: TensorType = {
  name: "IQ4_NL",
  block: 32,
  bytes: 18,
  group: 32,
  minimum: false,
  unpack: (data, from, row, at) => {
    row.scales[at / 32] = halfAt(data, from);
    levelsOfIq4(data, from + 2, row.levels, at);
  },
};

const IQ4_XS: TensorType = {
  name: "IQ4_XS",
  block: 256,
  bytes: 136,
  group: 16, // a scale is for 32 values, so `Row.scales` holds it twice: for two groups
  minimum: false,
  unpack: (data, from, row, at) => {
    const [whole, upper] = [halfAt(data, from), data.getUint16(from + 2, true)];
    for (let g = 0; g < 8; g++) {
      const low = (data.getUint8(from + 4 + (g >> 1)) >> (4 * (g % 2))) & 15;
      const scale = whole * ((low | (((upper >> (2 * g)) & 3) << 4)) - 32);
      row.scales.fill(scale, at / 16 + 2 * g, at / 16 + 2 * g + 2);
      levelsOfIq4(data, from + 8 + 16 * g, row.levels, at + 32 * g);
    }
  },
};

/** The supported types by their numbers in a file. */
export const TYPES: ReadonlyMap<number, TensorType> = new Map([
  [0, plain("F32", 4)],
  [1, plain("F16", 2)],
  [2, simple("Q4_0", 18, false, false, 8)],
  [3, simple("Q4_1", 20, true, false, 0)],
  [6, simple("Q5_0", 22, false, true, 16)],
  [7, simple("Q5_1", 24, true, true, 0)],
  [8, Q8_0],
  [10, Q2_K],
  [11, Q3_K],
  [12, Q4_K],
  [13, Q5_K],
  [14, Q6_K],
  [20, IQ4_NL],
  [23, IQ4_XS],
  [30, plain("BF16", 2)],
]);

export const TYPE_NAMES = new Map([...TYPES.values()].map((type) => [type.name, type]));

/** Names of types that are not supported, for messages. */
export const OTHERS: Readonly<Record<number, string>> = {
  9: "Q8_1",
  15: "Q8_K",
  16: "IQ2_XXS",
  17: "IQ2_XS",
  18: "IQ3_XXS",
  19: "IQ1_S",
  21: "IQ3_S",
  22: "IQ2_S",
  24: "I8",
  25: "I16",
  26: "I32",
  27: "I64",
  28: "F64",
  29: "IQ1_M",
  34: "TQ1_0",
  35: "TQ2_0",
  39: "MXFP4",
};
