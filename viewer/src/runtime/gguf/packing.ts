// Packs the tensors of a model's files as texels, one band (block of texels) after another, so that memory never holds
// all texels of a large tensor. Quantised blocks keep their levels, scales and minima. glgpt/program/layout.py packs
// the same texels on the desktop.

import { PageError } from "../gl/errors";
import type { Block } from "../gl/player";
import { fromFloat16, isFiniteFloat16, toFloat16 } from "../gl/float16";
import { TYPE_NAMES, type Row } from "./block-types";

const BAND = 4 << 20; // maximum bytes of texels that are packed at once

/** The storage format of a texture. */
export interface Storage {
  name: string;
  columnTiles: number;
  /** Bits of a quantised level; 0: plain numbers. The other fields: see `Format` in engine/formats.ts. */
  bits: number;
  group: number;
  scaleRows: number;
  minimum: boolean;
  signed: boolean;
  wide: boolean;
}

/** The layout of a texture: see `View` in gl/program.ts and `Shape` in engine/layout.ts. */
export interface Target {
  rows: number;
  cols: number;
  rowTiles: number;
  height: number;
  width: number;
  stored: number;
  groups: number;
  panel: number;
  panels: number;
  stack: number;
  across: number;
}

/** The place of a texture's numbers in a file, and their order. */
export interface Origin {
  /** Number of the file, first byte, and name of the type. */
  file: number;
  offset: number;
  type: string;
  /** Rows and columns in the file; the numbers of a row are contiguous. */
  stored: [number, number];
  /** True if the texture's rows are the file's columns. */
  transposed: boolean;
  /**
   * Sizes of four axes into which the rows of a GGUF file's matrix (or the columns of a vector) divide. Exchanging the
   * two middle axes gives the order of the Hugging Face checkpoint. null: the file has this order.
   */
  exchanged: readonly [number, number, number, number] | null;
  /**
   * [Axis of the texture (0: rows), number of heads, width of a head without padding, width with padding, number of
   * kinds of heads]. In the Hugging Face checkpoint, heads of different kinds (such as queries and keys) alternate.
   */
  heads: readonly [number, number, number, number, number] | null;
  /** Rows and columns of the texture before heads are padded. */
  matrix: readonly [number, number];
  /** Added to each number. */
  shift: number;
}

export interface Packing {
  name: string;
  storage: Storage;
  target: Target;
  origin: Origin;
}

/** A block of texels of a texture. */
export interface Band {
  name: string;
  block: Block;
  texels: Uint8Array<ArrayBuffer>;
}

/** Reads the bytes of a file from `from` to `to` - 1. */
export type Read = (file: number, from: number, to: number) => Promise<ArrayBuffer>;

/** Returns the number of bytes of a tensor in its file. */
export function extent({ type, stored }: Origin): number {
  const { block, bytes } = TYPE_NAMES.get(type)!;
  return ((stored[0] * stored[1]) / block) * bytes;
}

/** Yields the texels of a texture. For a number that is not finite, throws a PageError that names the tensor. */
export async function* pack(packing: Packing, read: Read): AsyncGenerator<Band> {
  const packer = new Packer(packing, read);
  yield* packing.origin.transposed ? packer.columnBands() : packer.rowBands();
}

class Packer {
  /** For each row and column of the texture, the row or column of the origin's matrix; -1: padding. */
  private readonly rowOf: Int32Array;
  private readonly columnOf: Int32Array;

  constructor(
    private readonly packing: Packing,
    private readonly read: Read,
  ) {
    const { origin, target } = packing;
    this.rowOf = places(origin, target.rows, 0);
    this.columnOf = places(origin, target.cols, 1);
    const { block } = this.type;
    const plain = packing.storage.group === 0;
    if (!plain && !origin.transposed) throw this.problem("has its blocks along the wrong axis");
    if (block > 1 && !plain && this.rowOf.some((from, row) => from !== (row < origin.matrix[0] ? row : -1))) {
      throw this.problem("has padded or reordered heads, which would divide its quantised blocks");
    }
  }

