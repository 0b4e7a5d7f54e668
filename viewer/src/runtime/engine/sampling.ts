// Chooses a token from one row of logits. The device samples (entries `sample`, `sample_nucleus`) with the scalars that
// `Sampler.scalars` returns. If the device cannot decide, the page reads the row, and `Sampler.draw` samples from the
// row. The cases in tests/page/shared_cases.json check that Python computes the same scalars and samples.

import { must, PageError } from "../gl/errors";

export const NOT_FINITE = "The model's logits are not finite; its weights overflow this dtype.";
export const MAX_ALTERNATIVES = 8; // maximum alternatives that the device returns with a token
const MAX_TEMPERATURE = 1e30; // `nucleus_width` is proportional to the temperature and must fit a 32-bit float
const [MIN_PENALTY, MAX_PENALTY] = [1e-30, 1e30]; // any logit divided or multiplied by a penalty fits a 64-bit float
const MAX_BIAS = 3e38;
const COLDEST = 1e-30; // lower temperatures are greedy
const FARTHEST = 3e38; // value of the scalar `margin` that excludes no logit
const REACHED = 1 - 2 ** -22; // relaxes top-p and min-p, so that 32-bit floats keep a token exactly at the limit
const ON_HOST = 0xd1ce; // separates the page's random numbers from those of the device
const ON_DEVICE = 0x5eed; // `SITE` of the device's random numbers

/** Hashes four 32-bit numbers to four pseudo-random numbers, like `glsl/hash.glsl`. */
export function hash4(v: readonly number[]): [number, number, number, number] {
  let [x, y, z, w] = v.map((a) => Math.imul(a, 1664525) + 1013904223) as [number, number, number, number];
  for (const last of [false, true]) {
    x = (x + Math.imul(y, w)) | 0;
    y = (y + Math.imul(z, x)) | 0;
    z = (z + Math.imul(x, y)) | 0;
    w = (w + Math.imul(y, z)) | 0;
    if (!last) [x, y, z, w] = [x ^ (x >>> 16), y ^ (y >>> 16), z ^ (z >>> 16), w ^ (w >>> 16)];
  }
  return [x >>> 0, y >>> 0, z >>> 0, w >>> 0];
}

/** Returns the 32-bit seed of the random numbers. If `seed` has more than 32 bits, both of its words are combined. */
export function drawSeed(seed: number): number {
  let found = 0;
  for (let rest = seed; rest > 0; rest = Math.floor(rest / 2 ** 32)) {
    found = found ? (Math.imul(found, 0x9e3779b1) + (rest % 2 ** 32)) >>> 0 : rest % 2 ** 32;
  }
  return found;
}

/** Returns the exponentially distributed number that `glsl/sampling/race.frag` computes from 32 random bits. */
function exponential(bits: number): number {
  const u = Math.fround(Math.fround(Math.fround(bits) + 0.5) * 2 ** -32);
  if (u < Math.fround(1e-3)) return Math.fround(u * Math.fround(1 + Math.fround(u * 0.5)));
  return Math.fround(-Math.log(Math.fround(1 - Math.min(u, Math.fround(0.99999994)))));
}

/** True if a setting is a number. JavaScript would compare a string with numbers too. */
const isNumber = (value: unknown): value is number => typeof value === "number" && !Number.isNaN(value);

/** The settings with which tokens are chosen, checked by `samplingOptions`. */
export interface SamplingOptions {
  /** 0: always the most likely token. */
  readonly temperature: number;
  /** Keeps this many of the most likely tokens; null: all. */
  readonly topK: number | null;
  /** Keeps the smallest number of most likely tokens whose probabilities sum to at least this; null: all. */
  readonly topP: number | null;
  /** Keeps tokens whose probability, divided by that of the most likely token, is at least this; null: all. */
  readonly minP: number | null;
  /** Penalizes tokens already in the text (higher is stronger): divides positive logits, multiplies negative ones. */
  readonly repetitionPenalty: number | null;
  /** Values to add to the logits of these ids. */
  readonly logitBias: Readonly<Record<number, number>> | null;
  readonly seed: number;
}

/** Any subset of the options. */
export type SamplingRequest = { [Key in keyof SamplingOptions]?: SamplingOptions[Key] | undefined };

/**
 * Returns the options in `asked`, frozen and completed with defaults: temperature 1, a random seed, no tokens excluded
 * and no logits changed. Throws PageError if an option is invalid.
 */
