// Compares numbers with a reference by the rule of `glgpt/program/tolerance.py`, which explains the tolerances.

export interface Tolerance {
  /** Allowed error of a tensor, relative to the root mean square (RMS) of each token's values. */
  relative: number;
  /** The allowed error of one value is `single * relative * (RMS + |value|)`. */
  single: number;
  /** A lower bound of the RMS: sqrt(RMS^2 + floor^2) is used instead of the RMS. */
  floor: number;
  /** Allowed mean KL divergence of logits, in nats. */
  kl: number;
}

/**
 * A tensor compared with its reference. `relative` is its relative error; `excess` is its error as a multiple of the
 * tolerance. The other fields describe the value with the greatest excess: its index, its error and both numbers.
 */
export interface Measured {
  relative: number;
  excess: number;
  at: number;
  error: number;
  here: number;
  there: number;
}

/** Compares values of shape `[tokens, width]` with a reference. Values that are not finite must be equal. */
export function measure(here: Float32Array, there: Float32Array, width: number, tolerance: Tolerance): Measured {
  const worst = { excess: 0, at: 0, error: 0 };
  if (here.length !== there.length) return { ...worst, relative: Infinity, excess: Infinity, here: 0, there: 0 };
  let squares = 0;
  for (let first = 0; first < there.length; first += width) {
    let size = 0;
    let errors = 0;
    let count = 0;
    for (let i = first; i < first + width; i++) {
      errors += off(here[i]!, there[i]!) ** 2;
      if (!Number.isFinite(there[i])) continue;
      size += there[i]! ** 2;
      count++;
    }
    count = Math.max(1, count);
    const rms = Math.sqrt(size / count + tolerance.floor ** 2);
    squares += errors / count / rms ** 2;
    for (let i = first; i < first + width; i++) {
      const error = off(here[i]!, there[i]!);
      const own = Number.isFinite(there[i]) ? Math.abs(there[i]!) : 0;
      const excess = error / (rms + own) / (tolerance.single * tolerance.relative);
      if (excess > worst.excess) Object.assign(worst, { excess, at: i, error });
    }
  }
  const relative = Math.sqrt(squares / (there.length / width));
  const { at, error } = worst;
  return {
    relative,
    excess: Math.max(worst.excess, relative / tolerance.relative),
    at,
    error,
    here: here[at]!,
    there: there[at]!,
  };
}

function off(here: number, there: number): number {
  if (here === there || (Number.isNaN(here) && Number.isNaN(there))) return 0;
  return Number.isFinite(here) && Number.isFinite(there) ? Math.abs(here - there) : Infinity;
}

/** Returns the mean KL(reference || computed) of two arrays of logits `[tokens, vocab]`, in nats. */
export function klDivergence(reference: Float32Array, computed: Float32Array, vocab: number): number {
  let sum = 0;
  for (let first = 0; first < reference.length; first += vocab) {
    const [p, q] = [reference, computed].map((x) => logProbabilities(x.subarray(first, first + vocab)));
    let kl = 0;
    for (let i = 0; i < vocab; i++) if (p![i]! > -Infinity) kl += Math.exp(p![i]!) * (p![i]! - q![i]!);
    sum += Math.max(kl, 0);
  }
  return sum / (reference.length / vocab);
}

function logProbabilities(logits: Float32Array): Float64Array {
  const greatest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = logits.reduce((s, x) => s + Math.exp(x - greatest), 0);
  return Float64Array.from(logits, (x) => x - greatest - Math.log(sum));
}

/** True if the logits of two tokens differ by at most the tolerance: either token may then be the greedy one. */
export function ties(logits: Float32Array, computed: number, reference: number, tolerance: Tolerance): boolean {
  const rms = Math.sqrt(logits.reduce((s, x) => s + x * x, 0) / logits.length);
  return Math.abs(logits[computed]! - logits[reference]!) <= tolerance.relative * rms;
}
