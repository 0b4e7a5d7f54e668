// Choosing a token from one row of logits: the settings, what the device is told of them, and their definition. The
// device draws (entries `sample`, `sample_nucleus`); where it cannot decide, `Sampler.draw` does, from the row. The cases in
// tests/page/shared_cases.json hold that Python says and draws the same.

import { must, PageError } from "../gl/errors";

export const NOT_FINITE = "The model's logits are not finite; its weights overflow this dtype.";
export const MOST_ALTERNATIVES = 8; // that come with a drawn token
const MAX_TEMPERATURE = 1e30; // times the range of a nucleus it fits a 32-bit float
const [MIN_PENALTY, MAX_PENALTY] = [1e-30, 1e30]; // any logit, divided or multiplied, fits a number
const MAX_BIAS = 3e38;
const COLDEST = 1e-30; // the least temperature that makes a difference in 32-bit floats
const FARTHEST = 3e38; // a margin below which no logit is
const REACHED = 1 - 2 ** -22; // of top-p and min-p: what reaches it exactly must do so in 32-bit floats too
const ON_HOST = 0xd1ce; // tells the host's random numbers from the device's

/** Four pseudo-random 32-bit numbers of four, as `glsl/hash.glsl` makes them. */
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

/** The 32 bits of a seed that a device is given; both words of a larger one count. */
export function drawSeed(seed: number): number {
  let found = 0;
  for (let rest = seed; rest > 0; rest = Math.floor(rest / 2 ** 32)) {
    found = found ? (Math.imul(found, 0x9e3779b1) + (rest % 2 ** 32)) >>> 0 : rest % 2 ** 32;
  }
  return found;
}

export interface Settings {
  temperature: number;
  topK: number | null;
  topP: number | null;
  /** Keeps tokens at least so many times as likely as the likeliest. */
  minP?: number | null;
  /** Above 1, makes tokens that the text has less likely: divides their logits above zero, multiplies those below. */
  repetitionPenalty?: number | null;
  /** Is added to the logits of these ids. */
  logitBias?: Readonly<Record<number, number>> | null;
  seed: number;
}

export interface Candidate {
  id: number;
  /** Probability among the whole vocabulary. */
  p: number;
  /** Probability with which the sampler drew it, after temperature, top-k and top-p; 0: cut off. */
  sampled?: number;
}

/** A token that a sampler drew, and the probability with which it drew each. */
export interface Draw {
  id: number;
  sampled: (id: number) => number;
}

/** What a draw is that leaves no choice. */
export const certain = (id: number): Draw => ({ id, sampled: (other) => (other === id ? 1 : 0) });

type Logits = Float32Array | Float64Array;

/** Throws where a logit is NaN or infinite, unless a bias of -Infinity made it so. */
export function checkFinite(logits: Logits, biases?: Settings["logitBias"]): void {
  for (let id = 0; id < logits.length; id++) {
    if (!Number.isFinite(logits[id]) && biases?.[id] !== -Infinity) throw new PageError(NOT_FINITE);
  }
}

/** The order of tokens by logit, best first; of equals the first wins. `count` limits it. */
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
 * The likeliest `count` tokens of the plain softmax, and the probability of `chosen`; of a draw, what it drew from too.
 * Throws where a logit is not finite.
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

/** True if a setting is a number: in JavaScript, text compares with numbers too. */
const isNumber = (value: unknown): value is number => typeof value === "number" && !Number.isNaN(value);

export class Sampler {
  constructor(readonly settings: Settings) {
    const { temperature, topK, topP, minP = null, seed } = settings;
    if (!(isNumber(temperature) && temperature >= 0 && temperature <= MAX_TEMPERATURE)) {
      throw new PageError(`Temperature is ${temperature}; it must be a number from 0 (greedy) to ${MAX_TEMPERATURE}.`);
    }
    if (topK !== null && !(Number.isInteger(topK) && topK >= 1))
      throw new PageError(`Top-k is ${topK}; it must be 1 or more.`);
    if (topP !== null && !(isNumber(topP) && topP > 0 && topP <= 1)) throw new PageError(`Top-p is ${topP}; it must be in (0, 1].`);
    if (minP !== null && !(isNumber(minP) && minP >= 0 && minP <= 1)) throw new PageError(`Min-p is ${minP}; it must be in [0, 1].`);
    const { repetitionPenalty: penalty, logitBias } = settings;
    if (penalty != null && !(isNumber(penalty) && penalty >= MIN_PENALTY && penalty <= MAX_PENALTY)) {
      throw new PageError(`Repetition penalty is ${penalty}; it must be from ${MIN_PENALTY} to ${MAX_PENALTY} (1: none).`);
    }
    for (const [id, bias] of Object.entries(logitBias ?? {})) {
      if (!(/^\d+$/.test(id) && isNumber(bias) && (Math.abs(bias) <= MAX_BIAS || bias === -Infinity))) {
        throw new PageError(`Logit bias of ${id} is ${bias}; it must be a number up to ${MAX_BIAS}, or -Infinity to forbid the token.`);
      }
    }
    if (!(Number.isSafeInteger(seed) && seed >= 0))
      throw new PageError(`Seed is ${seed}; it must be a whole number from 0.`);
  }

  get greedy(): boolean {
    return this.settings.temperature < COLDEST || this.settings.topK === 1;
  }