export function samplingOptions(asked: SamplingRequest): SamplingOptions {
  const { temperature = 1, topK = null, topP = null, minP = null, repetitionPenalty = null, logitBias = null } = asked;
  const { seed = Math.floor(Math.random() * 2 ** 32) } = asked;
  const options = { temperature, topK, topP, minP, repetitionPenalty, logitBias, seed };
  const { repetitionPenalty: penalty } = options;
  if (!(isNumber(temperature) && temperature >= 0 && temperature <= MAX_TEMPERATURE)) {
    throw new PageError(`Temperature is ${temperature}; it must be a number from 0 (greedy) to ${MAX_TEMPERATURE}.`);
  }
  if (topK !== null && !(Number.isInteger(topK) && topK >= 1))
    throw new PageError(`Top-k is ${topK}; it must be 1 or more.`);
  if (topP !== null && !(isNumber(topP) && topP > 0 && topP <= 1))
    throw new PageError(`Top-p is ${topP}; it must be in (0, 1].`);
  if (minP !== null && !(isNumber(minP) && minP >= 0 && minP <= 1))
    throw new PageError(`Min-p is ${minP}; it must be in [0, 1].`);
  if (penalty !== null && !(isNumber(penalty) && penalty >= MIN_PENALTY && penalty <= MAX_PENALTY)) {
    throw new PageError(
      `Repetition penalty is ${penalty}; it must be from ${MIN_PENALTY} to ${MAX_PENALTY} (1: none).`,
    );
  }
  for (const [id, bias] of Object.entries(logitBias ?? {})) {
    if (!(/^\d+$/.test(id) && isNumber(bias) && (Math.abs(bias) <= MAX_BIAS || bias === -Infinity))) {
      throw new PageError(
        `Logit bias of ${id} is ${bias}; it must be a number up to ${MAX_BIAS}, or -Infinity to forbid the token.`,
      );
    }
  }
  if (!(Number.isSafeInteger(seed) && seed >= 0))
    throw new PageError(`Seed is ${seed}; it must be a non-negative integer.`);
  return Object.freeze(options);
}

/** Throws PageError for a logit bias of an id that is not in the vocabulary of `vocab` tokens. */
export function checkBias(logitBias: SamplingOptions["logitBias"], vocab: number): void {
  const id = Object.keys(logitBias ?? {}).find((each) => Number(each) >= vocab);
  if (id === undefined) return;
  throw new PageError(`Logit bias names id ${id}, but the vocabulary has only ${vocab} tokens.`);
}

export interface Candidate {
  id: number;
  /** The model's probability, over the whole vocabulary. */
  p: number;
  /** The probability after temperature, top-k, top-p and min-p; 0: excluded. */
  sampled?: number;
}

export interface Token {
  id: number;
  /**
   * The model's probability over the whole vocabulary. `p`, `sampled` and `top` (the most likely tokens) exist only if
   * alternatives were requested.
   */
  p?: number;
  /** The probability with which the token was sampled. */
  sampled?: number;
  top?: Candidate[];
  /** Number of tokens that follow this token and were read together with it. */
  more?: number;
}

/** A sampled token, and the sampler's probability of each id. */
export interface Draw {
  id: number;
  sampled: (id: number) => number;
}

/** Returns a draw in which the token has probability 1. */
export const certain = (id: number): Draw => ({ id, sampled: (other) => (other === id ? 1 : 0) });

type Logits = Float32Array | Float64Array;

/** The tokens that a constraint allows. */
export interface AllowedIds {
  readonly count: number;
  has(id: number): boolean;
}

/** Throws PageError if a logit is NaN or infinite, unless its token is `forbidden`. */
export function checkFinite(logits: Logits, forbidden: (id: number) => boolean = () => false): void {
  for (let id = 0; id < logits.length; id++) {
    if (!Number.isFinite(logits[id]) && !forbidden(id)) throw new PageError(NOT_FINITE);
  }
}

/** Returns the ids of the `count` greatest logits, greatest first. Equal logits are in the order of their ids. */
function order(logits: Logits, count: number): number[] {
  if (count < 64 && count < logits.length) {
    const best: number[] = [];
    for (let id = 0; id < logits.length; id++) {
      const x = logits[id]!;
      if (best.length === count && x <= logits[best[count - 1]!]!) continue;
      let at = best.length;
      while (at > 0 && x > logits[best[at - 1]!]!) at--;
      best.splice(at, 0, id);
      if (best.length > count) best.pop();
    }
    return best;
  }
  const ids = Array.from(logits.keys());
  return ids.sort((a, b) => logits[b]! - logits[a]! || a - b).slice(0, count);
}

export interface Alternatives {
  top: Candidate[];
  p: number;
  sampled?: number;
}

/**
 * Returns the `count` most likely tokens of the plain softmax and the probability of `chosen`; with `draw`, also the
 * sampler's probabilities. Throws PageError if a logit is not finite.
 */
