// Draws textures of the model onto canvases of the page: on the device, nothing is read back.

import type { View } from "../program";
import { must } from "../program";
import type { Device, Options } from "./device";
import { compileAll } from "./shaders";

const COMMON = `
precision highp float;
precision highp int;
precision highp sampler2DArray;
precision highp usampler2DArray;
#ifdef STORAGE_UINT
#define FLOAT_SAMPLER usampler2DArray
#define TO_FLOAT(t) uintBitsToFloat(t)
#else
#define FLOAT_SAMPLER sampler2DArray
#define TO_FLOAT(t) (t)
#endif
out vec4 color;
// Positive values in one hue, negative in another, as transparent as they are small: right on light and on dark.
vec4 paint(float v) {
  float a = clamp(abs(v), 0.0, 1.0);
  return vec4((v < 0.0 ? vec3(0.93, 0.45, 0.13) : vec3(0.20, 0.47, 0.96)) * a, a);
}
`;

// Rows `start`.. of the score or pattern matrices of one layer, heads side by side; row (t - start) * heads + head.
const ATTENTION = `${COMMON}
uniform FLOAT_SAMPLER u_x;
uniform ivec4 u_cell;  // pixels of a cell, pixels from one cell to the next, tokens across a cell, heads
uniform ivec4 u_rows;  // first row, rows, rows of a tile, head (-1: all)
uniform ivec2 u_origin;
uniform float u_scale; // 0: probabilities, else scores are divided by it
float at(int t, int s, int head) {
  int row = (t - u_rows.x) * u_cell.w + head;
  return TO_FLOAT(texelFetch(u_x, ivec3(s / 4, row % u_rows.z, row / u_rows.z), 0))[s % 4];
}
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy) - u_origin;
  p.y = u_cell.x - 1 - p.y;
  int head = u_rows.w < 0 ? p.x / u_cell.y : u_rows.w, x = u_rows.w < 0 ? p.x % u_cell.y : p.x;
  if (x >= u_cell.x || head >= u_cell.w) discard;
  ivec2 first = ivec2(x, p.y) * u_cell.z / u_cell.x;
  ivec2 end = max(first + 1, min((ivec2(x, p.y) + 1) * u_cell.z / u_cell.x, first + 16));
  float best = 0.0;
  bool some = false;
  for (int t = max(first.y, u_rows.x); t < min(end.y, u_rows.x + u_rows.y); t++) {
    some = true;
    for (int s = first.x; s < min(end.x, t + 1); s++) {
      float v = at(t, s, head);
      v = u_scale > 0.0 ? v / u_scale : pow(v, 0.4);  // small weights must show
      if (abs(v) > abs(best)) best = v;
    }
  }
  if (!some) discard;
  color = paint(best);
  color += (1.0 - color.a) * vec4(0.5, 0.5, 0.5, 1.0) * 0.07;  // the square itself
}
`;

// Any texture: as the matrix it holds, or as it lies in memory, a texel's four values as a colour.
const MATRIX = `${COMMON}
#ifdef HALVES
uniform usampler2DArray u_x;
#else
uniform FLOAT_SAMPLER u_x;
#endif
uniform ivec4 u_tile;   // rows and texels of a tile, column tiles, layers
uniform ivec4 u_size;   // rows and columns shown, pixels across and down
uniform float u_scale;
uniform bool u_memory;
vec4 texel(int layer, int y, int x, int odd) {
#ifdef HALVES
  uvec4 t = texelFetch(u_x, ivec3(x, y, layer), 0);
  return odd == 0 ? vec4(unpackHalf2x16(t.x), unpackHalf2x16(t.y)) : vec4(unpackHalf2x16(t.z), unpackHalf2x16(t.w));
#else
  return TO_FLOAT(texelFetch(u_x, ivec3(x, y, layer), 0));
#endif
}
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  p.y = u_size.w - 1 - p.y;
  int row = p.y * u_size.x / u_size.w, column = p.x * u_size.y / u_size.z;
  if (u_memory) {  // layers below one another
    vec4 v = texel(row / u_tile.x, row % u_tile.x, column, 0) / u_scale;
    color = vec4(clamp(0.5 + 0.5 * v.rgb, 0.0, 1.0), 1.0);
    return;
  }
  int wide = 4 * u_tile.y, tile = column / wide, c = column % wide;
#ifdef HALVES
  int layer = (row / u_tile.x) * (u_tile.z / 2) + tile / 2;
#else
  int layer = (row / u_tile.x) * u_tile.z + tile;
#endif
  color = paint(texel(layer, row % u_tile.x, c / 4, tile % 2)[c % 4] / u_scale);
}
`;

export interface Grid {
  cell: number;
  pitch: number;
  capacity: number;
  heads: number;
}

export class Painter {
  private programs = new Map<string, WebGLProgram>();
  private places = new Map<string, WebGLUniformLocation | null>();
  private atlas: { framebuffer: WebGLFramebuffer; texture: WebGLTexture; width: number; height: number } | null = null;
  private generation = -1;

  constructor(
    private readonly device: Device,
    private readonly options: Options,
  ) {}

  /** To be awaited before drawing; again after a lost context. */
  async prepare(): Promise<void> {
    if (this.generation === this.device.generation) return;
    const texts = new Map([
      ["attention", ATTENTION],
      ["matrix", MATRIX],
      ["halves", `#define HALVES\n${MATRIX}`],
    ]);
    this.programs = await compileAll(this.device, texts, this.options);
    this.places.clear();
    this.atlas = null;
    this.generation = this.device.generation;
  }

  get ready(): boolean {
    return this.generation === this.device.generation && !this.device.lost;
  }

