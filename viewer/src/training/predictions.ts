// Stores a predictor's results for each token of a text, and computes metrics from them, as
// glgpt/scoring/predictions.py does.

const BINS = 10; // equally wide bins of the reliability diagram

/**
 * For each target: its negative log probability, its rank and the probability of the most likely token. Rank 0 is the
 * most likely token; equally likely tokens rank by id.
 */
export interface Predictions {
  nats: Float64Array;
  ranks: Int32Array;
  confidence: Float64Array;
}

export function noPredictions(count: number): Predictions {
  return { nats: new Float64Array(count), ranks: new Int32Array(count), confidence: new Float64Array(count) };
}

/** A predictor's metrics, with the names of the desktop's JSON. */
export interface Figures {
  name: string;
  nats_per_token: number;
  perplexity: number;
  bits_per_byte: number;
  top_1: number;
  top_5: number;
  /**
   * Mean absolute difference between the confidence and the accuracy of a bin, weighted by the number of tokens in the
   * bin; null for chance, which prefers no token.
   */
  calibration_error: number | null;
  /** (mean confidence, accuracy, number of tokens) of each bin with at least one token. */
  bins: [number, number, number][];
}

/** Computes a predictor's metrics on targets that have `size` bytes in total. */
export function figures(name: string, found: Predictions, size: number): Figures {
  const count = found.nats.length;
  const sums = Array.from({ length: BINS }, () => ({ confidence: 0, hits: 0, held: 0 }));
  let nats = 0;
  let first = 0;
  let five = 0;
  for (let i = 0; i < count; i++) {
    nats += found.nats[i]!;
    const hit = found.ranks[i] === 0;
    first += hit ? 1 : 0;
    five += found.ranks[i]! < 5 ? 1 : 0;
    const bin = sums[Math.min(Math.floor(found.confidence[i]! * BINS), BINS - 1)]!;
    bin.confidence += found.confidence[i]!;
    bin.hits += hit ? 1 : 0;
    bin.held++;
  }
  const used = sums.filter(({ held }) => held);
  const bins = used.map(({ confidence, hits, held }): [number, number, number] => [
    confidence / held,
    hits / held,
    held,
  ]);
  const error = bins.reduce(
    (sum, [confidence, accuracy, held]) => sum + (held / count) * Math.abs(confidence - accuracy),
    0,
  );
  return {
    name,
    nats_per_token: nats / count,
    perplexity: Math.exp(nats / count),
    bits_per_byte: bits(nats, size),
    top_1: first / count,
    top_5: five / count,
    calibration_error: error,
    bins,
  };
}

/** Returns the metrics of a predictor to which all tokens are equally likely. */
export function chance(vocab: number, count: number, size: number): Figures {
  return {
    name: "chance",
    nats_per_token: Math.log(vocab),
    perplexity: vocab,
    bits_per_byte: bits(Math.log(vocab) * count, size),
    top_1: 1 / vocab,
    top_5: Math.min(1, 5 / vocab),
    calibration_error: null,
    bins: [],
  };
}

const bits = (nats: number, size: number) => nats / Math.LN2 / Math.max(1, size);

/** Returns the positions of all targets of the windows that start at `first`. A window has `context` targets. */
export function targetsOf(first: readonly number[], context: number): Int32Array {
  return Int32Array.from(
    { length: first.length * context },
    (_, i) => first[Math.floor(i / context)]! + 1 + (i % context),
  );
}

/** Returns the number of bytes of the tokens at `targets`. */
export function sizeOf(ids: ArrayLike<number>, targets: Int32Array, bytes: readonly Uint8Array[]): number {
  return targets.reduce((sum, at) => sum + (bytes[ids[at]!]?.length ?? 0), 0);
}

/** Computes predictions from logits of shape `[targets, vocab]`, and stores them in `into` from index `from` on. */
export function ofLogits(logits: Float32Array, targets: readonly number[], into: Predictions, from: number): void {
  const vocab = logits.length / targets.length;
  for (const [t, target] of targets.entries()) {
    const row = logits.subarray(t * vocab, (t + 1) * vocab);
    const own = row[target]!;
    let most = -Infinity;
    let before = 0;
    for (let w = 0; w < vocab; w++) {
      const x = row[w]!;
      if (x > most) most = x;
      if (x > own || (x === own && w < target)) before++;
    }
    let total = 0;
    for (let w = 0; w < vocab; w++) total += Math.exp(row[w]! - most);
    into.nats[from + t] = Math.log(total) - (own - most);
    into.ranks[from + t] = before;
    into.confidence[from + t] = 1 / total;
  }
}
