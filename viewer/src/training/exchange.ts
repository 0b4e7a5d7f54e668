// Encodes the update that a page sends to a federation's gateway, and picks the windows of the page's shard (the page's
// part of the session's text).

import { toFloat16 } from "../runtime/gl/float16";
import { encodeInt8 } from "../runtime/gl/int8";
import { BLOCK, type DTYPES } from "../runtime/generated/protocols";
import { PageError } from "../runtime/gl/errors";
import { starts } from "./batches";

export type Dtype = (typeof DTYPES)[number];

/** Returns the starts of a step's windows in the shard [i, m]: positions below `count` with remainder i modulo m. */
export function shardStarts(
  seed: number,
  step: number,
  rows: number,
  count: number,
  [i, m]: readonly [number, number],
): number[] {
  return starts(seed, step, rows, Math.floor((count - i + m - 1) / m)).map((at) => i + m * at);
}

function greatest(values: Float32Array): number {
  let most = 0;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most;
}

/**
 * Encodes the change from `before` to `after` as bytes and a scale; `exact` encodes `after` itself. See
 * glgpt/federation/protocol.py.
 */
export function encode(
  dtype: Dtype,
  after: Float32Array,
  before: Float32Array,
): { bytes: Uint8Array<ArrayBuffer>; scale: number } {
  if (after.length !== before.length) throw new PageError("The number of parameters differs from the round's.");
  if (dtype === "exact") return { bytes: new Uint8Array(after.slice().buffer), scale: 1 };
  const change = after.map((value, i) => value - before[i]!);
  if (dtype === "f32") return { bytes: new Uint8Array(change.buffer), scale: 1 };
  if (dtype === "f16") {
    const scale = greatest(change) || 1;
    const halves = Uint16Array.from(change, (value) => toFloat16(value / scale));
    return { bytes: new Uint8Array(halves.buffer), scale };
  }
  return { bytes: encodeInt8(change, BLOCK), scale: 1 };
}
