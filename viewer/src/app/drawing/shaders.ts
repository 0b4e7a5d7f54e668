// Fragment shaders that draw the model's textures.

import COMMON from "../../../../glsl/tensor.glsl?raw";
import { MASKED } from "../../runtime/engine/field";
import type { Format } from "../../runtime/engine/formats";
import type { Dtype, Integers } from "../../runtime/gl/program";
import { SCORE_SCALE, WEIGHT_EXPONENT } from "./scale";

// Positive values have one hue and negative values another. Values closer to zero are more transparent, so that the
// page's light or dark background shows through.
const SIGNED = `
vec4 paint(float v) {
  float a = clamp(abs(v), 0.0, 1.0);
  return vec4((v < 0.0 ? vec3(0.93, 0.45, 0.13) : vec3(0.20, 0.47, 0.96)) * a, a);
}
`;

/**
 * Draws a layer's scores or weights: all heads side by side, one head, or the mean of the heads. The values of token t
 * for a head are in texture row (t - first) * heads + head.
 */
export const ATTENTION = `${COMMON}${SIGNED}
out vec4 color;
uniform FLOAT_SAMPLER u_x;
uniform ivec4 u_cell;  // pixels of a cell, pixels from one cell to the next, tokens across a cell, heads
uniform ivec4 u_rows;  // first token, tokens, texture rows of a tile, head (-1: all side by side, -2: their mean)
uniform ivec2 u_origin;
uniform bool u_scores;
uniform bool u_transposed; // true: rows are keys, as for the scores above the diagonal
float of_head(int row, int column, int head) {
  row = (row - u_rows.x) * u_cell.w + head;
  return TO_FLOAT(texelFetch(u_x, ivec3(column / 4, row % u_rows.z, row / u_rows.z), 0))[column % 4];
}
float at(int row, int column, int head) {
  if (u_rows.w != -2) return of_head(row, column, head);
  float sum = 0.0;
  for (int h = 0; h < u_cell.w; h++) sum += of_head(row, column, h);
  return sum / float(u_cell.w);
}
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy) - u_origin;
  p.y = u_cell.x - 1 - p.y;
  int head = u_rows.w == -1 ? p.x / u_cell.y : max(u_rows.w, 0), x = u_rows.w == -1 ? p.x % u_cell.y : p.x;
  if (x >= u_cell.x || head >= u_cell.w) discard;
  if (u_transposed) { int y = p.y; p.y = x; x = y; }
  ivec2 first = ivec2(x, p.y) * u_cell.z / u_cell.x;
  ivec2 end = max(first + 1, min((ivec2(x, p.y) + 1) * u_cell.z / u_cell.x, first + 16));
  float best = 0.0;
  bool some = false;
  for (int t = max(first.y, u_rows.x); t < min(end.y, u_rows.x + u_rows.y); t++) {
    for (int s = first.x; s < min(end.x, u_transposed ? t : t + 1); s++) {
      float v = at(t, s, head);
      if (v <= ${MASKED}) continue;
      some = true;
      v = u_scores ? sign(v) * (1.0 - exp(-abs(v) / ${SCORE_SCALE.toFixed(2)})) : pow(v, ${WEIGHT_EXPONENT.toFixed(2)});
      if (abs(v) > abs(best)) best = v;
    }
  }
  if (!some) discard;
  color = paint(best);
}
`;

const DECODERS = import.meta.glob<string>("../../../../glsl/formats/*.glsl", {
  query: "?raw",
  import: "default",
  eager: true,
});

// Maps the type of a quantised format's stored integers to the format whose decoder reads such integers.
const INTEGERS: Partial<Record<Dtype | Integers, Dtype>> = { i8: "q8", u8: "q5_1", u4: "q4" };

const decoder = (name: string) => DECODERS[`../../../../glsl/formats/${name}.glsl`] ?? "";

/** Returns GLSL that reads the scale and the minimum of a value in row `y`, for a quantised format. */
const scaling = ({ group, scaleRows, minimum, wide }: Format) => {
  if (!group) return "const float scale = 1.0, minimum = 0.0;";
  const read = (n: string) =>
    wide
      ? `uintBitsToFloat(TEXEL(above + ${n}))[column % 4]`
      : `f16_decode(TEXEL(above + (${n}) / 2), (${n}) % 2)[column % 4]`;
  return `int above = y / ${group} * ${group + scaleRows}, number = tile % SHARED * ${minimum ? 2 : 1};
  float scale = ${read("number")}, minimum = ${minimum ? read("number + 1") : "0.0"};
  y += (y / ${group} + 1) * ${scaleRows};`;
};

