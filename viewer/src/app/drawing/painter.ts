// Draws textures of the model onto canvases of the page, without reading them back.

import type { View } from "../../runtime/gl/program";
import { must } from "../../runtime/gl/errors";
import type { Palette } from "./palettes";
import type { Device, Options } from "../../runtime/gl/device";
import { formatsOf, type Format } from "../../runtime/engine/formats";
import { shape } from "../../runtime/engine/layout";
import { Reader } from "../../runtime/gl/readback";
import { compileAll } from "../../runtime/gl/shaders";
import { ATTENTION, matrix, reach } from "./shaders";

/** A picture of all heads: a cell of `cell` pixels every `pitch` pixels, each with space for `capacity` tokens. */
export interface Grid {
  cell: number;
  pitch: number;
  capacity: number;
  heads: number;
}

/** A texture with `valid` rows (columns if transposed) of a layer's scores or weights, from row `start` on. */
export interface Slab {
  texture: WebGLTexture;
  view: View;
  start: number;
  valid: number;
  /** True for scores, false for probabilities. */
  scores: boolean;
  /** True if rows are keys and columns are queries, as for the scores above the diagonal. */
  transposed: boolean;
}

export const CELLS = 255; // maximum number of cells of the strip (the machine's picture, see strip.ts)

type Uniform = number | boolean | readonly number[] | Float32Array;

/** One picture of the strip: its position in pixels from the left and the bottom, its size, and its index. */
export interface Cell {
  x: number;
  y: number;
  width: number;
  height: number;
  number: number;
}

interface Atlas {
  framebuffer: WebGLFramebuffer;
  texture: WebGLTexture;
  width: number;
  height: number;
}

export class Painter {
  private programs = new Map<string, WebGLProgram>();
  private places = new Map<string, WebGLUniformLocation | null>();
  private atlas: Atlas | null = null;
  private strip: Atlas | null = null;
  private reach: { framebuffer: WebGLFramebuffer; texture: WebGLTexture } | null = null;
  private generation = -1;

  constructor(
    private readonly device: Device,
    private readonly options: Options,
    readonly formats: readonly Format[] = formatsOf(),
  ) {}

  /** Compiles the shaders. Must be awaited before drawing, and again after a lost context. */
  async prepare(): Promise<void> {
    if (this.generation === this.device.generation) return;
    const texts = new Map([["attention", ATTENTION]]);
    for (const format of this.formats) {
      texts.set(`matrix ${format.name}`, matrix(format));
      texts.set(`reach ${format.name}`, reach(format));
    }
    this.programs = await compileAll(this.device, texts, this.options);
    const { device } = this;
    const texture = device.texture(1 + CELLS, 1, 1, this.options.storage);
    this.reach = { texture, framebuffer: device.framebuffer([[texture, 0]]) };
    this.places.clear();
    this.atlas = this.strip = null;
    this.generation = device.generation;
  }

  get ready(): boolean {
    return this.generation === this.device.generation && !this.device.lost;
  }

  private use(name: string, textures: readonly WebGLTexture[], uniforms: Record<string, Uniform>): void {
    const { gl } = this.device;
    const program = must(this.programs.get(name), `shader ${name}`);
    gl.useProgram(program);
    textures.forEach((texture, unit) => {
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(gl.TEXTURE_2D_ARRAY, texture);
      gl.uniform1i(this.place(program, name, unit ? "u_reach" : "u_x"), unit);
    });
    for (const [key, value] of Object.entries(uniforms)) {
      const at = this.place(program, name, key);
      if (typeof value === "boolean") gl.uniform1i(at, value ? 1 : 0);
      else if (typeof value === "number") gl.uniform1f(at, value);
      else if (!(value instanceof Float32Array)) gl[value.length === 2 ? "uniform2iv" : "uniform4iv"](at, value);
      else gl[value.length === 2 ? "uniform2fv" : "uniform3fv"](at, value);
    }
  }

