// The types of a recorded program: plain data, which its reader checks against schema/program.schema.json.

export interface TextureSpec {
  name: string;
  width: number;
  height: number;
  layers: number;
  format: "float" | "uint";
  role: "weight" | "state" | "input" | "scratch";
}

/** The name of a storage format (`engine/formats.ts`). */
export type Dtype = "f32" | "f16" | "q8" | "q4";

/** The integers of q8 and q4 without their scales, for pictures of the memory layout. */
export type Integers = "i8" | "i4";

/**
 * The matrix `[rows, cols]` that a texture holds, split into `tiles` (rows, columns of tiles).
 * Groups of column tiles that share texels may be split into panels, `panel` texels wide (0: no panels), with `stack`
 * panels one below the other in a layer.
 */
export interface View {
  texture: string;
  rows: number;
  cols: number;
  tiles: [number, number];
  dtype: Dtype | Integers;
  panel: number;
  stack: number;
}

/**
 * One draw of one triangle: `inputs` are (sampler, texture), `outputs` (texture, layer). With `slices`, as many triangles
 * are drawn, and each adds its colours to the outputs, which are zero before the first one if `clear` is set.
 */
export interface Pass {
  label: string;
  shader: string;
  inputs: [string, string][];
  outputs: [string, number][];
  viewport: [number, number];
  row: string | null;
  flops: number;
  nbytes: number;
  slices?: number;
  clear?: boolean;
}

/**
 * A list of passes that a caller can play. After it, the two textures of each `ping_pong` pair (old, new) swap names.
 */
export interface Entry {
  name: string;
  inputs: string[];
  passes: Pass[];
  outputs: Record<string, View>;
  ping_pong?: [string, string][];
}

export interface Program {
  schema: number;
  textures: Record<string, TextureSpec>;
  shaders: Record<string, string>;
  entries: Record<string, Entry>;
  views: Record<string, View>;
  scalars: Record<string, "int" | "float">;
}

/** Bytes of one texel. */
export const TEXEL = 16;

export function textureBytes(program: Program, roles?: readonly string[]): number {
  return bytesOf(Object.values(program.textures).filter((t) => !roles || roles.includes(t.role)));
}

export function bytesOf(textures: readonly TextureSpec[]): number {
  return textures.reduce((sum, t) => sum + t.width * t.height * t.layers * TEXEL, 0);
}
