// Reads named activations of a text, from the blocks (layers) that run in this page and from those on a server.

import { Player } from "../gl/player";
import { must } from "../gl/errors";
import { Capture, type Values } from "./capture";
import type { Model } from "./model";
import { matrixOf, uploaded, type Uploaded } from "./uploaded";

export class Activations {
  private captured: Capture | null = null;

  constructor(private readonly model: Model) {}

  /** Returns the program that captures activations, created on first use. */
  get capture(): Capture {
    const { model } = this;
    this.captured ??= new Capture(
      model.manifest,
      new Player(model.device, model.programs.capture, model.options, model.player.shared(), model.drawFlops),
    );
    return this.captured;
  }

  /** The capturing program's player; null: not created yet. */
  get player(): Player | null {
    return this.captured?.player ?? null;
  }

  /**
   * Returns named activations of `ids`. The server sends the activations of remote blocks. If the split point is
   * movable, the page has all blocks and computes all activations itself.
   */
  async read(ids: readonly number[], names: readonly string[]): Promise<Map<string, Values>> {
    const { manifest, split: server, placement } = this.model;
    const { split, config } = manifest;
    if (!split || !server || placement.movable) return this.capture.run(ids, names);
    const ofHead = placement.headHere ? names.filter((name) => this.capture.ofHead.includes(name)) : [];
    const remoteNames = names.filter((name) => split.activations.has(name));
    const last = must(split.stream[config.n_layer], "the stream after the page's blocks"); // the server's input
    const own = names.filter((name) => !remoteNames.includes(name) && !ofHead.includes(name));
    const found = await this.capture.run(ids, [...new Set([...own, last])]);
    const states = found.get(last)!;
    if (remoteNames.length || ofHead.length) {
      const end = ofHead.length > 0 || remoteNames.includes("logits");
      const looked = await server.look(
        states.data,
        ids.length,
        remoteNames.filter((name) => name !== "logits"),
        end,
      );
      for (const [name, values] of looked) found.set(name, values);
      if (ofHead.length) {
        const ended = await this.capture.head(must(looked.get("hidden"), "hidden states").data, ofHead);
        for (const [name, values] of ended) found.set(name, values);
      }
    }
    return new Map(names.map((name) => [name, must(found.get(name), name)]));
  }

  /** Reads activations of `ids`, each into its own texture. The caller must close the players of the results. */
  async fetch(ids: readonly number[], names: readonly string[]): Promise<Map<string, Uploaded>> {
    const found = await this.read(ids, names);
    const { device, options, names: known } = this.model;
    const matrix = (name: string) => matrixOf(must(known.activations.get(name), name), must(found.get(name), name));
    return new Map(names.map((name) => [name, uploaded(device, options, name, matrix(name))]));
  }

  /** Deletes the capturing program's textures. `lost`: true if they were already lost with the graphics context. */
  close(lost: boolean): void {
    if (!lost) this.captured?.player.close();
    this.captured = null;
  }
}
