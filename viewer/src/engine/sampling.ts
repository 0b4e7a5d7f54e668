// Choosing a token from one row of logits. The cases in tests/page/shared_cases.json hold that Python draws the same.

import { PageError } from "../gl/errors";
import { Random } from "./random";

export interface Settings {
  temperature: number;
  topK: number | null;
  topP: number | null;
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

/** The order of tokens by logit, best first; of equals the first wins. `count` limits it. */
function order(logits: Float32Array, count: number): number[] {
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

/** The likeliest `count` tokens of the plain softmax, and the probability of `chosen`; of a draw, what it drew from too. */
export function alternatives(logits: Float32Array, count: number, chosen: number, draw?: Draw): Alternatives {
  const best = order(logits, count);
  const peak = logits[best[0]!]!;
  let sum = 0;
  for (const x of logits) sum += Math.exp(x - peak);
  const p = (id: number) => Math.exp(logits[id]! - peak) / sum;
  const both = (id: number) => ({ p: p(id), ...(draw ? { sampled: draw.sampled(id) } : {}) });
  return { top: best.map((id) => ({ id, ...both(id) })), ...both(chosen) };
}

export class Sampler {
  private readonly random: Random;

  constructor(
    readonly settings: Settings,
    drawn = 0,
  ) {
    const { temperature, topK, topP, seed } = settings;
    if (!(Number.isFinite(temperature) && temperature >= 0)) {
      throw new PageError(`Temperature is ${temperature}; it must be 0 (greedy) or above.`);
    }
    if (topK !== null && !(Number.isInteger(topK) && topK >= 1))
      throw new PageError(`Top-k is ${topK}; it must be 1 or more.`);
    if (topP !== null && !(topP > 0 && topP <= 1)) throw new PageError(`Top-p is ${topP}; it must lie in (0, 1].`);
    if (!(Number.isSafeInteger(seed) && seed >= 0))
      throw new PageError(`Seed is ${seed}; it must be a whole number from 0.`);
    this.random = new Random(seed);
    for (let i = 0; i < drawn; i++) this.random.next(); // one a token
  }

  get greedy(): boolean {
    return this.settings.temperature === 0 || this.settings.topK === 1;
  }

  /** Draws a token from logits `[vocab]`. Throws where they are not finite. */
  draw(logits: Float32Array): Draw {
    for (const x of logits) if (!Number.isFinite(x)) throw new PageError("The model's logits are not finite.");
    const best = order(logits, 1)[0]!;
    if (this.greedy) return certain(best);
    const { temperature } = this.settings;
    const peak = logits[best]! / temperature;
    if (!Number.isFinite(peak)) return certain(best); // so small a temperature leaves but one
    const weight = (id: number) => Math.exp(logits[id]! / temperature - peak);
    const kept = this.candidates(logits, weight);
    if (kept) kept.sort((a, b) => a - b); // added up in the order of ids, as the desktop does: one draw finds the same
    const count = kept ? kept.length : logits.length;
    let total = 0;
    for (let i = 0; i < count; i++) total += weight(kept ? kept[i]! : i);
    const draw = this.random.next() * total;
    let id = kept ? kept.at(-1)! : count - 1;
    let sum = 0;
    for (let i = 0; i < count; i++) {
      if ((sum += weight(kept ? kept[i]! : i)) <= draw) continue;
      id = kept ? kept[i]! : i;
      break;
    }
    return { id, sampled: (other) => (!kept || kept.includes(other) ? weight(other) / total : 0) };
  }

  /** The tokens that top-k and top-p leave, best first; null: all. `p` is what a token weighs. */
  private candidates(logits: Float32Array, p: (id: number) => number): number[] | null {
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
      const end = some.findIndex((id) => (sum += p(id) / total) >= topP);
      if (end >= 0) return some.slice(0, end + 1);
      if (best || least === 0) return some;
    }
  }
}