  private get type() {
    return TYPE_NAMES.get(this.packing.origin.type)!;
  }

  private problem(what: string): PageError {
    return new PageError(`Tensor ${this.packing.name} ${what}.`);
  }

  /** Yields bands of a tensor whose rows are the texture's columns. A band is made of whole columns of a `Strip`. */
  async *columnBands(): AsyncGenerator<Band> {
    const { target, storage, origin } = this.packing;
    const wide = Math.max(1, Math.floor(BAND / (16 * target.stored)));
    const rowBytes = (origin.stored[1] / this.type.block) * this.type.bytes;
    for (const strip of strips(target)) {
      for (let x = strip.left; x < strip.right; x += wide) {
        const width = Math.min(wide, strip.right - x);
        const texels = new Uint32Array(4 * width * target.stored);
        const out = { texels, width, top: strip.tile * target.height };
        for (let shared = 0; shared < storage.columnTiles; shared++) {
          const first = 4 * ((strip.group * storage.columnTiles + shared) * target.width + x);
          const last = Math.min(
            first + 4 * width,
            target.cols,
            4 * (strip.group * storage.columnTiles + shared + 1) * target.width,
          );
          const [low, high] = range(this.columnOf.subarray(first, last));
          if (high < 0) continue;
          const data = new DataView(
            await this.read(origin.file, origin.offset + low * rowBytes, origin.offset + (high + 1) * rowBytes),
          );
          for (let c = first; c < last; c++) {
            const from = this.columnOf[c]!;
            if (from >= 0) this.column(data, (from - low) * rowBytes, c - first, shared, out);
          }
        }
        const block = {
          layer: strip.layer,
          x: x - strip.left,
          y: strip.y,
          width,
          rows: target.stored,
          stride: width,
          skip: 0,
        };
        yield { name: this.packing.name, block, texels: new Uint8Array(texels.buffer) };
      }
    }
  }

  private readonly row: Row = { levels: new Uint8Array(), scales: new Float32Array(), minima: new Float32Array() };
  private values = new Float32Array();

  /** Splits the row that starts at byte `from` into levels, scales and minima. */
  private split(data: DataView, from: number): Row {
    const { row, type } = this;
    const count = this.packing.origin.stored[1];
    if (row.levels.length !== count) {
      row.levels = new Uint8Array(count);
      row.scales = new Float32Array(count / type.group);
      row.minima = new Float32Array(count / type.group);
    }
    for (let at = 0, byte = from; at < count; at += type.block, byte += type.bytes) type.unpack!(data, byte, row, at);
    for (let i = 0; i < row.scales.length; i++) {
      if (!Number.isFinite(row.scales[i]) || !Number.isFinite(row.minima[i])) throw this.problem(NOT_FINITE);
    }
    return row;
  }

  /** Reads `count` numbers as float32, starting at byte `from`. */
  private numbers(data: DataView, from: number, count: number): Float32Array {
    if (this.values.length !== count) this.values = new Float32Array(count);
    const { values, type } = this;
    if (type.unpack) {
      const { levels, scales, minima } = this.split(data, from);
      for (let i = 0; i < count; i++) {
        const g = Math.floor(i / type.group);
        const level = type.minimum ? levels[i]! : (levels[i]! << 24) >> 24;
        values[i] = Math.fround(level * scales[g]!) + minima[g]!;
      }
    } else if (type.name === "F32") for (let i = 0; i < count; i++) values[i] = data.getFloat32(from + 4 * i, true);
    else if (type.name === "F16")
      for (let i = 0; i < count; i++) values[i] = fromFloat16(data.getUint16(from + 2 * i, true));
    else {
      const words = new Uint32Array(values.buffer);
      for (let i = 0; i < count; i++) words[i] = data.getUint16(from + 2 * i, true) << 16;
    }
    const { shift } = this.packing.origin;
    for (let i = 0; i < count; i++) {
      if (!Number.isFinite(values[i])) throw this.problem(NOT_FINITE);
      if (shift) values[i]! += shift;
    }
    return values;
  }

