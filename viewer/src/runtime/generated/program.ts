// The types of viewer/schema/program.schema.json. Written by scripts/generate_schema.py.

/**
 * A callable part of a program: upload `inputs`, set the scalars, play `passes`, read `outputs` (name -> view).
 * `ping_pong` are pairs of textures (old, new): the passes read the old one and write the new one. After the entry the
 * two swap names, so that the next call finds the new value under the name of the old one.
 */
export interface Entry {
  name: string;
  inputs: readonly string[];
  passes: readonly Pass[];
  outputs: Record<string, View>;
  ping_pong?: readonly (readonly [string, string])[];
}

/**
 * One draw of one triangle. `inputs` are pairs (sampler, texture), in the order of the texture units. `outputs` are
 * pairs (texture, layer), in the order of the colour attachments. `viewport` is (width, height) in texels; its y is 0,
 * or the value of the runtime scalar that `row` names. Its columns before `first_column` are not drawn, and no pass
 * reads them unless an earlier pass drew them: passes may draw parts of the same outputs, from left to right, each from
 * the column at which the previous one ends. With `keys`, a column holds four keys, and only the columns of the
 * positions before `pos` + `keys` are drawn and read. The cost of the pass is `flops` and `nbytes` (bytes of weights
 * read). With `slices`, as many triangles are drawn, one after the other, and each adds its colours to the outputs,
 * which are zero before the first one if `clear` is set. The shader finds the triangle's number in `slice_of_k`. Such a
 * pass, or one with `row`, draws all columns of its viewport.
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
 * A 2D-array texture of four numbers a texel. `format`: float is RGBA32F (or its bits in RGBA32UI, if the device cannot
 * render to RGBA32F), uint is RGBA32UI; half is RGBA16F, or as float on a device that cannot render to it. Shaders read
 * and write half as they do float. `role`: a weight is uploaded once; a state is zero at first and persists between
 * calls; an input is uploaded before a call; scratch is undefined between calls.
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
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k";
  panel: number;
  stack: number;
  texture: string;
}

/**
 * Textures, shaders (name -> GLSL without a version line) and entries. `views` describes the matrix in each texture
 * that outlives a call; `scalars` are the fields of the uniform block, in order.
 */
export interface Program {
  textures: Record<string, Texture>;
  shaders: Record<string, string>;
  entries: Record<string, Entry>;
  views: Record<string, View>;
  scalars: Record<string, "int" | "float">;
  schema: 2;
}