export function alternatives(logits: Float32Array, count: number, chosen: number, draw?: Draw): Alternatives {
  checkFinite(logits);
  const best = order(logits, count);
  const peak = logits[best[0]!]!;
  let sum = 0;
  for (const x of logits) sum += Math.exp(x - peak);
  const p = (id: number) => Math.exp(logits[id]! - peak) / sum;
  const both = (id: number) => ({ p: p(id), ...(draw ? { sampled: draw.sampled(id) } : {}) });
  return { top: best.map((id) => ({ id, ...both(id) })), ...both(chosen) };
}

export class Sampler {
  readonly settings: SamplingOptions;

  constructor(settings: SamplingRequest) {
    this.settings = samplingOptions(settings);
  }

  get greedy(): boolean {
    return this.settings.temperature < COLDEST || this.settings.topK === 1;
  }

  /** True if a penalty or a bias changes logits before a token is chosen. The page then samples from the whole row. */
  get adjusts(): boolean {
    const { repetitionPenalty: penalty, logitBias } = this.settings;
    return (penalty !== null && penalty !== 1) || Object.keys(logitBias ?? {}).length > 0;
  }

  /**
   * Applies penalty, bias and constraint to the logits that follow the text `ids`. Returns `logits` itself if there is
   * neither a penalty, a bias nor a constraint. Throws PageError for a bias on an unknown id, if a logit is not finite,
   * or if no token is left.
   */
  adjusted(logits: Float32Array, ids: readonly number[], allowed: AllowedIds | null = null): Logits {
    if (!this.adjusts && !allowed) return logits;
    checkFinite(logits);
    const found = Float64Array.from(logits);
    if (allowed) found.forEach((_, id) => !allowed.has(id) && (found[id] = -Infinity));
    if (!this.adjusts) return found;
    const { repetitionPenalty, logitBias } = this.settings;
    const penalty = repetitionPenalty ?? 1;
    for (const id of new Set(ids)) found[id] = found[id]! > 0 ? found[id]! / penalty : found[id]! * penalty;
    checkBias(logitBias, found.length);
    for (const [id, bias] of Object.entries(logitBias ?? {})) found[Number(id)]! += bias;
    if (found.every((x) => x === -Infinity)) throw new PageError("Logit bias forbids all tokens; leave at least one.");
    return found;
  }

  /** The entry that samples a token; null if the device's argmax is already the token. */
  get entry(): "sample" | "sample_nucleus" | null {
    const { topK, topP } = this.settings;
    if (this.greedy) return null;
    return topK !== null || topP === null || topP === 1 ? "sample" : "sample_nucleus";
  }

  /** Returns the scalars with which `entry` samples token `step` of this seed from `vocab` logits. */
  scalars(step: number, vocab: number, allowed: AllowedIds | null = null): Record<string, number> {
    const { temperature, topK, topP, minP, seed } = this.settings;
    const p = topP ?? 1;
    const range = temperature * Math.log((2 * vocab) / Math.max(1 - p, 2 ** -24));
    return {
      draw_seed: drawSeed(seed) | 0,
      draw_step: step,
      inverse_temperature: this.greedy ? 1 : 1 / temperature,
      margin: minP ? Math.min(FARTHEST, (temperature * -Math.log(minP)) / REACHED) : FARTHEST,
      nucleus_width: this.greedy ? 1 : 2 ** Math.ceil(Math.log2(range)), // a power of two that is at least `range`
      top_k: this.greedy ? 1 : Math.min(topK ?? 0, allowed?.count ?? Infinity, 2 ** 31 - 1),
      top_p: p === 1 ? p : p * REACHED,
    };
  }

  /**
   * Samples token `step` of this seed from a row of logits. Throws PageError if a logit is not finite, unless the bias
   * or the constraint forbids its token.
   */
  draw(logits: Logits, step: number, allowed: AllowedIds | null = null): Draw {
    const { logitBias } = this.settings;
    checkFinite(logits, (id) => logitBias?.[id] === -Infinity || allowed?.has(id) === false);
    const best = order(logits, 1)[0]!;
    if (this.greedy) return certain(best);
    const { kept, count, weight, total, sampled } = this.weighed(logits, best);
    const [high, low] = hash4([drawSeed(this.settings.seed), step, ON_HOST, 0]);
    const draw = (((high >>> 5) * 2 ** 26 + (low >>> 6)) / 2 ** 53) * total;
    let id = kept ? kept.at(-1)! : count - 1;
    let sum = 0;
    for (let i = 0; i < count; i++) {
      if ((sum += weight(kept ? kept[i]! : i)) <= draw) continue;
      id = kept ? kept[i]! : i;
      break;
    }
    return { id, sampled };
  }

