// Every position's logits and every named intermediate, in natural shapes without padding.

import type { Player } from "../gl/player";
import { plan, sizes, writeIds, type Chunk } from "./chunks";
import { unpack } from "./layout";
import type { Manifest } from "./manifest";
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

  /** Logits `[T, vocab]` and intermediates: `[T, width]`, q, k, v `[heads, T, d]`, scores and patterns `[heads, T, T]`. */
  async run(ids: readonly number[], names: readonly string[]): Promise<Map<string, Values>> {
    const unknown = names.find((name) => !(name in this.manifest.activations));
    if (unknown) throw new PageError(`${unknown} is no intermediate; they run from embed, h.0.ln_1 to logits.`);
    const found = new Map(names.map((name) => [name, this.empty(name, ids.length)] as const));
    for (const chunk of plan(ids.length, this.manifest.config.n_positions, this.known)) {
      const entry = `logits_${chunk.size}`;
      await this.player.prepare(entry);
      writeIds(this.player, ids, chunk);
      this.player.set("pos", chunk.start);
      this.player.play(entry);
      const outputs = must(this.player.program.entries[entry], `entry ${entry}`).outputs;
      const reads = names.map((name) => this.player.read(must(outputs[name], `output ${name}`).texture));
      for (const [i, texels] of (await Promise.all(reads)).entries()) {
        const name = names[i]!;
        this.place(name, unpack(outputs[name]!, texels), outputs[name]!.cols, chunk, found.get(name)!);
      }
    }
    return found;
  }

  private empty(name: string, total: number): Values {
    const { n_head, d_head } = this.manifest.config;
    const kind = this.manifest.activations[name];
    const entry = Object.values(this.player.program.entries)[0]!;
    const cols = must(entry.outputs[name], `output ${name}`).cols;
    const shape =
      kind === "cache"
        ? [n_head, total, d_head]
        : kind === "scores" || kind === "pattern"
          ? [n_head, total, total]
          : [total, kind === "heads" ? n_head * d_head : cols];
    return { shape, data: new Float32Array(shape.reduce((a, b) => a * b, 1)) };
  }

  /** Puts a chunk's matrix where it belongs; see `glgpt/capture.py`. */
  private place(name: string, matrix: Float32Array, cols: number, chunk: Chunk, to: Values): void {
    const { n_head, d_head } = this.manifest.config;
    const kind = this.manifest.activations[name];
    const { data, shape } = to;
    const total = shape.at(-2)!;
    const width = shape.at(-1)!;
    const padded = cols / n_head; // columns of a head in the matrix, for those that lie head by head
    for (let t = 0; t < chunk.valid; t++) {
      const at = chunk.start + t;
      if (kind === "rows") {
        data.set(matrix.subarray(t * cols, t * cols + width), at * width);
        continue;
      }
      for (let h = 0; h < n_head; h++) {
        if (kind === "heads") {
          data.set(matrix.subarray(t * cols + h * padded, t * cols + h * padded + d_head), at * width + h * d_head);
        } else if (kind === "cache") {
          const from = at * cols + h * padded;
          data.set(matrix.subarray(from, from + d_head), (h * total + at) * width);
        } else {
          const from = (t * n_head + h) * cols;
          const row = (h * total + at) * width;
          data.set(matrix.subarray(from, from + width), row);
          if (kind === "scores") data.fill(-Infinity, row + at + 1, row + width);
        }
      }
    }
  }
}