/** Returns GLSL that reads the values of a matrix stored in a format. */
const values = (format: Format) => {
  const { memory, texture, columnTiles, group } = format;
  const levels = INTEGERS[memory as Integers] ?? memory;
  return `${decoder(group ? "f16" : "")}${decoder(levels)}
uniform ${texture === "uint" ? "usampler2DArray" : "FLOAT_SAMPLER"} u_x;
uniform ivec4 u_tile;  // rows of a tile, texels across a tile, column tiles, first row
uniform ivec4 u_size;  // rows and columns shown, pixels across and down
uniform ivec4 u_panel; // width of a panel in texels, panels of a group of column tiles, panels of a layer, panel height
uniform float u_first_column; // texel of a layer at which the matrix begins; Painter sets all numbers as floats
const int SHARED = ${columnTiles};  // column tiles that share a texel
float value(int row, int column) {
  int tile = column / 4 / u_tile.y, c4 = column / 4 % u_tile.y;
  int panel = tile / SHARED * u_panel.y + c4 / u_panel.x, panels = u_tile.z / SHARED * u_panel.y;
  int layer = row / u_tile.x * ((panels + u_panel.z - 1) / u_panel.z) + panel / u_panel.z;
  int first = panel % u_panel.z * u_panel.w, y = u_tile.w + row % u_tile.x;
#define TEXEL(y) texelFetch(u_x, ivec3(int(u_first_column) + c4 % u_panel.x, first + y, layer), 0)
  ${scaling(format)}
  return ${levels}_decode(${texture === "uint" ? "TEXEL(y)" : "TO_FLOAT(TEXEL(y))"}, tile % SHARED)[column % 4]
    * scale + minimum;
}
`;
};

/** Estimates the range of a matrix: 2.5 times the mean magnitude at 24 x 24 positions. */
export const reach = (format: Format) => `${COMMON}${values(format)}
out FLOAT_TEXEL reach;
void main() {
  float sum = 0.0, count = 0.0;
  for (int i = 0; i < 576; i++) {
    float v = abs(value((i / 24) * u_size.x / 24, (i % 24) * u_size.y / 24));
    if (v < 1e29) { sum += v; count += 1.0; }
  }
  reach = FROM_FLOAT(vec4(max(2.5 * sum / max(count, 1.0), 1e-30)));
}
`;

/** Draws a matrix with one colour per value. */
export const matrix = (format: Format) => `${COMMON}${SIGNED}${values(format)}
out vec4 color;
uniform FLOAT_SAMPLER u_reach;
uniform bool u_auto;
uniform bool u_signed;
uniform vec2 u_range;
uniform vec3 u_palette[8];
uniform ivec4 u_place; // origin of the picture, its texel in u_reach, columns that values are folded into (0: no fold)
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy) - u_place.xy;
  p.y = u_size.w - 1 - p.y;
  int row = p.y * u_size.x / u_size.w, column = p.x * u_size.y / u_size.z;
  if (u_place.w > 0) {
    int lines = (u_size.x * u_size.y + u_place.w - 1) / u_place.w;
    int i = p.y * lines / u_size.w * u_place.w + p.x * u_place.w / u_size.z;
    if (i >= u_size.x * u_size.y) discard;
    row = i / u_size.y;
    column = i % u_size.y;
  }
  float v = value(row, column);
  if (v < -1e29) {  // masked
    color = vec4(0.5, 0.5, 0.5, 1.0) * 0.12;
    return;
  }
  float far = TO_FLOAT(texelFetch(u_reach, ivec3(u_place.z, 0, 0), 0)).x;
  vec2 range = u_auto ? vec2(-far, far) : u_range;
  if (u_signed) {
    color = paint(v / max(max(abs(range.x), abs(range.y)), 1e-30));
    return;
  }
  float t = 7.0 * clamp((v - range.x) / max(range.y - range.x, 1e-30), 0.0, 1.0);
  int i = min(int(t), 6);
  color = vec4(mix(u_palette[i], u_palette[i + 1], t - float(i)), 1.0);
}
`;
