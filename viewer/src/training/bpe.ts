// Trains a byte-level BPE on a text, with the same merges as `glgpt tokenizer train`.

import { LETTERS } from "../runtime/engine/byte-letters";
import { Heap } from "../runtime/engine/heap";
import { merge } from "../runtime/engine/merging";
import { GPT2 } from "../runtime/generated/patterns";

export const EOS = "<|endoftext|>";
export const SMALLEST = 257;
/** Maximum bytes of a word. Longer words are split for training, as on the desktop. */
const MAX_WORD = 1024;
const WORDS = new RegExp(GPT2, "gu");

/** Bytes in the order of their ids. The ids follow the code points of the letters that stand for the bytes. */
const ORDER = Array.from(LETTERS.keys()).sort((a, b) => LETTERS[a]!.charCodeAt(0) - LETTERS[b]!.charCodeAt(0));

export interface Bpe {
  /** Token texts by id. As in GPT-2's vocab.json, a letter stands for each byte. */
  vocab: string[];
  /** Pairs of ids, in the order in which they are merged. */
  merges: [number, number][];
}

export class BpeError extends Error {}

interface Candidate {
  left: number;
  right: number;
  count: number;
  words: Set<number>;
}

/** Orders pairs by frequency, the most frequent first. Equally frequent pairs are ordered by their ids. */
function before(a: Candidate, b: Candidate): boolean {
  return a.count !== b.count ? a.count > b.count : a.left !== b.left ? a.left < b.left : a.right < b.right;
}

const PAIR = 2 ** 22; // greater than any id; a pair is stored as the number left * PAIR + right
type OnProgress = (done: number, total: number) => void;

/** Counts how often each word of the text occurs. */
function countWords(text: string, progress: OnProgress): Map<string, number> {
  const counts = new Map<string, number>();
  let done = 0;
  for (const part of text.split(EOS)) {
    let seen = 0;
    for (const { 0: word } of part.matchAll(WORDS)) {
      counts.set(word, (counts.get(word) ?? 0) + 1);
      if ((++seen & 0xffff) === 0) progress(Math.min(done, text.length), text.length);
      done += word.length;
    }
  }
  return counts;
}

/**
 * Trains a vocabulary of `size` tokens. Throws BpeError if the size is too small. If the text gives fewer tokens,
 * returns a smaller vocabulary if `fewer` is true, else throws BpeError.
 */
export function trainBpe(text: string, size: number, progress: OnProgress = () => {}, fewer = false): Bpe {
  if (size < SMALLEST) throw new BpeError(`A vocabulary of ${size} is too small; the minimum is ${SMALLEST}.`);
  const vocab = [EOS, ...ORDER.map((byte) => LETTERS[byte]!)];
  const idOf = new Map(vocab.map((token, id) => [token, id]));
  const byteId = new Uint16Array(256);
  ORDER.forEach((byte, i) => (byteId[byte] = i + 1));
  const encoder = new TextEncoder();
  const words: number[][] = [];
  const counts: number[] = [];
  for (const [word, count] of countWords(text, (n, all) => progress(0.5 * n, all))) {
    const bytes = encoder.encode(word);
    for (let start = 0; start < bytes.length; start += MAX_WORD) {
      words.push(Array.from(bytes.subarray(start, start + MAX_WORD), (byte) => byteId[byte]!));
      counts.push(count);
    }
  }
  const pairCounts = new Map<number, number>();
  const places = new Map<number, Set<number>>();
  words.forEach((word, w) => {
    for (let i = 0; i + 1 < word.length; i++) {
      const key = word[i]! * PAIR + word[i + 1]!;
      pairCounts.set(key, (pairCounts.get(key) ?? 0) + counts[w]!);
      const at = places.get(key);
      if (at) at.add(w);
      else places.set(key, new Set([w]));
    }
  });
  const heap = new Heap(before);
  const queue = (key: number, at: Set<number>) => {
    const count = pairCounts.get(key)!;
    if (count > 0) heap.push({ left: Math.floor(key / PAIR), right: key % PAIR, count, words: at });
  };
  for (const [key, at] of places) queue(key, at);
  const merges = new Map<number, [number, number]>();
  while (vocab.length < size) {
    const top = heap.pop();
    if (!top) break;
    const key = top.left * PAIR + top.right;
    const now = pairCounts.get(key)!;
    if (top.count !== now) {
      top.count = now;
      heap.push(top);
      continue;
    }
    if (top.count < 2) break;
    const token = vocab[top.left]! + vocab[top.right]!;
    let id = idOf.get(token);
    if (id === undefined) {
      id = vocab.push(token) - 1;
      idOf.set(token, id);
      progress(0.5 + (0.5 * id) / size, 1);
    }
    merges.delete(key); // if a pair is merged a second time, only the later merge is listed
    merges.set(key, [top.left, top.right]);
    const fresh = new Map<number, Set<number>>();
    for (const w of top.words) {
      mergeWord(words[w]!, top.left, top.right, id, (a, b, change) => {
        const pair = a * PAIR + b;
        pairCounts.set(pair, (pairCounts.get(pair) ?? 0) + change * counts[w]!);
        if (change > 0) {
          const at = fresh.get(pair);
          if (at) at.add(w);
          else fresh.set(pair, new Set([w]));
        }
      });
    }
    for (const [pair, at] of fresh) queue(pair, at);
  }
  if (vocab.length < size && !fewer) {
    throw new BpeError(`A vocabulary of ${size} is too large for this text; it gives at most ${vocab.length} tokens.`);
  }
  return { vocab, merges: [...merges.values()] };
}