  /** Whether logits are changed before a token is chosen, which the page then does itself, from the whole row. */
  get adjusts(): boolean {
    const { repetitionPenalty: penalty, logitBias } = this.settings;
    return (penalty != null && penalty !== 1) || Object.keys(logitBias ?? {}).length > 0;
  }

  /** Logits behind the text `ids`, after penalty and bias. Throws for an id that has none. */
  adjusted(logits: Float32Array, ids: readonly number[]): Logits {
    if (!this.adjusts) return logits;
    checkFinite(logits);
    const found = Float64Array.from(logits);
    const { repetitionPenalty, logitBias } = this.settings;
    const penalty = repetitionPenalty ?? 1;
    for (const id of new Set(ids)) found[id] = found[id]! > 0 ? found[id]! / penalty : found[id]! * penalty;
    for (const [id, bias] of Object.entries(logitBias ?? {})) {
      if (Number(id) >= found.length) throw new PageError(`Logit bias names id ${id}, and the vocabulary has ${found.length}.`);
      found[Number(id)]! += bias;
    }
    if (found.every((x) => x === -Infinity)) throw new PageError("Logit bias forbids all tokens; leave at least one.");
    return found;
  }

  /** The entry that draws a token; null where the best one is there already. */
  get entry(): "sample" | "sample_nucleus" | null {
    const { topK, topP } = this.settings;
    if (this.greedy) return null;
    return topK !== null || topP === null || topP === 1 ? "sample" : "sample_nucleus";
  }

  /** What `entry` is told, to draw token `step` of this seed from `vocab` logits. */
  scalars(step: number, vocab: number): Record<string, number> {
    const { temperature, topK, topP, minP, seed } = this.settings;
    const p = topP ?? 1;
    const range = temperature * Math.log((2 * vocab) / Math.max(1 - p, 2 ** -24));
    return {
      draw_seed: drawSeed(seed) | 0,
      draw_step: step,
      inverse_temperature: this.greedy ? 1 : 1 / temperature,
      margin: minP ? Math.min(FARTHEST, (temperature * -Math.log(minP)) / REACHED) : FARTHEST,
      nucleus_width: this.greedy ? 1 : 2 ** Math.ceil(Math.log2(range)), // a power of two beyond what top-p may keep
      top_k: this.greedy ? 1 : Math.min(topK ?? 0, 2 ** 31 - 1),
      top_p: p === 1 ? p : p * REACHED,
    };
  }

  /** Draws token `step` of this seed from logits `[vocab]`. Throws where they are not finite, but for tokens that the bias forbids. */
  draw(logits: Logits, step: number): Draw {
    checkFinite(logits, this.settings.logitBias);
    const best = order(logits, 1)[0]!;
    if (this.greedy) return certain(best);
    const { temperature } = this.settings;
    const peak = logits[best]! / temperature;
    const weight = (id: number) => Math.exp(logits[id]! / temperature - peak);
    const kept = this.candidates(logits, weight);
    if (kept) kept.sort((a, b) => a - b); // added up in the order of ids, as the desktop does: one draw finds the same
    const count = kept ? kept.length : logits.length;
    let total = 0;
    for (let i = 0; i < count; i++) total += weight(kept ? kept[i]! : i);
    const [high, low] = hash4([drawSeed(this.settings.seed), step, ON_HOST, 0]);
    const draw = (((high >>> 5) * 2 ** 26 + (low >>> 6)) / 2 ** 53) * total;
    let id = kept ? kept.at(-1)! : count - 1;
    let sum = 0;
    for (let i = 0; i < count; i++) {
      if ((sum += weight(kept ? kept[i]! : i)) <= draw) continue;
      id = kept ? kept[i]! : i;
      break;
    }
    return { id, sampled: (other) => (!kept || kept.includes(other) ? weight(other) / total : 0) };
  }

  /** The tokens that top-k, top-p and min-p leave; null: all. `p` is what a token weighs, the best one 1. */
  private candidates(logits: Logits, p: (id: number) => number): number[] | null {
    const { minP } = this.settings;
    const kept = this.likeliest(logits, p);
    return minP ? (kept ?? Array.from(logits.keys())).filter((id) => p(id) >= minP) : kept;
  }

  /** The tokens that top-k and top-p leave, best first; null: all. */
  private likeliest(logits: Logits, p: (id: number) => number): number[] | null {
    const { topK, topP } = this.settings;
    const best = topK === null ? null : order(logits, topK);
    if (topP === null || topP === 1) return best;
    let total = 0;
    if (best) for (const id of best) total += p(id);
    else for (let id = 0; id < logits.length; id++) total += p(id);
    // Sorting a whole vocabulary takes longer than the model does: begin with the tokens that matter.
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

/** A token that the device chose: what the texture `token` holds. */
export interface Chosen {
  id: number;
  /** Nothing is decided: the caller draws from the row of logits. */
  undecided: boolean;
  /** The likeliest `count` tokens and its own probabilities; only where an entry drew it. */
  weighed: (count: number) => Alternatives;
}

/** Reads the texture `token`. Throws where the logits are not finite. */
export function chosen(texels: ArrayLike<number>, sampler: Sampler): Chosen {
  const [id, logit, broken, undecided] = Array.from({ length: 4 }, (_, i) => must(texels[i], "token")) as [number, number, number, number];
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
