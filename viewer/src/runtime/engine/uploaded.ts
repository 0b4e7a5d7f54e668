// Uploads a server's result, a matrix, to a texture, so that it can be drawn like any other texture.

import type { Device, Options } from "../gl/device";
import { Player } from "../gl/player";
import type { View } from "../gl/program";
import type { Values } from "./capture";
import { upload } from "./layout";
import type { Activation } from "./manifest";

export interface Uploaded {
  player: Player;
  view: View;
  /** The matrix, row by row. */
  values: Float32Array;
}

/** Returns an activation's values as a matrix of size `[rows, cols]`, in the layout that `Activation` describes. */
export function matrixOf(
  { kind, heads }: Activation,
  { shape, data }: Values,
): { rows: number; cols: number; values: Float32Array } {
  if (kind === "rows" || kind === "heads") return { rows: shape[0]!, cols: shape[1]!, values: data };
  const [, total, width] = shape as [number, number, number];
  const byHead = kind !== "cache"; // row number: token * heads + head; in a cache, the heads are side by side
  const values = new Float32Array(data.length);
  for (let h = 0; h < heads; h++) {
    for (let t = 0; t < total; t++) {
      const from = (h * total + t) * width;
      values.set(data.subarray(from, from + width), (t * heads + h) * width);
    }
  }
  return byHead ? { rows: total * heads, cols: width, values } : { rows: total, cols: heads * width, values };
}

/** Uploads a matrix to its own texture, in tiles if the device requires it. The caller must close the player. */
export function uploaded(
  device: Device,
  options: Options,
  name: string,
  matrix: ReturnType<typeof matrixOf>,
): Uploaded {
  const { rows, cols, values } = matrix;
  const most = device.limits.maxTextureSize;
  const tiles: [number, number] = [Math.ceil(rows / most), Math.ceil(cols / (4 * most))];
  const view: View = { texture: name, rows, cols, tiles, dtype: "f32", panel: 0, stack: 1 };
  const size = {
    width: Math.ceil(cols / (4 * tiles[1])),
    height: Math.ceil(rows / tiles[0]),
    layers: tiles[0] * tiles[1],
  };
  const textures = { [name]: { name, ...size, format: "float" as const, role: "state" as const } };
  const player = new Player(
    device,
    { schema: 0, textures, shaders: {}, entries: {}, views: { [name]: view }, scalars: {} },
    options,
  );
  upload(player, name, values);
  return { player, view, values };
}