  /**
   * Samples like the device's entries, with their random numbers and roundings (`glsl/sampling/race.frag`). Throws
   * PageError as `draw` does. Must not be used for changed logits. Must not be used with top-k either, because the
   * device cannot always decide which tokens top-k keeps.
   */
  drawAsDevice(logits: Float32Array, step: number): Draw {
    checkFinite(logits);
    const best = order(logits, 1)[0]!;
    if (this.greedy) return certain(best);
    const { kept, count, sampled } = this.weighed(logits, best);
    const inverse = Math.fround(1 / this.settings.temperature);
    let [id, score, texel, bits] = [-1, -Infinity, -1, [0, 0, 0, 0]];
    for (let i = 0; i < count; i++) {
      const at = kept ? kept[i]! : i;
      if (at >> 2 !== texel) bits = hash4([drawSeed(this.settings.seed), step, ON_DEVICE, (texel = at >> 2)]);
      const scaled = Math.fround(Math.fround(logits[at]! - logits[best]!) * inverse);
      const its = Math.fround(scaled - Math.fround(Math.log(exponential(bits[at & 3]!))));
      if (its > score) [id, score] = [at, its];
    }
    return { id, sampled };
  }

  /** Returns the kept ids (ascending; null: all), their number, weights and sum of weights, and the probabilities. */
  private weighed(logits: Logits, best: number) {
    const { temperature } = this.settings;
    const peak = logits[best]! / temperature;
    const weight = (id: number) => Math.exp(logits[id]! / temperature - peak);
    const kept = this.candidates(logits, weight);
    if (kept) kept.sort((a, b) => a - b); // the desktop sums in the order of ids too, so both sample the same token
    const count = kept ? kept.length : logits.length;
    let total = 0;
    for (let i = 0; i < count; i++) total += weight(kept ? kept[i]! : i);
    const sampled = (id: number) => (!kept || kept.includes(id) ? weight(id) / total : 0);
    return { kept, count, weight, total, sampled };
  }

  /**
   * Returns the tokens that top-k, top-p and min-p keep; null: all. `p` returns the weight of a token; the weight of
   * the best token is 1.
   */
  private candidates(logits: Logits, p: (id: number) => number): number[] | null {
    const { minP } = this.settings;
    const kept = this.likeliest(logits, p);
    return minP ? (kept ?? Array.from(logits.keys())).filter((id) => p(id) >= minP) : kept;
  }

  /** Returns the tokens that top-k and top-p keep, best first; null: all. */
  private likeliest(logits: Logits, p: (id: number) => number): number[] | null {
    const { topK, topP } = this.settings;
    const best = topK === null ? null : order(logits, topK);
    if (topP === null || topP === 1) return best;
    let total = 0;
    if (best) for (const id of best) total += p(id);
    else for (let id = 0; id < logits.length; id++) total += p(id);
    // Sorting a whole vocabulary takes longer than running the model, so try to sort only the more likely tokens.
    for (let least = 1e-4; ; least = least < 1e-20 ? 0 : least * 1e-3) {
      const some = best ?? Array.from(logits.keys()).filter((id) => p(id) / total >= least);
      if (!best) some.sort((a, b) => logits[b]! - logits[a]! || a - b);
      let sum = 0;
      const end = some.findIndex((id) => (sum += p(id)) >= topP * total);
      if (end >= 0) return some.slice(0, end + 1);
      if (best || least === 0) return some;
    }
  }
}

/** A token that the device chose, read from the texture `token`. */
export interface Chosen {
  id: number;
  /** True if the device could not decide; the caller then samples from the row of logits. */
  undecided: boolean;
  /**
   * Returns the `count` most likely tokens and this token's probabilities. Must not be called if an entry other than
   * `sample` or `sample_nucleus` chose the token.
   */
  weighed: (count: number) => Alternatives;
}

/** Decodes the texture `token`. Throws PageError if the logits are not finite. */
export function chosen(texels: ArrayLike<number>, sampler: Sampler): Chosen {
  const [id, logit, broken, undecided] = Array.from({ length: 4 }, (_, i) => must(texels[i], "token")) as [
    number,
    number,
    number,
    number,
  ];
  if (broken) throw new PageError(NOT_FINITE);
  const weighed = (count: number): Alternatives => {
    const last = texels.length - 4;
    const [plain, kept, greatest] = [texels[last]!, texels[last + 1]!, texels[last + 2]!];
    const { inverse_temperature: inverse } = sampler.scalars(0, 1) as { inverse_temperature: number };
    const both = (x: number, isKept: boolean) => ({
      p: Math.exp(x - greatest) / plain,
      sampled: isKept ? Math.exp((x - greatest) * inverse) / kept : 0,
    });
    const top: Candidate[] = [];
    for (let at = 4; at < last && top.length < count && texels[at]! >= 0; at += 4) {
      top.push({ id: texels[at]!, ...both(texels[at + 1]!, texels[at + 2]! > 0) });
    }
    return { top, ...both(logit, true) };
  };
  return { id, undecided: undecided > 0, weighed };
}
