// Draws the attention of the current text on the device. Two kinds of entries (recorded lists of passes) compute a
// layer's values for N tokens. `attention_LAYER_N` computes the scores and weights of N queries. `ahead_LAYER_N`
// computes scores that the causal mask hides: those of N keys with the queries before each key. Only the values of a
// single query or key are read back, to be shown as numbers.

import { plan, sizes } from "../../runtime/engine/chunks";
import { MASKED } from "../../runtime/engine/field";
import { unpack } from "../../runtime/engine/layout";
import type { Model } from "../../runtime/engine/model";
import type { Grid, Painter, Slab } from "./painter";
import { must } from "../../runtime/gl/errors";
import type { Player } from "../../runtime/gl/player";
import type { View } from "../../runtime/gl/program";
import type { Uploaded } from "../../runtime/engine/uploaded";

const EDGE = 1100; // maximum width and height of a grid in pixels
const SAMPLED = 6; // queries sampled to measure how sharp a head is
const ASKED = 32 << 20; // bytes of scores or weights per request to a server; twice as many are cached
const SPARE = 1.2; // while a text grows, its grid has space for this many times its tokens, to be redrawn less often

/** The values that a head's picture shows: weights after softmax, masked scores, or the raw scores of all pairs. */
export const KINDS = ["pattern", "scores", "raw"] as const;
export type Kind = (typeof KINDS)[number];

/** Stands for the mean of all heads of a layer where a head's index is expected. */
export const MEAN = -1;

type Entry = "attention" | "ahead";

export class Attention {
  private drawn = 0; // tokens that the grid shows
  private kind: Kind = "pattern";
  private current: Grid | null = null;
  private readonly known: number[];
  /** Scores or weights of remote layers, least recently used first; `remoteSlabsOf` identifies their kind and text. */
  private readonly remoteSlabs = new Map<number, Uploaded>();
  private remoteSlabsOf = "";
  private preparedFor: Player | null = null;

  constructor(
    private readonly model: Model,
    private readonly painter: Painter,
  ) {
    this.known = sizes(Object.keys(model.programs.generate.entries), "attention_0_");
  }

  async prepare(): Promise<void> {
    const { n_layer } = this.model.manifest.config;
    await this.painter.prepare();
    const names = Array.from({ length: n_layer }, (_, i) =>
      this.known.flatMap((n) => [`attention_${i}_${n}`, `ahead_${i}_${n}`]),
    ).flat();
    const { player } = this.model;
    await player.prepare(...names);
    this.preparedFor = player;
  }

  /** True if the entries can be played. An intervention replaces the player, which must then prepare the entries. */
  get ready(): boolean {
    return this.preparedFor === this.model.player;
  }

  forget(): void {
    this.drawn = 0;
  }

  /**
   * Fetches the scores or weights of the layers on the server, or only of layer `of`, unless they are cached for these
   * tokens. Calls `came` with each batch of layers when the batch has arrived.
   */
  async fetch(
    ids: readonly number[],
    kind: Kind,
    of: number | null = null,
    came: (layers: number[]) => void = () => {},
  ): Promise<void> {
    const { split, config } = this.model.manifest;
    const part = kind === "pattern" ? kind : "scores";
    const text = `${part} ${ids.join()}`;
    if (this.remoteSlabsOf !== text) this.drop();
    this.remoteSlabsOf = text;
    const named = [...(split?.activations ?? [])].filter(([, activation]) => activation.kind === part);
    const names = new Map(named.map(([name]) => [this.model.names.block(name), name]));
    const wanted = of === null ? [...names.keys()] : [of];
    const bytes = 4 * config.n_head * ids.length ** 2; // of a layer
    const most = Math.max(1, Math.floor(ASKED / bytes));
    for (let at = 0; at < wanted.length; at += most) {
      const layers = wanted.slice(at, at + most);
      const missing = layers.filter((layer) => !this.remoteSlabs.has(layer));
      const found = missing.length
        ? await this.model.activations.fetch(
            ids,
            missing.map((layer) => names.get(layer)!),
          )
        : new Map<string, Uploaded>();
      for (const layer of layers) {
        const slab = this.remoteSlabs.get(layer) ?? found.get(names.get(layer)!)!;
        this.remoteSlabs.delete(layer); // re-inserted at the end, as the most recently used
        this.remoteSlabs.set(layer, slab);
      }
      came(layers);
      for (const layer of [...this.remoteSlabs.keys()].slice(0, Math.max(0, this.remoteSlabs.size - 2 * most)))
        this.drop(layer);
    }
  }

