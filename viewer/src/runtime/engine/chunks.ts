// Splits a prompt into chunks. A chunk holds consecutive tokens, which one entry of the recorded program (a named
// sequence of passes) computes together.

import type { Player } from "../gl/player";
import type { Tuning } from "./manifest";

/** A chunk has `valid` tokens, from position `start` on. Its entry computes `size` tokens: the others are padding. */
export interface Chunk {
  start: number;
  valid: number;
  size: number;
}

/** Returns the name of the entry that computes a chunk. */
export const entryOf = ({ size }: Chunk): string => (size === 1 ? "decode" : `prefill_${size}`);

/** Returns the numbers N for which `entries` has the name `prefix` followed by N, greatest first. */
export function sizes(entries: Iterable<string>, prefix: string): number[] {
  const found: number[] = [];
  for (const name of entries) {
    if (name.startsWith(prefix) && /^\d+$/.test(name.slice(prefix.length)))
      found.push(Number(name.slice(prefix.length)));
  }
  return found.sort((a, b) => b - a);
}

/** Returns the cheapest chunks with sizes from `known` for positions from..tokens-1. Only the last chunk is padded. */
export function plan(
  tokens: number,
  context: number,
  known: readonly number[],
  costs: Pick<Tuning, "one_token" | "per_chunk">,
  from = 0,
): Chunk[] {
  const cost = new Float64Array(tokens + 1);
  const size = new Int32Array(tokens + 1);
  for (let at = tokens - 1; at >= from; at--) {
    let best = Infinity;
    for (const s of known) {
      if (at + s > context) continue;
      const total = (s === 1 ? costs.one_token : costs.per_chunk + s) + (cost[Math.min(at + s, tokens)] ?? 0);
      if (total < best || (total === best && s < (size[at] ?? 0))) {
        best = total;
        size[at] = s;
      }
    }
    cost[at] = best;
  }
  const chunks: Chunk[] = [];
  for (let at = from; at < tokens;) {
    const s = size[at] ?? 1;
    const valid = Math.min(s, tokens - at);
    chunks.push({ start: at, valid, size: s });
    at += valid;
  }
  return chunks;
}

/**
 * Uploads a chunk's ids. Padding repeats the last id. With another token, values of the padding could overflow to
 * infinity; attention multiplies these values by zero, which would then give NaN.
 */
export function writeIds(player: Player, ids: readonly number[], chunk: Chunk): void {
  const texels = new Float32Array(4 * chunk.size);
  for (let i = 0; i < chunk.size; i++) texels[4 * i] = ids[chunk.start + Math.min(i, chunk.valid - 1)]!;
  player.write(`ids.${chunk.size}`, 0, 0, chunk.size, new Uint8Array(texels.buffer));
}

/**
 * Returns the index at which the window of a text starts. The next token is computed from the tokens in the window.
 * `tokens` is the length of the text. A text longer than the context drops its first tokens, half a context at a time,
 * and the rest is read again from position 0.
 */
export function windowStart(tokens: number, context: number): number {
  const half = Math.max(1, Math.floor(context / 2));
  return Math.max(0, Math.ceil((tokens - context) / half)) * half;
}

/** Writes the token that the next decode reads. */
export function writeToken(player: Player, id: number): void {
  const texels = new Float32Array(4 * player.spec("token").width);
  texels[0] = id;
  player.write("token", 0, 0, 1, new Uint8Array(texels.buffer));
}