  /** Writes column `c` of a tile of a band. `shared`: the tile's number among the column tiles that share texels. */
  private column(data: DataView, from: number, c: number, shared: number, out: Out): void {
    const { storage, target, origin } = this.packing;
    const place = 4 * (c >> 2) + (c & 3);
    const count = Math.max(0, Math.min(target.height, target.rows - out.top));
    if (storage.group) {
      this.levels(this.split(data, from), place, shared, count, out);
      return;
    }
    if (storage.name === "f16") {
      // The file's numbers are float16 already and keep their bits.
      const halves = new Uint16Array(out.texels.buffer);
      const half = 8 * (c >> 2) + 4 * shared + (c & 3);
      for (let r = 0; r < count; r++) {
        const row = this.rowOf[out.top + r]!;
        if (row < 0) continue;
        const bits = data.getUint16(from + 2 * row, true);
        if (!isFiniteFloat16(bits)) throw this.problem(NOT_FINITE);
        halves[8 * r * out.width + half] = bits;
      }
      return;
    }
    const values = this.numbers(data, from, origin.stored[1]);
    const floats = new Float32Array(out.texels.buffer);
    for (let r = 0; r < count; r++) {
      const row = this.rowOf[out.top + r]!;
      if (row >= 0) floats[4 * r * out.width + place] = values[row]!;
    }
  }

  /** Writes the levels of a column, and its scales and minima above each group. */
  private levels({ levels, scales, minima }: Row, place: number, shared: number, count: number, out: Out): void {
    const { bits, group, scaleRows, minimum, signed, wide } = this.packing.storage;
    const { type } = this;
    const { texels, top } = out;
    const line = 4 * out.width;
    const mask = 2 ** bits - 1;
    // A format with minima and unsigned levels stores Q4_0's levels from -8 to 7 as 0 to 15, with a minimum of -8 times
    // the scale.
    const shift = minimum && !signed && !type.minimum ? SIGNED : 0;
    const rows = Math.min(count, levels.length - top);
    for (let r = 0; r < rows; r++) {
      const y = r + (Math.floor(r / group) + 1) * scaleRows;
      texels[y * line + place]! |= ((levels[top + r]! + shift) & mask) << (bits * shared);
    }
    const halves = new Uint16Array(texels.buffer);
    const floats = new Float32Array(texels.buffer);
    const [x, component] = [place >> 2, place & 3];
    for (let g = 0; g * group < rows; g++) {
      const from = Math.floor((top + g * group) / type.group);
      const above = g * (group + scaleRows);
      for (let m = 0; m < (minimum ? 2 : 1); m++) {
        const value = m === 0 ? scales[from]! : shift ? -shift * scales[from]! : minima[from]!;
        const number = 4 * (shared * (minimum ? 2 : 1) + m) + component; // index of a scale or minimum above a texel
        if (wide) floats[(above + (number >> 2)) * line + 4 * x + (number & 3)] = value;
        else halves[2 * ((above + (number >> 3)) * line + 4 * x) + (number & 7)] = this.half(value);
      }
    }
  }

  /** Returns the bits of the nearest float16. Throws PageError for a number beyond float16. */
  private half(value: number): number {
    const bits = toFloat16(value);
    if (!isFiniteFloat16(bits)) throw this.problem("has a scale that its format cannot hold");
    return bits;
  }