/** Replaces every pair (left, right) in a word. Calls `change` for each pair that disappears (-1) or appears (1). */
function mergeWord(
  word: number[],
  left: number,
  right: number,
  id: number,
  change: (a: number, b: number, by: number) => void,
): void {
  let size = 0;
  for (let i = 0; i < word.length; i++) {
    if (word[i] !== left || word[i + 1] !== right) {
      word[size++] = word[i]!;
      continue;
    }
    if (size) {
      change(word[size - 1]!, left, -1);
      change(word[size - 1]!, id, 1);
    }
    word[size++] = id;
    i++;
    if (i + 1 < word.length) {
      change(right, word[i + 1]!, -1);
      change(id, word[i + 1]!, 1);
    }
  }
  word.length = size;
}

/** Returns the token ids of a text. If `bpe` is null, the ids are the text's bytes. */
export function encodeText(text: string, bpe: Bpe | null, progress: OnProgress = () => {}): Uint16Array {
  const encoder = new TextEncoder();
  if (!bpe) return Uint16Array.from(encoder.encode(text));
  const idOf = new Map(bpe.vocab.map((token, id) => [token, id]));
  const byteId = LETTERS.map((letter) => idOf.get(letter)!);
  const ranks = new Map(bpe.merges.map(([a, b], rank) => [a * PAIR + b, rank]));
  const rank = (left: number, right: number) => ranks.get(left * PAIR + right) ?? -1;
  const made = bpe.merges.map(([a, b]) => idOf.get(bpe.vocab[a]! + bpe.vocab[b]!)!);
  const known = new Map<string, number[]>();
  let out = new Uint16Array(1 << 16);
  let size = 0;
  let done = 0;
  const push = (ids: readonly number[]) => {
    if (size + ids.length > out.length) {
      const larger = new Uint16Array(Math.max(2 * out.length, size + ids.length));
      larger.set(out);
      out = larger;
    }
    out.set(ids, size);
    size += ids.length;
  };
  const eos = idOf.get(EOS);
  const parts = eos === undefined ? [text] : text.split(EOS);
  parts.forEach((part, i) => {
    if (i && eos !== undefined) push([eos]);
    let seen = 0;
    for (const { 0: word } of part.matchAll(WORDS)) {
      let ids = known.get(word);
      if (!ids) {
        const bytes = Array.from(encoder.encode(word), (byte) => byteId[byte]!);
        ids = merge(bytes, rank, (at) => made[at]!);
        known.set(word, ids);
      }
      push(ids);
      done += word.length;
      if ((++seen & 0xffff) === 0) progress(done, text.length);
    }
  });
  return out.slice(0, size);
}

/** Returns the smaller vocabulary that has only the first `count` merges. */
export function firstMerges({ vocab, merges }: Bpe, count: number): Bpe {
  const some = merges.slice(0, count);
  return { vocab: vocab.slice(0, SMALLEST + new Set(some.map(([a, b]) => vocab[a]! + vocab[b]!)).size), merges: some };
}

/** The result of tokenizing a text: number of tokens, number of bytes, and how often each id occurs. */
export interface Cut {
  tokens: number;
  bytes: number;
  counts: Uint32Array;
}

export function measure(text: string, bpe: Bpe): Cut {
  const ids = encodeText(text, bpe);
  const counts = new Uint32Array(bpe.vocab.length);
  for (const id of ids) counts[id]!++;
  return { tokens: ids.length, bytes: new TextEncoder().encode(text).length, counts };
}

/** Returns two lists of `many` tokens made by a merge: those with the most bytes, and those that occur least often. */
export function extremes({ vocab }: Bpe, counts: Uint32Array, many: number): { longest: number[]; rarest: number[] } {
  const made = Array.from(vocab.keys()).slice(SMALLEST);
  return {
    longest: [...made].sort((a, b) => vocab[b]!.length - vocab[a]!.length || a - b).slice(0, many),
    rarest: [...made].sort((a, b) => counts[a]! - counts[b]! || b - a).slice(0, many),
  };
}
