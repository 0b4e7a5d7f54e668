// Runs the normalizers and pre-tokenizers of a tokenizer. The results equal those of Hugging Face's `tokenizers`.

import { GPT2, MAX_GROWTH, PATTERNS } from "../generated/patterns";
import type { TokenizerSchema } from "../generated/tokenizer";
import { LETTERS } from "./byte-letters";

export type Normalizer = Exclude<TokenizerSchema["normalizer"], null | undefined>;
export type PreTokenizer = Exclude<TokenizerSchema["pre_tokenizer"], null | undefined>;
type Step<T> = Exclude<T, { type: "Sequence" }>;
type Behavior = "Removed" | "Isolated" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";

/** A part of a text. `first`: true if the part is at the beginning of the text. */
export interface Piece {
  text: string;
  first: boolean;
}

const encoder = new TextEncoder();
const byteLetters = (text: string) => Array.from(encoder.encode(text), (byte) => LETTERS[byte]!).join("");

/** Returns the expression for a pattern of a tokenizer.json; null: the pattern is unknown and might run for hours. */
function known(pattern: string): RegExp | null {
  const source = Object.hasOwn(PATTERNS, pattern) ? (PATTERNS as Record<string, string>)[pattern] : undefined;
  return source === undefined ? null : new RegExp(source, "gu");
}

const escaped = (text: string) => new RegExp(text.replace(/[\\^$*+?.()|[\]{}/-]/g, "\\$&"), "gu");

function expression(pattern: { String: string } | { Regex: string }): RegExp {
  if ("String" in pattern) return escaped(pattern.String);
  const found = known(pattern.Regex);
  if (!found) throw new Error(`the regular expression ${pattern.Regex.slice(0, 80)} is not supported by this page`);
  return found;
}

/** Returns a function that applies a normalizer. Throws an Error if the page does not support the normalizer. */
export function normalizer(whole: Normalizer | null | undefined): (text: string) => string {
  if (!whole) return (text) => text;
  const steps = whole.type === "Sequence" ? whole.normalizers : [whole];
  if (steps.reduce((most, step) => most * Math.max(1, growth(step)), 1) > MAX_GROWTH)
    throw new Error(`the replacements expand one character to more than ${MAX_GROWTH}`);
  const functions = steps.map(normalizing);
  return (text) => functions.reduce((found, step) => step(found), text);
}

/**
 * Returns the maximum number of characters that a step makes of one character. A regular expression may match the empty
 * text before a character; the result is then the replacement and the character.
 */
function growth(step: Step<Normalizer>): number {
  if (step.type !== "Replace") return 1;
  const most = Array.from(step.content).length;
  return "String" in step.pattern ? most / Array.from(step.pattern.String).length : 1 + most;
}

function normalizing(step: Step<Normalizer>): (text: string) => string {
  switch (step.type) {
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return (text) => text.normalize(step.type);
    case "Lowercase": // each character alone: toLowerCase treats a sigma at a word's end differently
      return (text) => Array.from(text, (char) => char.toLowerCase()).join("");
    case "StripAccents":
      return (text) => text.replace(/\p{M}/gu, "");
    case "Strip": {
      const left = step.strip_left === false ? "" : "^\\p{White_Space}+";
      const right = step.strip_right === false ? "" : "(?<!\\p{White_Space})\\p{White_Space}+$";
      const blanks = new RegExp([left, right].filter(Boolean).join("|") || "(?!)", "gu");
      return (text) => text.replace(blanks, "");
    }
    case "Prepend":
      return (text) => text && step.prepend + text;
    case "Replace": {
      const from = expression(step.pattern);
      return (text) => text.replace(from, () => step.content);
    }
    case "ByteLevel":
      return byteLetters;
  }
}

/** Returns a function that applies a pre-tokenizer. Throws an Error for an unsupported regular expression. */
export function preTokenizer(whole: PreTokenizer | null | undefined): (piece: Piece) => Piece[] {
  if (!whole) return (piece) => [piece];
  const functions = (whole.type === "Sequence" ? whole.pretokenizers : [whole]).map(splitting);
  return (piece) => functions.reduce((pieces, step) => pieces.flatMap(step), [piece]);
}

const WORDS_GPT2 = new RegExp(GPT2, "gu");
const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const WORDS = new RegExp(`[${WORD}]+|[^${WORD}\\p{White_Space}]+`, "gu");
const PUNCTUATION = /[\p{P}!-/:-@[-`{-~]/gu;

function splitting(step: Step<PreTokenizer>): (piece: Piece) => Piece[] {
  switch (step.type) {
    case "Whitespace":
      return (piece) => split(piece, WORDS, "Removed", true);
    case "WhitespaceSplit":
      return (piece) => split(piece, /\p{White_Space}/gu, "Removed");
    case "Split": {
      const pattern = expression(step.pattern);
      return (piece) => split(piece, pattern, step.behavior, step.invert);
    }
    case "Digits":
      return (piece) => split(piece, /\p{N}/gu, step.individual_digits === true ? "Isolated" : "Contiguous");
    case "Punctuation":
      return (piece) => split(piece, PUNCTUATION, step.behavior ?? "Isolated");
    case "ByteLevel":
      return ({ text, first }) => {
        const spaced = step.add_prefix_space !== false && !text.startsWith(" ") ? ` ${text}` : text;
        const whole = { text: spaced, first };
        const pieces = step.use_regex === false ? [whole] : split(whole, WORDS_GPT2, "Isolated");
        for (const piece of pieces) piece.text = byteLetters(piece.text);
        return pieces;
      };
    case "Metaspace": {
      const scheme = step.add_prefix_space === false ? "never" : (step.prepend_scheme ?? "always");
      const blank = escaped(step.replacement);
      return ({ text, first }) => {
        let found = text.replaceAll(" ", step.replacement);
        if (!found.startsWith(step.replacement) && (scheme === "always" || (scheme === "first" && first)))
          found = step.replacement + found;
        return step.split === false ? [{ text: found, first }] : split({ text: found, first }, blank, "MergedWithNext");
      };
    }
  }
}

/**
 * Splits a piece at the matches of a pattern. `behavior` decides if a match is removed, becomes a piece or joins the
 * piece before or after it. With `invert`, the texts between matches are treated as the matches, and the other way
 * round.
 */
function split({ text, first }: Piece, pattern: RegExp, behavior: Behavior, invert = false): Piece[] {
  let parts: { text: string; match: boolean }[] = [];
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    if (!found[0]) continue;
    if (found.index > end) parts.push({ text: text.slice(end, found.index), match: invert });
    parts.push({ text: found[0], match: !invert });
    end = found.index + found[0].length;
  }
  if (end < text.length) parts.push({ text: text.slice(end), match: invert });
  if (behavior === "Removed") {
    return parts.filter(({ match }) => !match).map((part) => ({ text: part.text, first: first && part === parts[0] }));
  }
  if (behavior === "MergedWithNext") parts.reverse();
  const joined: typeof parts = [];
  let before = false;
  for (const part of behavior === "Isolated" ? [] : parts) {
    const last = joined.at(-1);
    const joins = behavior === "Contiguous" ? part.match === before : part.match && !before;
    if (last && joins) last.text = behavior === "MergedWithNext" ? part.text + last.text : last.text + part.text;
    else joined.push(part);
    before = part.match;
  }
  if (behavior !== "Isolated") parts = behavior === "MergedWithNext" ? joined.reverse() : joined;
  return parts.map((part, i) => ({ text: part.text, first: first && i === 0 }));
}