  /** Yields bands of a tensor whose rows are the texture's rows. A band is made of whole rows of a `Strip`. */
  async *rowBands(): AsyncGenerator<Band> {
    const { target, storage, origin } = this.packing;
    const [, columns] = origin.stored;
    const rowBytes = (columns / this.type.block) * this.type.bytes;
    for (const strip of strips(target)) {
      const width = strip.right - strip.left;
      const most = Math.max(1, Math.floor(BAND / (16 * width)));
      for (let y = 0; y < target.height; y += most) {
        const rows = Math.min(most, target.height - y);
        const texels = new Uint32Array(4 * width * rows);
        const [floats, halves] = [new Float32Array(texels.buffer), new Uint16Array(texels.buffer)];
        const top = strip.tile * target.height + y;
        const places = this.rowOf.subarray(top, Math.min(top + rows, target.rows));
        const [low, high] = range(places);
        if (high < 0) continue;
        const start = origin.offset + low * rowBytes;
        const data = new DataView(await this.read(origin.file, start, start + (high + 1 - low) * rowBytes));
        for (const [r, from] of places.entries()) {
          if (from < 0) continue;
          const values = this.numbers(data, (from - low) * rowBytes, columns);
          for (let shared = 0; shared < storage.columnTiles; shared++) {
            const tile = strip.group * storage.columnTiles + shared;
            const first = 4 * (tile * target.width + strip.left);
            const last = Math.min(first + 4 * width, target.cols, 4 * (tile + 1) * target.width);
            for (let c = first; c < last; c++) {
              const column = this.columnOf[c]!;
              if (column < 0) continue;
              const at = c - first;
              if (storage.name === "f16")
                halves[8 * r * width + 8 * (at >> 2) + 4 * shared + (at & 3)] = this.half(values[column]!);
              else floats[4 * r * width + at] = values[column]!;
            }
          }
        }
        const block = { layer: strip.layer, x: 0, y: strip.y + y, width, rows, stride: width, skip: 0 };
        yield { name: this.packing.name, block, texels: new Uint8Array(texels.buffer) };
      }
    }
  }
}

interface Out {
  texels: Uint32Array<ArrayBuffer>;
  width: number;
  /** The first row of the texture's matrix in the band. */
  top: number;
}

const SIGNED = 8;
const NOT_FINITE = "holds a number that is not finite; weights must be finite";

/** The part of a layer that holds one group of column tiles (tiles that share texels), or one panel of the group. */
interface Strip {
  tile: number;
  group: number;
  layer: number;
  y: number;
  left: number;
  right: number;
}

function* strips(target: Target): Generator<Strip> {
  const { rowTiles, groups, panels, stack, across, stored, width } = target;
  const panel = target.panel || width;
  for (let tile = 0; tile < rowTiles; tile++) {
    for (let group = 0; group < groups; group++) {
      for (let p = 0; p < panels; p++) {
        const number = group * panels + p;
        const layer = tile * across + Math.floor(number / stack);
        const left = p * panel;
        yield { tile, group, layer, y: (number % stack) * stored, left, right: Math.min(width, left + panel) };
      }
    }
  }
}

/** Returns the lowest and the highest of the row or column numbers `places`. The highest is -1 if all are padding. */
function range(places: Int32Array): [number, number] {
  let [low, high] = [Infinity, -1];
  for (const place of places) if (place >= 0) [low, high] = [Math.min(low, place), Math.max(high, place)];
  return [low, high];
}

/** Returns, for each row (or column, if `axis` is 1) of the texture, its number in the origin's matrix; -1: padding. */
function places(origin: Origin, count: number, axis: 0 | 1): Int32Array {
  const { heads, matrix, exchanged } = origin;
  const found = new Int32Array(count).fill(-1);
  const order = exchanged && axis === 1 ? rowOrder(exchanged) : null;
  for (let i = 0; i < count; i++) {
    let at = i;
    if (heads && heads[0] === axis) {
      const [, total, width, padded, kinds] = heads;
      const [head, within] = [Math.floor(i / padded), i % padded];
      if (head >= total || within >= width) continue;
      const each = total / kinds; // heads of a kind; in the Hugging Face checkpoint, the kinds alternate
      at = (kinds > 1 ? (head % each) * kinds + Math.floor(head / each) : head) * width + within;
    }
    if (at < matrix[axis]) found[i] = order ? order[at]! : at;
  }
  return found;
}

/** Returns the row numbers of a GGUF file in the order of the Hugging Face checkpoint: see `exchanged`. */
function rowOrder([a, b, c, d]: readonly [number, number, number, number]): Int32Array {
  const found = new Int32Array(a * b * c * d);
  let at = 0;
  for (let i = 0; i < a; i++)
    for (let k = 0; k < c; k++)
      for (let j = 0; j < b; j++) for (let l = 0; l < d; l++) found[at++] = ((i * b + j) * c + k) * d + l;
  return found;
}
