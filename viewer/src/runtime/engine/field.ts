// Reads a texture's values back to show them, either as the matrix that the texture holds or in memory layout.

import type { Player, Texels } from "../gl/player";
import { must } from "../gl/errors";
import { FORMATS, storedRows } from "./formats";
import { unpack } from "./layout";
import type { Pass, TextureSpec, View } from "../gl/program";

// Maximum bytes of one read. Of a larger matrix, only some rows of each tile are read. Tiles are the equal parts into
// which the matrix is divided by rows and columns.
const MAX_READ_BYTES = 4 << 20;
const BINS = 48;
const SAMPLE = 20_000; // number of values from which quantiles are computed
export const MASKED = -1e29; // values up to this one are masked scores

export interface Field {
  texture: string;
  view: View;
  /**
   * Number of rows shown. If the matrix is too large to be read whole, these are `height` rows of each tile, from the
   * tile's row `first` on.
   */
  rows: number;
  first: number;
  height: number;
  /** Number of rows of a whole tile. */
  tile: number;
  values: Float32Array;
  low: number;
  high: number;
  mean: number;
  /** The range of the middle 99% of the values. */
  inner: [number, number];
  /** Histogram in equal steps from `low` to `high`. */
  bins: number[];
}

/**
 * Returns a view of a texture in its memory layout: layers one below the other, a texel's values side by side. `dtype`
 * is the format of the matrix that the texture holds. Without `dtype`, the view has the first of `FORMATS` that is
 * stored in textures of this format. The view begins at column `firstColumn` of each layer, and ends before `end`.
 */
export function memoryView(spec: TextureSpec, dtype?: View["dtype"], firstColumn = 0, end = spec.width): View {
  const read = spec.format === "half" ? "float" : spec.format; // float16 is read as 32-bit floats
  const first = Object.values(FORMATS).find(({ texture }) => texture === read);
  const format = dtype ? FORMATS[FORMATS[dtype].memory] : first;
  const { name, columnTiles } = must(format, `a format of ${spec.format} texels`);
  return {
    texture: spec.name,
    rows: spec.height * spec.layers,
    cols: (end - firstColumn) * 4 * columnTiles,
    tiles: [spec.layers, columnTiles],
    dtype: name,
    panel: 0,
    stack: 1,
  };
}

/**
 * Returns a view of a texture in its memory layout, limited to the columns that `pass` draws: the other columns hold
 * values of other passes. If `pass` draws scores or patterns (`Pass.keys`), a column of texels holds four keys, and the
 * view has only the columns with keys of the text's `length` positions.
 */
export function writtenBy(player: Player, texture: string, pass?: Pass, length = Infinity) {
  const firstColumn = pass?.first_column ?? 0;
  const end = pass?.keys ? Math.min(pass.viewport[0], Math.max(1, Math.ceil(length / 4))) : pass?.viewport[0];
  const view = memoryView(player.spec(texture), undefined, firstColumn, end);
  return { player, view, rows: view.rows, firstColumn };
}

/**
 * Reads the first `rows` rows of a matrix. Of a matrix above `MAX_READ_BYTES`, reads a window that begins at row
 * `first` of each tile. The matrix begins at texel `firstColumn` of each layer.
 */
export async function readField(
  player: Player,
  view: View,
  rows = view.rows,
  first = 0,
  firstColumn = 0,
): Promise<Field> {
  const spec = player.spec(view.texture);
  const tile = Math.ceil(view.rows / view.tiles[0]);
  const format = FORMATS[view.dtype];
  const whole = format.group || 1; // number of rows that share scales and must be read together
  const room = Math.max(1, Math.floor(MAX_READ_BYTES / (spec.width * spec.layers * 16 * whole))) * whole;
  const height = Math.min(tile, room);
  const from = height < tile ? Math.floor(Math.min(first, tile - height) / whole) * whole : 0;
  const window = height < tile ? { ...view, rows: height * view.tiles[0] } : view;
  const [stored, begin, count] = [storedRows(format, tile), storedRows(format, from), storedRows(format, height)];
  const bands = Array.from({ length: view.stack }, (_, s) => player.read(view.texture, s * stored + begin, count));
  const texels = interleaved(await Promise.all(bands), spec.layers);
  const end = firstColumn + Math.ceil(view.cols / (4 * format.columnTiles)); // exceeds the width if a row spans layers
  const part = !view.panel && (firstColumn > 0 || end < spec.width); // panels are read whole
  const values = unpack(window, part ? between(texels, spec.width, firstColumn, end) : texels);
  const shown = height < tile ? window.rows : rows;
  const used = values.subarray(0, shown * view.cols);
  return { texture: view.texture, view, rows: shown, first: from, height, tile, values: used, ...statistics(used) };
}

/** Returns the texels from `first` to `end` - 1 of each row of `width` texels. */
function between(texels: Texels, width: number, first: number, end: number): Texels {
  return texels.filter((_, i) => i % (4 * width) >= 4 * first && i % (4 * width) < 4 * end);
}

/** Joins bands. A band has the same rows of every layer; in the result, the bands of one layer follow each other. */
function interleaved(bands: Texels[], layers: number): Texels {
  const [only] = bands;
  if (bands.length === 1) return only!;
  const size = only!.length / layers;
  const out =
    only instanceof Uint32Array
      ? new Uint32Array(bands.length * size * layers)
      : new Float32Array(bands.length * size * layers);
  bands.forEach((band, s) => {
    for (let i = 0; i < layers; i++) out.set(band.subarray(i * size, (i + 1) * size), (i * bands.length + s) * size);
  });
  return out;
}

export function statistics(values: Float32Array): Pick<Field, "low" | "high" | "mean" | "inner" | "bins"> {
  let low = Infinity;
  let high = -Infinity;
  let sum = 0;
  let count = 0;
  for (const v of values) {
    if (!(v > MASKED)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
    sum += v;
    count++;
  }
  const bins = new Array<number>(BINS).fill(0);
  const step = BINS / (high - low || 1);
  const some: number[] = [];
  const stride = Math.max(1, Math.floor(count / SAMPLE));
  let seen = 0;
  for (const v of values) {
    if (!(v > MASKED)) continue;
    bins[Math.min(BINS - 1, Math.floor((v - low) * step))]!++;
    if (seen++ % stride === 0) some.push(v);
  }
  some.sort((a, b) => a - b);
  const at = (q: number) => some[Math.round(q * (some.length - 1))] ?? 0;
  return { low, high, mean: sum / count, inner: [at(0.005), at(0.995)], bins };
}
