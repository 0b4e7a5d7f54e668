// Computes n-gram models of a training text, which are the baselines of a trained model. They use Witten-Bell
// smoothing, like glgpt/scoring/ngrams.py.

import type { Ids } from "./batches";
import { noPredictions, type Predictions } from "./predictions";

export const NGRAMS = ["unigram", "bigram", "trigram"] as const;
type Progress = (share: number) => void;
const REPORT = 1 << 20; // tokens between two reports

/** Counts how often each token follows each of the given contexts. A context is the previous one or two tokens. */
class Followers {
  private readonly of = new Map<number, Map<number, number>>();

  constructor(contexts: Iterable<number>) {
    for (const context of contexts) if (context >= 0) this.of.set(context, new Map());
  }

  count(context: number, token: number): void {
    const found = this.of.get(context);
    if (found) found.set(token, (found.get(token) ?? 0) + 1);
  }

  /** Returns the distribution after a context: its counts, mixed with the distribution after the shorter context. */
  mixed(context: number, shorter: Float64Array): Float64Array {
    const found = this.of.get(context);
    if (!found?.size) return shorter;
    const kinds = found.size;
    const p = shorter.map((x) => kinds * x);
    let total = kinds;
    for (const [token, count] of found) {
      p[token]! += count;
      total += count;
    }
    return p.map((x) => x / total);
  }
}

/** Returns the `size` tokens before position `at` as one number; -1 if there are fewer. */
function context(ids: Ids, at: number, vocab: number, size: number): number {
  if (at < size) return -1;
  let found = 0;
  for (let back = size; back; back--) found = found * vocab + ids[at - back]!;
  return found;
}

/** A context and the distribution after it. */
interface Behind {
  context: number;
  p: Float64Array;
}

/** Returns the predictions of n-gram models, counted in `train`, for the tokens of `ids` at the positions `targets`. */
export function baselines(
  train: Ids,
  vocab: number,
  ids: Ids,
  targets: Int32Array,
  progress: Progress = () => {},
): Record<(typeof NGRAMS)[number], Predictions> {
  const before = [1, 2].map((size) => Array.from(targets, (at) => context(ids, at, vocab, size)));
  const [one, two] = before.map((contexts) => new Followers(contexts)) as [Followers, Followers];
  const counts = new Float64Array(vocab).fill(1);
  for (let i = 0; i < train.length; i++) {
    const token = train[i]!;
    counts[token]!++;
    if (i > 0) one.count(train[i - 1]!, token);
    if (i > 1) two.count(train[i - 2]! * vocab + train[i - 1]!, token);
    if (i % REPORT === 0) progress((0.5 * i) / train.length);
  }
  const base = counts.map((count) => count / (train.length + vocab));
  const found = {
    unigram: noPredictions(targets.length),
    bigram: noPredictions(targets.length),
    trigram: noPredictions(targets.length),
  };
  const places = Array.from(targets.keys()).sort(
    (a, b) => before[0]![a]! - before[0]![b]! || before[1]![a]! - before[1]![b]!,
  );
  let bigram: Behind = { context: NaN, p: base };
  let trigram: Behind = { context: NaN, p: base };
  for (const [n, i] of places.entries()) {
    const [u, tu] = [before[0]![i]!, before[1]![i]!];
    if (u !== bigram.context) {
      bigram = { context: u, p: u < 0 ? base : one.mixed(u, base) };
      trigram = { context: NaN, p: base };
    }
    if (tu !== trigram.context || tu < 0) trigram = { context: tu, p: tu < 0 ? bigram.p : two.mixed(tu, bigram.p) };
    const target = ids[targets[i]!]!;
    judge(base, target, found.unigram, i);
    judge(bigram.p, target, found.bigram, i);
    judge(trigram.p, target, found.trigram, i);
    if (n % 512 === 0) progress(0.5 + (0.5 * n) / targets.length);
  }
  return found;
}

function judge(p: Float64Array, target: number, into: Predictions, at: number): void {
  const own = p[target]!;
  let before = 0;
  let most = 0;
  for (let w = 0; w < p.length; w++) {
    const x = p[w]!;
    if (x > most) most = x;
    if (x > own || (x === own && w < target)) before++;
  }
  into.nats[at] = -Math.log(own);
  into.ranks[at] = before;
  into.confidence[at] = most;
}