  private place(program: WebGLProgram, name: string, key: string): WebGLUniformLocation | null {
    const id = `${name}.${key}`;
    let found = this.places.get(id);
    if (found === undefined) this.places.set(id, (found = this.device.gl.getUniformLocation(program, key)));
    return found;
  }

  // -- attention --------------------------------------------------------------------------------------------------

  /** Selects the image of the grid with `layers` rows of cells. `clear` or a new size empties the image. */
  grid(grid: Grid, layers: number, clear: boolean): void {
    const { gl } = this.device;
    const [width, height] = [grid.heads * grid.pitch, layers * grid.pitch];
    this.atlas = this.sized(this.atlas, width, height);
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.atlas.framebuffer);
    gl.viewport(0, 0, width, height);
    if (clear) this.clear();
  }

  /** Returns the image if it has this size; otherwise deletes it and returns a new, empty image. */
  private sized(image: Atlas | null, width: number, height: number): Atlas {
    if (image?.width === width && image.height === height) return image;
    const { gl } = this.device;
    gl.deleteFramebuffer(image?.framebuffer ?? null);
    gl.deleteTexture(image?.texture ?? null);
    const texture = gl.createTexture();
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texStorage2D(gl.TEXTURE_2D, 1, gl.RGBA8, width, height);
    const framebuffer = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, texture, 0);
    return { framebuffer, texture, width, height };
  }

  private clear(): void {
    const { gl } = this.device;
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
  }

  /** Draws a slab of one layer, with all heads, into the grid. */
  gridRows(grid: Grid, layer: number, slab: Slab): void {
    const atlas = this.atlas!;
    this.device.gl.bindFramebuffer(this.device.gl.FRAMEBUFFER, atlas.framebuffer);
    const bottom = atlas.height - layer * grid.pitch - grid.cell;
    this.slab(slab, [0, bottom, atlas.width, grid.cell], [grid.cell, grid.pitch, grid.capacity, grid.heads], -1);
  }

  /**
   * Draws a slab of a head (-2: the mean of all heads), one pixel per pair of tokens. Call this only in the `draw`
   * function of `present`.
   */
  headRows(tokens: number, heads: number, head: number, slab: Slab): void {
    this.device.gl.bindFramebuffer(this.device.gl.FRAMEBUFFER, null);
    this.slab(slab, [0, 0, tokens, tokens], [tokens, tokens, tokens, heads], head);
  }

  private slab(slab: Slab, box: [number, number, number, number], cell: readonly number[], head: number): void {
    const { gl } = this.device;
    const { view, start, valid } = slab;
    gl.viewport(...box);
    this.use("attention", [slab.texture], {
      u_cell: cell,
      u_rows: [start, valid, Math.ceil(view.rows / view.tiles[0]), head],
      u_origin: [box[0], box[1]],
      u_scores: slab.scores,
      u_transposed: slab.transposed,
    });
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }

  /** Shows the grid's image on a canvas. */
  showGrid(target: HTMLCanvasElement): void {
    if (this.atlas) this.show(target, this.atlas);
  }

  private show(target: HTMLCanvasElement, atlas: Atlas): void {
    const { gl } = this.device;
    const { width, height } = atlas;
    this.present(target, width, height, () => {
      gl.bindFramebuffer(gl.READ_FRAMEBUFFER, atlas.framebuffer);
      gl.blitFramebuffer(0, 0, width, height, 0, 0, width, height, gl.COLOR_BUFFER_BIT, gl.NEAREST);
    });
  }

  // -- matrices ---------------------------------------------------------------------------------------------------

  /**
   * Draws `rows` rows of a texture's matrix. The texture may store the matrix as tiles: `height` rows of each tile are
   * drawn, from the tile's row `first` on. In each layer of the texture, the matrix begins at the column of texels
   * `firstColumn`. `range` has the values of the first and the last colour; null: estimated from the matrix.
   */
  matrix(
    target: HTMLCanvasElement,
    texture: WebGLTexture,
    view: View,
    shown: {
      rows: number;
      first: number;
      height: number;
      firstColumn?: number;
      range: readonly [number, number] | null;
      palette: Palette;
    },
    width: number,
    height: number,
  ): void {
    const { gl } = this.device;
    const { rows, first, firstColumn = 0, range, palette } = shown;
    const { width: texels, stored, panels } = shape(view);
    const tile = [shown.height, texels, view.tiles[1], first];
    const size = [rows, view.cols, width, height];
    const panel = [view.panel || texels, panels, view.stack, stored];
    if (!range) {
      gl.bindFramebuffer(gl.FRAMEBUFFER, this.reach!.framebuffer);
      gl.viewport(0, 0, 1, 1);
      this.use(`reach ${view.dtype}`, [texture], {
        u_tile: tile,
        u_size: size,
        u_panel: panel,
        u_first_column: firstColumn,
      });
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    }
    this.present(target, width, height, () => {
      this.use(`matrix ${view.dtype}`, [texture, this.reach!.texture], {
        u_tile: tile,
        u_size: size,
        u_panel: panel,
        u_first_column: firstColumn,
        u_auto: range === null,
        u_range: Float32Array.from(range ?? [-1, 1]),
        u_signed: palette.signed,
        u_palette: palette.colors,
        u_place: [0, 0, 0, 0],
      });
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    });
  }

  /**
   * Draws `rows` x `cols` values of a texture into a cell of the strip. `fold`: the number of columns into which the
   * values are rearranged in reading order; 0: they are not. If `measure`, first estimates the range of the values.
   */
  cell(
    size: readonly [number, number],
    cell: Cell,
    texture: WebGLTexture,
    view: View,
    [rows, cols]: readonly [number, number],
    fold: number,
    measure: boolean,
  ): void {
    const { gl } = this.device;
    this.strip = this.sized(this.strip, ...size);
    const { width: texels, height: tileRows, stored, panels } = shape(view);
    const tile = [tileRows, texels, view.tiles[1], 0];
    const panel = [view.panel || texels, panels, view.stack, stored];
    const across = [rows, cols, cell.width, cell.height];
    if (measure) {
      gl.bindFramebuffer(gl.FRAMEBUFFER, this.reach!.framebuffer);
      gl.viewport(1 + cell.number, 0, 1, 1);
      this.use(`reach ${view.dtype}`, [texture], { u_tile: tile, u_size: across, u_panel: panel, u_first_column: 0 });
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    }
    gl.bindFramebuffer(gl.FRAMEBUFFER, this.strip.framebuffer);
    gl.viewport(cell.x, cell.y, cell.width, cell.height);
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(cell.x, cell.y, cell.width, cell.height);
    this.clear();
    gl.disable(gl.SCISSOR_TEST);
    this.use(`matrix ${view.dtype}`, [texture, this.reach!.texture], {
      u_tile: tile,
      u_size: across,
      u_panel: panel,
      u_first_column: 0,
      u_auto: true,
      u_signed: true,
      u_place: [cell.x, cell.y, 1 + cell.number, fold],
    });
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }

  /** Shows the strip's image on a canvas. */
  showStrip(target: HTMLCanvasElement): void {
    if (this.strip) this.show(target, this.strip);
  }

  /**
   * Resizes the drawing canvas before the first picture. Each change of its width or height waits for the driver. Both
   * are therefore set in separate tasks: setting both in one task would block the page for longer.
   */
  async resizeAhead(width: number, height: number): Promise<void> {
    const { canvas } = this.device;
    if (canvas.width === width && canvas.height === height) return;
    const reader = Reader.of(this.device);
    await reader.passed();
    this.resize(width, canvas.height);
    await reader.passed();
    this.resize(width, height);
    await reader.passed();
  }

  private resize(width: number, height: number): void {
    const { canvas } = this.device;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  }

  /** Runs `draw` on an image of this size and puts the image on a canvas of the page. */
  present(target: HTMLCanvasElement, width: number, height: number, draw: () => void): void {
    const { gl, canvas } = this.device;
    this.resize(width, height);
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
