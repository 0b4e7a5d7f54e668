// Converts between matrices and texels. The tests use matrices that Python packed: tests/page/shared_cases.json.

import { must } from "../gl/errors";
import type { Block, Player, Texels } from "../gl/player";
import type { View } from "../gl/program";
import { FORMATS, scaleReader, storedRows } from "./formats";

export interface Shape {
  /** `height`: rows of a tile (a part of the matrix). `width`: texels of such a row. */
  height: number;
  width: number;
  /** Rows of texels of a tile, including the rows of its scales. */
  stored: number;
  /**
   * `groups`: number of groups of column tiles that share texels. `panels`: number of panels per group (1: no panels).
   * Panels are vertical strips of a tile; a layer stores `View.stack` of them one below the other.
   */
  groups: number;
  panels: number;
  /** Number of layers that hold one row of tiles. */
  across: number;
}

export function shape({ rows, cols, tiles, dtype, panel, stack }: View): Shape {
  const width = Math.ceil(cols / (4 * tiles[1]));
  const height = Math.ceil(rows / tiles[0]);
  const groups = tiles[1] / FORMATS[dtype].columnTiles;
  const panels = Math.ceil(width / (panel || width));
  const stored = storedRows(FORMATS[dtype], height);
  return { height, width, stored, groups, panels, across: Math.ceil((groups * panels) / stack) };
}

/**
 * Yields the blocks (rectangles) of `view`'s texture that hold the texels which would be the rows y..y+rows-1 of
 * `layer` in the layout without panels.
 */
export function* blocks(view: View, layer: number, y: number, rows: number): Generator<Block> {
  const { stored, width, groups, panels, across } = shape(view);
  if (!view.panel) {
    yield { layer, x: 0, y, width, rows, stride: width, skip: 0 };
    return;
  }
  const first = Math.floor(layer / groups) * across;
  for (let p = 0; p < panels; p++) {
    const number = (layer % groups) * panels + p;
    const place = { layer: first + Math.floor(number / view.stack), x: 0, y: (number % view.stack) * stored + y };
    const skip = p * view.panel;
    yield { ...place, width: Math.min(view.panel, width - skip), rows, stride: width, skip };
  }
}

/** Packs numbers into the texels of each layer of `view`. The view must have a single row and the format f32. */
export function packRow(view: View, row: Float32Array): Float32Array[] {
  const { width, groups } = shape(view);
  return Array.from({ length: groups }, (_, i) => {
    const texels = new Float32Array(4 * width);
    texels.set(row.subarray(4 * width * i, Math.min(view.cols, 4 * width * (i + 1))));
    return texels;
  });
}

/** Uploads a matrix of floats, stored by rows in `values`, to an f32 texture without panels. */
export function upload(player: Player, name: string, values: Float32Array): void {
  const { rows, cols, tiles } = must(player.program.views[name], `view of ${name}`);
  const { width, height, layers } = player.spec(name);
  for (let layer = 0; layer < layers; layer++) {
    let texels = values;
    if (layers > 1 || cols % 4) {
      texels = new Float32Array(4 * width * height);
      const top = Math.floor(layer / tiles[1]) * height;
      const left = (layer % tiles[1]) * 4 * width;
      for (let y = 0; y < Math.min(height, rows - top); y++) {
        const from = (top + y) * cols;
        texels.set(values.subarray(from + left, from + Math.min(cols, left + 4 * width)), 4 * width * y);
      }
    }
    player.write(name, layer, 0, height, new Uint8Array(texels.buffer, texels.byteOffset, texels.byteLength));
  }
}

/** Unpacks the texels of all layers to a matrix of size `[rows, cols]`. */
export function unpack(view: View, texels: Texels): Float32Array {
  const { rows, cols, stack } = view;
  const { height, width, stored, panels, across } = shape(view);
  const format = FORMATS[view.dtype];
  const { columnTiles, group, scaleRows, minimum } = format;
  const perTexel = format.wide ? 1 : 2; // number of sets in a texel; a set is the scales or minima of four columns
  const value = format.reader(texels);
  const scaleAt = scaleReader(format, texels);
  const line = view.panel || width;
  const out = new Float32Array(rows * cols);
  for (let r = 0; r < rows; r++) {
    const [i, y] = [Math.floor(r / height), r % height];
    for (let c4 = 0; 4 * c4 < cols; c4++) {
      const tile = Math.floor(c4 / width);
      const x = c4 % width;
      const panel = Math.floor(tile / columnTiles) * panels + Math.floor(x / line);
      const layer = i * across + Math.floor(panel / stack);
      const first = (layer * stack + (panel % stack)) * stored; // first row of texels of the panel
      const above = group ? (Math.floor(y / group) + 1) * scaleRows : 0;
      const place = 4 * (((first + above + y) * line + (x % line)) * columnTiles + (tile % columnTiles));
      const shared = tile % columnTiles;
      const top = first + (above - scaleRows) + (y - (group ? y % group : 0)); // row of texels of the first scales
      const scale = shared * (minimum ? 2 : 1); // index of the set of four scales; the minima are the next set
      const [scales, minima] = [scale, scale + 1].map((n) => {
        const row = top + Math.floor(n / perTexel);
        return 4 * ((row * line + (x % line)) * perTexel + (n % perTexel));
      });
      for (let c = 4 * c4; c < Math.min(4 * c4 + 4, cols); c++) {
        out[r * cols + c] = value(place + (c & 3));
        if (group) out[r * cols + c]! *= scaleAt(scales! + (c & 3));
        if (minimum) out[r * cols + c]! += scaleAt(minima! + (c & 3));
      }
    }
  }
  return out;
}
