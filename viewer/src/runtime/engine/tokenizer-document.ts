// Converts a tokenizer.json with a byte-level BPE to the page's form, as glgpt.text.tokenizer does on the desktop.

import type { TokenizerData } from "./manifest";

const WORDS =
  "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+" +
  "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+";
const DIGITS =
  "\\p{N}|'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|\\p{White_Space}+(?=\\p{N})" +
  "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+";

type Json = Record<string, unknown>;

const LETTERS: readonly string[] = (() => {
  const letters: string[] = [];
  let other = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    const plain = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    letters.push(String.fromCharCode(plain ? byte : other++));
  }
  return letters;
})();
const BYTE_OF = new Map(LETTERS.map((letter, byte) => [letter, byte]));

/** Returns a tokenizer in the page's form; null for one of a kind that the page does not support. */
export function tokenizerData(document: object, named: readonly string[], vocab_size: number): TokenizerData | null {
  const whole = document as {
    model: { vocab: Record<string, number>; merges: readonly (string | [string, string])[]; byte_fallback?: boolean };
    normalizer: unknown;
    pre_tokenizer: Json | null;
    added_tokens: { id: number; content: string; special: boolean }[];
    post_processor: Json | null;
  };
  const { model, pre_tokenizer } = whole;
  const steps = pre_tokenizer?.["type"] === "Sequence" ? (pre_tokenizer["pretokenizers"] as Json[]) : [pre_tokenizer];
  const last = steps.at(-1);
  if (whole.normalizer || model.byte_fallback || last?.["type"] !== "ByteLevel") return null;
  const digits = steps.length === 2 && steps[0]?.["type"] === "Digits";
  if (last["use_regex"] === false || (steps.length > 1 && !digits)) return null;
  const ranks = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(byte));
  const ids = LETTERS.map((letter) => model.vocab[letter] ?? -1);
  for (const merge of model.merges) {
    const [left, right] = typeof merge === "string" ? (merge.split(" ") as [string, string]) : merge;
    ranks.push(bytes(left) + bytes(right));
    ids.push(model.vocab[left + right] ?? -1);
  }
  const special: Record<string, number> = {};
  for (const token of named) if (token in model.vocab) special[token] = model.vocab[token]!;
  for (const { content, id } of whole.added_tokens) special[content] = id;
  const known = new Set(ids);
  const others: Record<string, string> = {};
  for (const [token, id] of Object.entries(model.vocab)) {
    if (!known.has(id) && id < vocab_size) others[id] = btoa(bytes(token));
  }
  const encoder = new TextEncoder();
  for (const [token, id] of Object.entries(special)) {
    if (id < vocab_size) others[id] = btoa(String.fromCharCode(...encoder.encode(token)));
  }
  const around = (whole.post_processor?.["single"] ?? []) as { SpecialToken?: { id: string } }[];
  const middle = around.findIndex((piece) => !piece.SpecialToken);
  const tokens = (pieces: typeof around) =>
    pieces.flatMap(({ SpecialToken }) => (SpecialToken ? [special[SpecialToken.id]!] : []));
  return {
    schema: 2,
    pattern: digits ? DIGITS : WORDS,
    ranks: ranks.map((token) => btoa(token)).join(" "),
    ids,
    others,
    special,
    prefix: tokens(around.slice(0, Math.max(0, middle))),
    suffix: tokens(around.slice(Math.max(0, middle))),
    prefix_space: last["add_prefix_space"] === true,
    vocab_size,
  };
}

/** Returns the bytes of a token, as characters up to 0xff. */
const bytes = (token: string) =>
  Array.from(token, (letter) => String.fromCharCode(BYTE_OF.get(letter) ?? 0x3f)).join("");