  /** Releases the fetched values of `layer`, or of all layers. */
  drop(layer?: number): void {
    for (const [each, { player }] of this.remoteSlabs) {
      if (layer !== undefined && each !== layer) continue;
      player.close();
      this.remoteSlabs.delete(each);
    }
    if (!this.remoteSlabs.size) this.remoteSlabsOf = "";
  }

  /** Draws the remote layers, as they arrive, into the grid that `drawGrid` has drawn for these tokens. */
  async drawTheirs(target: HTMLCanvasElement, ids: readonly number[], kind: Kind): Promise<void> {
    if (!this.model.placement.isRemote(this.model.placement.blocks - 1)) return;
    await this.fetch(ids, kind, null, (layers) => {
      if (!this.current) return;
      const { current } = this;
      this.painter.grid(current, this.model.placement.blocks, false);
      for (const layer of layers)
        this.each(layer, 0, ids.length, kind, (slab) => this.painter.gridRows(current, layer, slab));
      this.painter.showGrid(target);
    });
  }

  private view(entry: Entry, layer: number, size: number, kind: Kind): View {
    const part = entry === "ahead" ? "ahead" : kind === "raw" ? "scores" : kind;
    const outputs = this.model.programs.generate.entries[`${entry}_${layer}_${size}`]?.outputs;
    const { activations } = this.model.manifest;
    const name = Object.keys(outputs ?? {}).find((name) => (activations.get(name)?.kind ?? "ahead") === part);
    return must(name === undefined ? undefined : outputs?.[name], `${part} of layer ${layer}`);
  }

  /**
   * Plays the entries for tokens `from` to `total - 1` in chunks, and calls `use` with the values of each chunk. For a
   * remote layer, calls `use` once with the fetched values of all tokens, if they were fetched.
   */
  private each(layer: number, from: number, total: number, kind: Kind, use: (slab: Slab) => void): void {
    const { player, manifest } = this.model;
    const scores = kind !== "pattern";
    if (this.model.placement.isRemote(layer)) {
      const slab = this.remoteSlabs.get(layer);
      if (slab)
        use({
          texture: slab.player.texture(slab.view.texture),
          view: slab.view,
          start: 0,
          valid: total,
          scores,
          transposed: false,
        });
      return;
    }
    for (const { start, valid, size } of plan(total, manifest.config.n_positions, this.known, manifest.tuning, from)) {
      player.set("pos", start);
      for (const entry of kind === "raw" ? (["attention", "ahead"] as const) : (["attention"] as const)) {
        player.play(`${entry}_${layer}_${size}`);
        const view = this.view(entry, layer, size, kind);
        use({ texture: player.texture(view.texture), view, start, valid, scores, transposed: entry === "ahead" });
      }
    }
  }

