// The types of a recorded program: plain data, which its reader checks against schema/program.schema.json.

import type { FORMATS } from "../generated/formats";
import type * as schema from "../generated/program";

export type { Entry, Pass } from "../generated/program";
export type TextureSpec = schema.Texture;
export type TextureFormat = TextureSpec["format"];

type Formats = typeof FORMATS;

/** The name of a storage format (`engine/formats.ts`). */
export type Dtype = keyof Formats;

/** The integers of quantised formats without their scales, for pictures of the memory layout. */
export type Integers = Extract<Formats[Dtype], { memory: string }>["memory"];

/**
 * The matrix `[rows, cols]` that a texture holds, split into `tiles` (rows, columns of tiles).
 * Groups of column tiles that share texels may be split into panels, `panel` texels wide (0: no panels), with `stack`
 * panels one below the other in a layer.
 */
export interface View extends Omit<schema.View, "dtype"> {
  dtype: Dtype | Integers;
}

export interface Program extends Omit<schema.Program, "schema" | "views"> {
  schema: number;
  views: Record<string, View>;
}

/** Bytes of one texel. */
export const TEXEL = 16;
const HALF_TEXEL = 8;

export function textureBytes(program: Program, roles?: readonly string[]): number {
  return bytesOf(Object.values(program.textures).filter((t) => !roles || roles.includes(t.role)));
}

export function bytesOf(textures: readonly TextureSpec[]): number {
  return textures.reduce(
    (sum, t) => sum + t.width * t.height * t.layers * (t.format === "half" ? HALF_TEXEL : TEXEL),
    0,
  );
}