  private use(
    name: string,
    texture: WebGLTexture,
    uniforms: Record<string, number | boolean | readonly number[]>,
  ): void {
    const { gl } = this.device;
    const program = must(this.programs.get(name), `shader ${name}`);
    gl.useProgram(program);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D_ARRAY, texture);
    for (const [key, value] of Object.entries(uniforms)) {
      const id = `${name}.${key}`;
      if (!this.places.has(id)) this.places.set(id, gl.getUniformLocation(program, key));
      const at = this.places.get(id)!;
      if (typeof value === "boolean") gl.uniform1i(at, value ? 1 : 0);
      else if (typeof value === "number") gl.uniform1f(at, value);
      else if (value.length === 2) gl.uniform2iv(at, value);
      else gl.uniform4iv(at, value);
    }
  }

  /** An image that is kept between calls; a new size starts it empty. */
  private bindAtlas(width: number, height: number, clear: boolean): void {
    const { gl } = this.device;
    if (this.atlas && (this.atlas.width !== width || this.atlas.height !== height)) {
      gl.deleteFramebuffer(this.atlas.framebuffer);
      gl.deleteTexture(this.atlas.texture);
      this.atlas = null;
    }
    if (!this.atlas) {
      const texture = gl.createTexture();
      gl.activeTexture(gl.TEXTURE0);
      gl.bindTexture(gl.TEXTURE_2D, texture);
      gl.texStorage2D(gl.TEXTURE_2D, 1, gl.RGBA8, width, height);
      const framebuffer = gl.createFramebuffer();
      gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
      gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, texture, 0);
      this.atlas = { framebuffer, texture, width, height };
    }
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.atlas.framebuffer);
    gl.viewport(0, 0, width, height);
    if (clear) this.clear();
  }

  private clear(): void {
    const { gl } = this.device;
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
  }

  /** Starts (`clear`) or goes on with the grid of `layers` rows of cells. */
  grid(grid: Grid, layers: number, clear: boolean): void {
    this.bindAtlas(grid.heads * grid.pitch, layers * grid.pitch, clear);
  }

  /** Draws rows of one layer into the grid: `view` is the chunk's pattern or scores, whose first row is token `start`. */
  gridRows(grid: Grid, layer: number, texture: WebGLTexture, view: View, start: number, valid: number): void {
    const { gl } = this.device;
    const atlas = this.atlas!;
    gl.bindFramebuffer(gl.FRAMEBUFFER, atlas.framebuffer);
    const bottom = atlas.height - layer * grid.pitch - grid.cell;
    gl.viewport(0, bottom, atlas.width, grid.cell);
    this.use("attention", texture, {
      u_cell: [grid.cell, grid.pitch, grid.capacity, grid.heads],
      u_rows: [start, valid, Math.ceil(view.rows / view.tiles[0]), -1],
      u_origin: [0, bottom],
      u_scale: 0,
    });
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }

  /** One head of one layer into the image; `scale` 0 draws probabilities. */
  headRows(
    size: number,
    tokens: number,
    heads: number,
    head: number,
    texture: WebGLTexture,
    view: View,
    start: number,
    valid: number,
    scale: number,
  ): void {
    const { gl } = this.device;
    gl.viewport(0, 0, size, size);
    this.use("attention", texture, {
      u_cell: [size, size, tokens, heads],
      u_rows: [start, valid, Math.ceil(view.rows / view.tiles[0]), head],
      u_origin: [0, 0],
      u_scale: scale,
    });
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }

  /** Shows the grid's image on a canvas. */
  showGrid(target: HTMLCanvasElement): void {
    const { gl } = this.device;
    const atlas = this.atlas;
    if (!atlas) return;
    this.present(target, atlas.width, atlas.height, () => {
      gl.bindFramebuffer(gl.READ_FRAMEBUFFER, atlas.framebuffer);
      gl.blitFramebuffer(
        0,
        0,
        atlas.width,
        atlas.height,
        0,
        0,
        atlas.width,
        atlas.height,
        gl.COLOR_BUFFER_BIT,
        gl.NEAREST,
      );
    });
  }

  /** A texture as its matrix, or as it lies in memory; `rows` limits the matrix. */
  matrix(
    target: HTMLCanvasElement,
    texture: WebGLTexture,
    view: View,
    shown: { rows: number; memory: boolean; scale: number; width: number; height: number },
  ): void {
    const { gl } = this.device;
    const { rows, memory, scale, width, height } = shown;
    const [tr, tc] = view.tiles;
    const halves = view.dtype === "f16";
    const tileRows = Math.ceil(view.rows / tr);
    const texels = Math.ceil(view.cols / (4 * tc));
    const layers = (tr * tc) / (halves ? 2 : 1);
    this.present(target, width, height, () => {
      this.use(halves ? "halves" : "matrix", texture, {
        u_tile: [tileRows, texels, tc, layers],
        u_size: memory ? [tileRows * layers, texels, width, height] : [rows, view.cols, width, height],
        u_scale: scale || 1,
        u_memory: memory,
      });
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    });
  }

  /** Runs `draw` on an image of this size and puts it on a canvas of the page. */
  present(target: HTMLCanvasElement, width: number, height: number, draw: () => void): void {
    const { gl, canvas } = this.device;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.viewport(0, 0, width, height);
    this.clear();
    draw();
    if (target.width !== width || target.height !== height) Object.assign(target, { width, height });
    if ("transferToImageBitmap" in canvas) {
      target.getContext("bitmaprenderer")?.transferFromImageBitmap(canvas.transferToImageBitmap());
    } else {
      const flat = target.getContext("2d");
      flat?.clearRect(0, 0, width, height);
      flat?.drawImage(canvas, 0, 0);
    }
  }
}