  /**
   * Draws the grid of all layers and heads for `total` tokens. Rows that the grid already shows are not drawn again.
   * While the text is `growing`, the grid has space for more tokens, and the layers on the server are omitted.
   */
  drawGrid(target: HTMLCanvasElement, total: number, kind: Kind, growing: boolean): Grid {
    const { n_head, n_positions } = this.model.manifest.config;
    const { blocks: n_layer } = this.model.placement;
    let capacity = total;
    if (growing) {
      const roomy = this.current && this.current.capacity >= total && this.current.capacity <= 2 * SPARE * total;
      capacity = roomy ? this.current!.capacity : Math.min(n_positions, 8 * Math.ceil((SPARE * total) / 8));
    }
    const room = Math.floor(EDGE / Math.max(n_layer, n_head)) - 4;
    const cell = Math.max(24, Math.min(room, 160));
    if (this.current?.capacity !== capacity || total < this.drawn || kind !== this.kind) this.drawn = 0;
    const grid = (this.current = { cell, pitch: cell + 4, capacity, heads: n_head });
    this.kind = kind;
    this.painter.grid(grid, n_layer, this.drawn === 0);
    // the values of remote layers are fetched when the text is complete
    const played = growing ? Math.min(n_layer, this.model.placement.here) : n_layer;
    for (let layer = 0; layer < played; layer++) {
      this.each(layer, this.drawn, total, kind, (slab) => this.painter.gridRows(grid, layer, slab));
    }
    this.drawn = total;
    this.painter.showGrid(target);
    return grid;
  }

  /** Draws one head, or with `MEAN` the mean of the layer's heads, one pixel per pair of tokens. */
  drawHead(target: HTMLCanvasElement, layer: number, head: number, total: number, kind: Kind): void {
    const { n_head } = this.model.manifest.config;
    this.painter.present(target, total, total, () => {
      this.each(layer, 0, total, kind, (slab) => this.painter.headRows(total, n_head, head === MEAN ? -2 : head, slab));
    });
  }

  /** Returns, per head, the values of query `t` with keys 0 to `t`; masked scores are -Infinity. */
  row(layer: number, t: number, kind: Kind): Promise<Float32Array[]> {
    return this.read("attention", layer, t, kind);
  }

  /** Returns, per head, the raw scores of queries 0 to `s` with key `s`. The causal mask hides all except the last. */
  ahead(layer: number, s: number): Promise<Float32Array[]> {
    return this.read("ahead", layer, s, "raw");
  }

  /**
   * Returns `[layer, head, query]` of the sharpest head and its sharpest sampled query. The sharpness of a query is its
   * greatest weight, not counting the first token, the previous token and the token itself. The sharpness of a head is
   * the mean over its sampled queries.
   */
  async sharpest(total: number): Promise<[number, number, number]> {
    const { n_layer, n_head } = this.model.manifest.config;
    const rows = Array.from({ length: SAMPLED }, (_, i) => Math.floor((total - 1) * (0.5 + (0.5 * i) / (SAMPLED - 1))));
    let best: [number, number, number] = [0, 0, total - 1];
    let most = 0;
    for (let layer = 0; layer < n_layer; layer++) {
      const means = new Float64Array(n_head);
      const hardest = Array.from({ length: n_head }, () => ({ t: total - 1, weight: 0 }));
      for (const t of rows) {
        (await this.row(layer, t, "pattern")).forEach((weights, h) => {
          const weight = Math.max(0, ...weights.slice(1, Math.max(1, t - 1)));
          means[h]! += weight;
          if (weight > hardest[h]!.weight) hardest[h] = { t, weight };
        });
      }
      means.forEach((mean, h) => {
        if (mean > most) [most, best] = [mean, [layer, h, hardest[h]!.t]];
      });
    }
    return best;
  }

  private async read(entry: Entry, layer: number, t: number, kind: Kind): Promise<Float32Array[]> {
    const { player, manifest } = this.model;
    if (this.model.placement.isRemote(layer)) {
      const slab = must(this.remoteSlabs.get(layer), `layer ${layer} from the server`);
      const { n_head: heads } = manifest.config;
      const from = (h: number) => (t * heads + h) * slab.view.cols;
      return Array.from({ length: heads }, (_, h) => slab.values.slice(from(h), from(h) + t + 1));
    }
    player.set("pos", t);
    player.play(`${entry}_${layer}_1`);
    const view = this.view(entry, layer, 1, kind);
    const matrix = unpack(view, await player.read(view.texture));
    const { n_head } = manifest.config;
    return Array.from({ length: n_head }, (_, h) =>
      matrix.slice(h * view.cols, h * view.cols + t + 1).map((value) => (value <= MASKED ? -Infinity : value)),
    );
  }
}
