// Defines the types of a recorded program. The program is plain data, which `parseProgram` (engine/manifest.ts) checks
// against schema/program.schema.json.

import type { FORMATS } from "../generated/formats";
import type * as schema from "../generated/program";

export type { Entry, Pass } from "../generated/program";
export type TextureSpec = schema.Texture;
export type TextureFormat = TextureSpec["format"];

type Formats = typeof FORMATS;

/** The name of a storage format (`engine/formats.ts`). */
export type Dtype = keyof Formats;

/** The names of the integer types in quantised formats, for pictures of the memory layout without scales. */
export type Integers = Extract<Formats[Dtype], { memory: string }>["memory"];

/**
 * Describes how a texture holds a matrix of size `[rows, cols]`. The matrix is split into `tiles`: [rows of tiles,
 * columns of tiles]. Groups of column tiles that share texels may be split into panels. A panel is `panel` texels wide
 * (0: no panels), and a layer holds `stack` panels one below the other.
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
