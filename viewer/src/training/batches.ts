// Computes the inputs of a training step: windows of the text (`context` consecutive tokens each), an index by which a
// pass gathers the embedding's gradient, and the learning rate. The cases in tests/page/shared_cases.json check that
// Python computes the same values.

import type { Schedule } from "../runtime/engine/manifest";
import { PageError } from "../runtime/gl/errors";

export type Ids = Uint16Array;

function hash(x: number): number {
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/** Returns `rows` pseudo-random numbers from 0 to `count` - 1. They are hashes of (seed, step, row). */
export function starts(seed: number, step: number, rows: number, count: number): number[] {
  return Array.from({ length: rows }, (_, row) => {
    const high = hash(hash(hash(seed >>> 0) + step) + row);
    const low = hash(high + 0x9e3779b9);
    const share = (high * 2 ** 21 + (low >>> 11)) * 2 ** -53;
    return Math.min(Math.floor(share * count), count - 1);
  });
}

/**
 * Returns the ids of windows, and for each id its target, which is the next id of the text. Token t of a window is at
 * index t * number of windows + window.
 */
export function windows(
  ids: Ids,
  first: readonly number[],
  context: number,
): { inputs: Float32Array; targets: Float32Array } {
  const n = first.length;
  const inputs = new Float32Array(n * context);
  const targets = new Float32Array(n * context);
  for (let t = 0; t < context; t++) {
    for (let row = 0; row < n; row++) {
      inputs[t * n + row] = ids[first[row]! + t]!;
      targets[t * n + row] = ids[first[row]! + t + 1]!;
    }
  }
  return { inputs, targets };
}

/**
 * Returns the positions at which an evaluation's windows start. The windows are disjoint, spread evenly over the text,
 * and have at most `tokens` ids in total; if `tokens` is less than `context`, there is one window. Returns [] if the
 * text has fewer than `context` + 1 ids.
 */
export function fixedWindows(length: number, context: number, tokens: number): number[] {
  const whole = Math.floor((length - 1) / context);
  const some = Math.min(whole, Math.max(1, Math.floor(tokens / context)));
  return Array.from({ length: some }, (_, i) => Math.floor((i * whole) / Math.max(1, some)) * context);
}

/**
 * Returns the index by which a pass gathers an embedding's gradient. Each token of the batch is a row. `order` has a
 * texel (row, id % 4, 0, 0) for each row, sorted by id. `runs` has a texel (first, end, 0, 0) for each group of four
 * ids: the group's texels in `order` are those from `first` to `end` - 1.
 */
export function sortedIndex(ids: Float32Array, vocab: number): { order: Float32Array; runs: Float32Array } {
  const groups = Math.ceil(vocab / 4);
  const first = new Uint32Array(vocab + 1);
  for (const id of ids) first[id + 1]!++;
  for (let id = 0; id < vocab; id++) first[id + 1]! += first[id]!;
  const runs = new Float32Array(4 * groups);
  for (let g = 0; g < groups; g++) {
    runs[4 * g] = first[4 * g]!;
    runs[4 * g + 1] = first[Math.min(vocab, 4 * g + 4)]!;
  }
  const order = new Float32Array(4 * ids.length);
  for (let row = 0; row < ids.length; row++) {
    const id = ids[row]!;
    const at = 4 * first[id]!++;
    order[at] = row;
    order[at + 1] = id % 4;
  }
  return { order, runs };
}

export interface Rates {
  steps: number;
  lr: number;
  min_lr: number;
  warmup: number;
  schedule: Schedule;
}

/** Throws PageError unless `lr` is above 0 and fits a 32-bit float, the type of the shaders' uniforms. */
export function checkRate(lr: number): void {
  if (!(lr > 0 && Number.isFinite(Math.fround(lr)))) {
    throw new PageError(`The learning rate is ${lr}; it must be above 0 and at most 3.4e38.`);
  }
}

/**
 * Returns the learning rate of `step` (from 1). The rate rises to `lr` during the warmup. After the warmup, it stays at
 * `lr` if the schedule is constant; otherwise, it falls to `min_lr` until the last step.
 */
export function rateAt(s: Rates, step: number): number {
  if (step <= s.warmup) return (s.lr * step) / s.warmup;
  const done = Math.min(1, (step - s.warmup) / (s.steps - s.warmup));
  const share = { cosine: 0.5 + 0.5 * Math.cos(Math.PI * done), linear: 1 - done, constant: 1 }[s.schedule];
  return s.min_lr + (s.lr - s.min_lr) * share;
}

/** Returns the byte offset of the validation part: about the share `last` of a text, from a whole character on. */
export function splitAt(bytes: Uint8Array, last: number): number {
  let at = Math.floor(bytes.length * (1 - last));
  while (at < bytes.length && (bytes[at]! & 0xc0) === 0x80) at++;
  return at;
}
