// Orders the compilation of a model's shaders, which takes most of the time to the first token. In most cases, loading
// compiles only the shaders of `decode`, an entry (a named sequence of passes) that can compute any token. The other
// shaders follow in the order of their first use.

import type { Model } from "./model";

/**
 * A prompt waits for the shaders that compute several tokens at once if it has more tokens, or needs more
 * floating-point operations, than these limits.
 */
const MAX = { software: { tokens: 64, flops: 16e9 }, gpu: { tokens: 256, flops: 64e9 } };

/** The entries that sample on the device, the most frequent first. */
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

  /** Sizes (numbers of tokens) of the chunks whose shaders are compiled while the model loads, greatest first. */
  get firstSizes(): number[] {
    const { recorded } = this.model;
    return this.gradual ? [1] : this.model.split ? recorded.slice(-2) : recorded;
  }

  /**
   * Waits for the shaders that compute chunks of several tokens if a prompt of `tokens` tokens exceeds `MAX`. Nothing
   * else may use the model until this resolves.
   */
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

  /** True if loading compiles neither the shaders of chunks of several tokens nor those that sample. */
  private get gradual(): boolean {
    const { weights, split, complete } = this.model;
    return !split && !complete && (weights === null || weights.gradual === true);
  }
}
