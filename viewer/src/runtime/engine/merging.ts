// Encodes one word by byte-pair merges, in n log n time: a word may be a million characters long.

import { Heap } from "./heap";

// An entry of the heap is `rank * PLACES + index of the left part`. PLACES exceeds the number of parts of any word, and
// all entries are integers that a double represents exactly.
const PLACES = 2 ** 32;

/**
 * Merges neighbouring parts (token ids) of a word until no pair has a rank (the pair's index in the tokenizer's list of
 * merges). The pair with the lowest rank is merged first; if several pairs have this rank, the leftmost of them. `rank`
 * returns the rank of a pair, or -1 if the pair is not in the list. `merged` returns the id that a merge makes.
 */
export function merge(
  word: readonly number[],
  rank: (left: number, right: number) => number,
  merged: (rank: number) => number,
): number[] {
  const parts = Int32Array.from(word); // -1: merged into the previous part
  const next = Int32Array.from(word, (_, i) => i + 1);
  const previous = Int32Array.from(word, (_, i) => i - 1);
  const heap = new Heap<number>((a, b) => a < b);
  const queue = (at: number) => {
    if (at < 0 || next[at]! >= parts.length) return;
    const found = rank(parts[at]!, parts[next[at]!]!);
    if (found >= 0) heap.push(found * PLACES + at);
  };
  for (let at = 0; at < parts.length; at++) queue(at);
  for (let top = heap.pop(); top !== undefined; top = heap.pop()) {
    const at = top % PLACES;
    const right = next[at]!;
    const known = (top - at) / PLACES;
    // Skips an entry whose pair has changed since it was added.
    if (parts[at] === -1 || right >= parts.length || rank(parts[at]!, parts[right]!) !== known) continue;
    const after = next[right]!;
    parts[at] = merged(known);
    parts[right] = -1;
    next[at] = after;
    if (after < parts.length) previous[after] = at;
    queue(previous[at]!);
    queue(at);
  }
  return Array.from(parts.filter((part) => part !== -1));
}
