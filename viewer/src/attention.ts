// Attention of the current text, from the entries `attention_LAYER_N`: drawn on the device; single rows are read to be named.

import { plan, sizes } from "./chunks";
import { unpack } from "./layout";
import type { Model } from "./model";
import type { Grid, Painter } from "./gl/painter";
import { must, type View } from "./program";

const EDGE = 1100; // pixels that a grid may be wide or high

export type Kind = "pattern" | "scores";

export class Attention {
  private drawn = 0; // tokens that the grid shows
  private grid: Grid | null = null;
  private readonly known: number[];

  constructor(
    private readonly model: Model,
    private readonly painter: Painter,
  ) {
    this.known = sizes(Object.keys(model.programs.generate.entries), "attention_0_");
  }

  async prepare(): Promise<void> {
    const { n_layer } = this.model.manifest.config;
    await this.painter.prepare();
    const names = Array.from({ length: n_layer }, (_, i) => this.known.map((n) => `attention_${i}_${n}`)).flat();
    await this.model.player.prepare(...names);
  }

  forget(): void {
    this.drawn = 0;
  }

  private view(layer: number, size: number, kind: Kind): View {
    const entry = this.model.programs.generate.entries[`attention_${layer}_${size}`];
    return must(entry?.outputs[`h.${layer}.attn.${kind}`], `${kind} of layer ${layer}`);
  }

  /** Plays chunk by chunk over tokens from..total-1 of what the caches hold. */
  private each(
    layer: number,
    from: number,
    total: number,
    kind: Kind,
    use: (t: WebGLTexture, v: View, start: number, valid: number) => void,
  ): void {
    const { player, manifest } = this.model;
    for (const chunk of plan(total, manifest.config.n_positions, this.known, from)) {
      player.set("pos", chunk.start);
      player.play(`attention_${layer}_${chunk.size}`);
      const view = this.view(layer, chunk.size, kind);
      use(player.texture(view.texture), view, chunk.start, chunk.valid);
    }
  }

  /** Brings the grid of all layers and heads up to `total` tokens, drawing only the new rows. */
  drawGrid(target: HTMLCanvasElement, total: number, growing: boolean): Grid {
    const { n_layer, n_head, n_positions } = this.model.manifest.config;
    let capacity = total;
    if (growing) {
      capacity = 16; // doubled when it is full, so that a token adds a line and moves nothing
      while (capacity < total) capacity *= 2;
      capacity = Math.min(capacity, n_positions);
    }
    const room = Math.floor(EDGE / Math.max(n_layer, n_head)) - 4;
    const cell = Math.max(24, Math.min(room, 160));
    if (!this.grid || this.grid.capacity !== capacity || total < this.drawn) this.drawn = 0;
    this.grid = { cell, pitch: cell + 4, capacity, heads: n_head };
    this.painter.grid(this.grid, n_layer, this.drawn === 0);
    const grid = this.grid;
    for (let layer = 0; layer < n_layer; layer++) {
      this.each(layer, this.drawn, total, "pattern", (texture, view, start, valid) =>
        this.painter.gridRows(grid, layer, texture, view, start, valid),
      );
    }
    this.drawn = total;
    this.painter.showGrid(target);
    return grid;
  }

  drawHead(target: HTMLCanvasElement, layer: number, head: number, total: number, kind: Kind): void {
    const { n_head } = this.model.manifest.config;
    const size = total * Math.max(1, Math.floor(560 / total));
    this.painter.present(target, size, size, () => {
      this.each(layer, 0, total, kind, (texture, view, start, valid) => {
        this.model.device.gl.bindFramebuffer(this.model.device.gl.FRAMEBUFFER, null);
        this.painter.headRows(size, total, n_head, head, texture, view, start, valid, kind === "scores" ? 8 : 0);
      });
    });
  }

  /** What token `t` gives to tokens 0..t: one row of every head, `[heads][t + 1]`. */
  async row(layer: number, t: number, kind: Kind): Promise<Float32Array[]> {
    const { player, manifest } = this.model;
    player.set("pos", t);
    player.play(`attention_${layer}_1`);
    const view = this.view(layer, 1, kind);
    const matrix = unpack(view, await player.read(view.texture));
    const { n_head } = manifest.config;
    return Array.from({ length: n_head }, (_, h) => matrix.slice(h * view.cols, h * view.cols + t + 1));
  }
}
