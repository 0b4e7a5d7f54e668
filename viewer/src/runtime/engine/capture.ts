// Computes a text and returns the logits of every position and other named activations, in shapes without padding.

import type { Player } from "../gl/player";
import { plan, sizes, writeIds, type Chunk } from "./chunks";
import { MASKED } from "./field";
import { packRow, unpack } from "./layout";
import type { Manifest } from "./manifest";
import type { View } from "../gl/program";
import { must, PageError } from "../gl/errors";

export interface Values {
  shape: number[];
  data: Float32Array;
}

export class Capture {
  private readonly known: number[];

  constructor(
    private readonly manifest: Manifest,
    readonly player: Player,
  ) {
    this.known = sizes(Object.keys(player.program.entries), "logits_");
  }

  /**
   * Returns named activations. Their shapes, for T tokens and heads of width d: logits `[T, vocab]`, caches `[heads, T,
   * d]`, scores and patterns `[heads, T, T]`, others `[T, width]`.
   */
  async run(ids: readonly number[], names: readonly string[]): Promise<Map<string, Values>> {
    const unknown = names.find((name) => !this.manifest.activations.has(name));
    if (unknown) throw new PageError(`This model has no activation ${unknown}.`);
    const found = new Map(names.map((name) => [name, this.empty(name, ids.length)] as const));
    const { tuning, config } = this.manifest;
    const costs = { ...tuning, one_token: tuning.one_captured };
    for (const chunk of plan(ids.length, config.n_positions, this.known, costs)) {
      const entry = `logits_${chunk.size}`;
      await this.player.prepare(entry);
      const outputs = must(this.player.program.entries[entry], `entry ${entry}`).outputs;
      writeIds(this.player, ids, chunk);
      this.player.set("pos", chunk.start);
      this.player.play(entry);
      const reads = names.map((name) => this.player.read(must(outputs[name], `output ${name}`).texture));
      for (const [i, texels] of (await Promise.all(reads)).entries()) {
        const name = names[i]!;
        this.place(name, unpack(outputs[name]!, texels), outputs[name]!.cols, chunk, found.get(name)!);
      }
    }
    return found;
  }

  /**
   * Returns named activations of the head (the final norm and the logits). `states`: hidden states of shape `[T,
   * n_embd]`. The program must have the entry `head`.
   */
  async head(states: Float32Array, names: readonly string[]): Promise<Map<string, Values>> {
    const { program } = this.player;
    const { n_embd } = this.manifest.config;
    const total = states.length / n_embd;
    const outputs = must(program.entries["head"], "entry head").outputs;
    const view = must(program.views["hidden.1"], "view hidden.1");
    const found = new Map(names.map((name) => [name, this.empty(name, total)] as const));
    await this.player.prepare("head");
    for (let t = 0; t < total; t++) {
      writeState(this.player, view, states.subarray(t * n_embd, (t + 1) * n_embd));
      this.player.play("head");
      const reads = names.map((name) => this.player.read(must(outputs[name], `output ${name}`).texture));
      for (const [i, texels] of (await Promise.all(reads)).entries()) {
        const name = names[i]!;
        this.place(
          name,
          unpack(outputs[name]!, texels),
          outputs[name]!.cols,
          { start: t, valid: 1, size: 1 },
          found.get(name)!,
        );
      }
    }
    return found;
  }

  /** Names of the activations that `head` can return. */
  get ofHead(): string[] {
    return Object.keys(this.player.program.entries["head"]?.outputs ?? {});
  }

  private empty(name: string, total: number): Values {
    const { kind, heads, width } = this.manifest.activations.get(name)!;
    const shape =
      kind === "cache"
        ? [heads, total, width]
        : kind === "scores" || kind === "pattern"
          ? [heads, total, total]
          : [total, kind === "heads" ? heads * width : width];
    return { shape, data: new Float32Array(shape.reduce((a, b) => a * b, 1)) };
  }

  /** Copies the values of a chunk, without padding, to the positions of the chunk in `to`. */
  private place(name: string, matrix: Float32Array, cols: number, chunk: Chunk, to: Values): void {
    const { kind, heads, width } = this.manifest.activations.get(name)!;
    const { data, shape } = to;
    const total = shape.at(-2)!;
    const across = shape.at(-1)!;
    const padded = cols / heads; // columns of a head in the matrix, if its columns are grouped by head
    for (let t = 0; t < chunk.valid; t++) {
      const at = chunk.start + t;
      if (kind === "rows") {
        data.set(matrix.subarray(t * cols, t * cols + across), at * across);
        continue;
      }
      for (let h = 0; h < heads; h++) {
        if (kind === "heads") {
          data.set(matrix.subarray(t * cols + h * padded, t * cols + h * padded + width), at * across + h * width);
        } else if (kind === "cache") {
          const from = at * cols + h * padded;
          data.set(matrix.subarray(from, from + width), (h * total + at) * width);
        } else {
          const from = (t * heads + h) * cols;
          const row = (h * total + at) * across;
          data.set(matrix.subarray(from, from + across), row);
          if (kind !== "scores") continue;
          for (let s = 0; s < across; s++) if (s > at || data[row + s]! <= MASKED) data[row + s] = -Infinity;
        }
      }
    }
  }
}

/** Uploads one hidden state. */
export function writeState(player: Player, view: View, state: Float32Array): void {
  packRow(view, state).forEach((texels, layer) =>
    player.write(view.texture, layer, 0, 1, new Uint8Array(texels.buffer)),
  );
}
