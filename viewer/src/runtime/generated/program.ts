// The types of viewer/schema/program.schema.json. Written by scripts/generate_schema.py.

/**
 * A callable part of a program. To call it, a player uploads `inputs`, sets the scalars, plays `passes`, and reads
 * `outputs` (name -> view). `ping_pong` are pairs of textures (old, new): the passes read the old texture and write the
 * new one. After the entry, the two textures swap names, so that the next call reads the new values under the old
 * texture's name.
 */
export interface Entry {
  name: string;
  inputs: readonly string[];
  passes: readonly Pass[];
  outputs: Record<string, View>;
  ping_pong?: readonly (readonly [string, string])[];
}

/**
 * One draw call, which draws one triangle unless there are `slices`. `inputs` are pairs (sampler, texture), in the
 * order of the texture units. `outputs` are pairs (texture, layer), in the order of the colour attachments. `viewport`
 * is (width, height) in texels; it begins at row 0, or at the row in the runtime scalar that `row` names. Columns of
 * the viewport before `first_column` are not drawn. Several passes may draw parts of the same outputs, from left to
 * right; each begins at the column at which the previous one ended, and no pass reads columns that are not drawn yet.
 * With `keys`, a column holds four keys of attention, and only the columns of the positions before `pos` + `keys` are
 * drawn and read (0: all columns). The cost of the pass is `flops` (multiplications and additions) and `nbytes` (bytes
 * of weights read). With `slices`, this many triangles are drawn, one after the other, and each adds its colours to the
 * outputs. If `clear` is set, the outputs are zero before the first triangle. The shader reads the number of the
 * triangle from `slice_of_k`. A pass with `slices` or `row` draws all columns of its viewport.
 */
export interface Pass {
  label: string;
  shader: string;
  inputs: readonly (readonly [string, string])[];
  outputs: readonly (readonly [string, number])[];
  viewport: readonly [number, number];
  row: string | null;
  flops: number;
  nbytes: number;
  slices: number;
  clear: boolean;
  first_column: number;
  keys: number;
}

/**
 * A 2D-array texture with four numbers in each texel. `format`: "float" is RGBA32F, or the bits of floats in RGBA32UI
 * if the device cannot render to RGBA32F; "uint" is RGBA32UI; "half" is RGBA16F, or the same as "float" if the device
 * cannot render to RGBA16F. Shaders read and write "half" like "float". `role`: a weight is uploaded once; a state is
 * zero at first and persists between calls of entries; an input is uploaded before a call; scratch is undefined between
 * calls.
 */
export interface Texture {
  name: string;
  width: number;
  height: number;
  layers: number;
  format: "float" | "half" | "uint";
  role: "weight" | "state" | "input" | "scratch";
}

/** A layout and the name of the texture that holds it. */
export interface View {
  rows: number;
  cols: number;
  tiles: readonly [number, number];
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k" | "q2_k";
  panel: number;
  stack: number;
  texture: string;
}

/**
 * Textures, shaders (name -> GLSL without a version line) and entries. `views` describes the matrix in each weight,
 * state and input, by the texture's name. `scalars` are the fields of the uniform block in their order (name -> GLSL
 * type).
 */
export interface Program {
  textures: Record<string, Texture>;
  shaders: Record<string, string>;
  entries: Record<string, Entry>;
  views: Record<string, View>;
  scalars: Record<string, "int" | "float">;
  schema: 2;
}
