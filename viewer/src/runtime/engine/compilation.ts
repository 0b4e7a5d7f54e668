// The order in which a model's shaders are compiled, which takes most of the time to the first token: loading compiles
// those of `decode`, which can compute any token. The others follow in the order of their first use.

import type { Model } from "./model";

/** A prompt of more tokens than this, or of more operations, waits for the shaders of chunks. */
const MAX = { software: { tokens: 64, flops: 16e9 }, gpu: { tokens: 256, flops: 64e9 } };

/** The entries that sample on the device, the most usual first. */
const SAMPLING = ["sample_nucleus", "sample"];

export class Compilation {
  constructor(private readonly model: Model) {}

  /** Names of the entries that are compiled before the first token. */
  get first(): string[] {
    const { placement, cache } = this.model;
    const all = this.gradual ? [] : this.sampling;
    const prefills = cache.known.filter((size) => size > 1).map((size) => `prefill_${size}`);
    return ["prepare", "decode", ...(placement.headHere ? ["head"] : []), ...all, ...prefills];
  }

  /** Names of the entries that are compiled later, in this order. */
  get later(): string[] {
    const ascending = [...this.model.recorded].reverse().filter((size) => size > 1);
    return [...this.sampling, ...ascending.map((size) => `prefill_${size}`)];
  }

  /** Chunk sizes that loading compiles, greatest first. */
  get firstSizes(): number[] {
    const { recorded } = this.model;
    return this.gradual ? [1] : this.model.split ? recorded.slice(-2) : recorded;
  }

  /** Resolves when `tokens` tokens can be read in a reasonable time. Nothing else may use the model until then. */
  async forTokens(tokens: number): Promise<void> {
    const { model } = this;
    const { cache, programs, recorded } = model;
    if (cache.known.length > 1 || recorded.length === 1) return;
    const flops = programs.generate.entries["decode"]!.passes.reduce((sum, pass) => sum + pass.flops, 0);
    const sizes = recorded.slice(-2);
    const entry = `prefill_${sizes[0]}`;
    const most = MAX[model.device.software ? "software" : "gpu"];
    if (tokens > Math.min(most.tokens, most.flops / flops)) {
      for (const { player } of model.players) await player.prepare(entry);
    }
    if (model.players.every(({ player }) => player.isPrepared(entry))) cache.known = sizes;
  }

  private get sampling(): string[] {
    return this.model.placement.serverSamples ? [] : SAMPLING;
  }

  /** False if loading compiles all shaders. */
  private get gradual(): boolean {
    const { weights, split, complete } = this.model;
    return !split && !complete && (weights === null || weights.gradual === true);
  }
}
