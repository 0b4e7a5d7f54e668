// Decides which blocks (layers) of a model run in this page and which run on a server.

import { signal, type Signal } from "@preact/signals-core";
import type { Model } from "./model";
import type { Split } from "./split";

export class Placement {
  private readonly chosen: Signal<number>;

  constructor(private readonly model: Model) {
    this.chosen = signal(model.manifest.config.n_layer);
  }

  /** True if `here` can be set: the page and a server both have all blocks. */
  get movable(): boolean {
    return this.model.manifest.split?.rest === null;
  }

  /** Number of the model's blocks, local and remote. */
  get blocks(): number {
    const { split, config } = this.model.manifest;
    return split ? split.stream.length - 1 : config.n_layer;
  }

  /** True if the server runs this block and the page has no weights for it. */
  isRemote(block: number): boolean {
    return block >= this.model.manifest.config.n_layer;
  }

  /**
   * Number of blocks that run in this page: those before the first block on the server, or all if no block runs on the
   * server. Reading `here` subscribes to its changes.
   */
  get here(): number {
    return this.movable && this.model.interventions.active ? this.model.manifest.config.n_layer : this.chosen.value;
  }

  /**
   * Moves the split point: the page runs the first `blocks` blocks from now on. A text that is being generated
   * continues with the new split point.
   */
  set here(blocks: number) {
    const { split, cache, manifest } = this.model;
    const { n_layer } = manifest.config;
    if (!this.movable || blocks === this.chosen.peek()) return;
    this.chosen.value = blocks;
    cache.front = [];
    if (blocks < n_layer) split!.aim(`${blocks < n_layer - 1 ? `${blocks}-` : ""}${n_layer - 1},head`);
    else split!.leave();
  }

  /** The server if it currently runs blocks, else null. */
  get server(): Split | null {
    return this.movable && this.here === this.model.manifest.config.n_layer ? null : this.model.split;
  }

  /** True if this page computes the logits of a model whose later blocks run on a server. */
  get headHere(): boolean {
    return this.model.manifest.split?.head === "page";
  }

  /** True if the server always samples the tokens, and the page never does. */
  get serverSamples(): boolean {
    return this.model.split !== null && !this.movable && !this.headHere;
  }
}
