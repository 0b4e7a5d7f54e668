// Converts text to ids and back by the exported ranks, with the same ids as the desktop.

import { damaged as damagedFile, type TokenizerData } from "./manifest";
import { PageError, reason } from "../gl/errors";
import { fromBase64 } from "./base64";
import { merge } from "./merging";

const SHOWN: Record<string, string> = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** Converts between text and a model's token ids. */
export abstract class Vocabulary {
  /** Returns the ids of a text. */
  abstract encode(text: string): number[];
  abstract tokenBytes(id: number): Uint8Array;

  /** Returns the ids of a prompt. */
  prompt(text: string): number[] {
    return this.encode(text);
  }

  /** Returns the ids of a text, with special tokens encoded as plain text. */
  encodeOrdinary(text: string): number[] {
    return this.encode(text);
  }

  /** Returns the ids of a chat turn. Its pieces are ids of special tokens, texts, and null for the message. */
  turn(pieces: readonly (number | string | null)[], message: string): number[] {
    const ids: number[] = [];
    let text = "";
    for (const piece of pieces) {
      if (typeof piece === "number") {
        ids.push(...this.encodeOrdinary(text), piece);
        text = "";
      } else text += piece ?? message;
    }
    return [...ids, ...this.encodeOrdinary(text)];
  }

  decode(ids: Iterable<number>): string {
    const decoder = this.stream();
    let text = "";
    for (const id of ids) text += decoder.push(id);
    return text + decoder.flush();
  }

  /** Returns a streaming decoder. It returns a character once its last byte has arrived. */
  stream(): { push(id: number): string; flush(): string } {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return {
      push: (id) => decoder.decode(this.tokenBytes(id), { stream: true }),
      flush: () => decoder.decode(),
    };
  }

  /** Returns a short printable label: a blank as `·`, a newline as `⏎`, incomplete UTF-8 as `\xe2`. */
  label(id: number): string {
    const bytes = this.tokenBytes(id);
    if (!bytes.length) return `[${id}]`;
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
      return Array.from(text, (c) => SHOWN[c] ?? c).join("");
    } catch {
      return Array.from(bytes, (b) => (b < 0x80 ? String.fromCharCode(b) : `\\x${b.toString(16)}`)).join("");
    }
  }
}

const damaged = (why: string) => damagedFile("tokenizer.json", why);

/** Throws PageError for a split pattern that this browser does not support. */
function checkPattern(pattern: string): void {
  try {
    new RegExp(pattern, "ug");
  } catch (error) {
    throw damaged(`its split pattern is not a regular expression that this browser supports (${reason(error)})`);
  }
}

const MAX_RUN = 400_000; // characters; the same as on the desktop (glgpt.text.runs)
const PAIR = 2 ** 22; // greater than any rank
const MAX_PAIRS = 2 ** 20; // maximum entries of the cache of pairs
const BLANK = /^\p{White_Space}$/u;

/** Splits a text within each run of blanks, or of other characters, after every `most` characters of the run. */
export function parts(text: string, most = MAX_RUN): string[] {
  if (text.length <= most) return [text];
  const found: string[] = [];
  let start = 0;
  let at = 0;
  let length = 0;
  let blanks: boolean | null = null;
  for (const char of text) {
    const blank = BLANK.test(char);
    if (blank !== blanks) length = 0;
    blanks = blank;
    if (length === most) {
      found.push(text.slice(start, at));
      start = at;
      length = 0;
    }
    length++;
    at += char.length;
  }
  return [...found, text.slice(start)];
}

export class Tokenizer extends Vocabulary {
  private readonly words: RegExp;
  private readonly specials: RegExp | null;
  private readonly encoder = new TextEncoder();
  /** The bytes of each rank's token, as characters up to 0xff, and the rank of each token. */
  private readonly tokens: string[];
  private readonly ranks: Map<string, number>;
  private readonly longest: number;
  /** Cache of the rank of each merged pair of ranks; -1: none. */
  private readonly pairs = new Map<number, number>();
  /** The rank of each id, and the bytes of ids without a rank. */
  private readonly rankOf = new Map<number, number>();
  private readonly others = new Map<number, Uint8Array>();

  /** Throws PageError for invalid data. */
  constructor(private readonly data: TokenizerData) {
    super();
    checkPattern(data.pattern);
    this.words = new RegExp(data.pattern, "gu");
    const tokens = data.ranks.split(" ");
    if (data.ids && data.ids.length !== tokens.length) {
      throw damaged(`it has ${data.ids.length} ids for ${tokens.length} tokens`);
    }
    try {
      this.tokens = tokens.map((token) => atob(token));
      for (const [id, token] of Object.entries(data.others)) this.others.set(Number(id), fromBase64(token));
    } catch (error) {
      throw damaged(`a token is not base64 (${reason(error)})`);
    }
    this.ranks = new Map(this.tokens.map((token, rank) => [token, rank]));
    this.longest = this.tokens.reduce((most, token) => Math.max(most, token.length), 0);
    for (const rank of this.tokens.keys()) if (this.id(rank) >= 0) this.rankOf.set(this.id(rank), rank);
    const longestFirst = Object.keys(data.special).sort((a, b) => b.length - a.length);
    const escaped = longestFirst.map((text) => text.replace(/[\\^$*+?.()|[\]{}]/g, "\\$&"));
    this.specials = escaped.length ? new RegExp(escaped.join("|"), "g") : null;
  }

  /** Returns the id of a rank; -1: none. */
  private id(rank: number): number {
    return this.data.ids ? (this.data.ids[rank] ?? -1) : rank;
  }

  /** Returns the ids of a prompt, including the special tokens that the tokenizer adds before and after it. */
  override prompt(text: string): number[] {
    return [...this.data.prefix, ...this.encode(text), ...this.data.suffix];
  }

  /** Returns the ids of a text. A special token written in the text becomes its single id. */
  encode(text: string): number[] {
    const ids: number[] = [];
    let start = 0;
    for (const match of this.specials ? text.matchAll(this.specials) : []) {
      this.ordinary(text.slice(start, match.index), ids);
      ids.push(this.data.special[match[0]]!);
      start = match.index + match[0].length;
    }
    this.ordinary(text.slice(start), ids);
    return ids;
  }

  override encodeOrdinary(text: string): number[] {
    const ids: number[] = [];
    this.ordinary(text, ids);
    return ids;
  }

  /** Appends the ids of a text without special tokens. */
  private ordinary(text: string, ids: number[]): void {
    if (!text) return;
    if (this.data.prefix_space && !text.startsWith(" ")) text = " " + text;
    for (const part of parts(text)) {
      for (const [word] of part.matchAll(this.words)) {
        for (const rank of this.encodeWord(word)) {
          const id = this.id(rank);
          if (id < 0) throw new PageError("The model's vocabulary lacks a character of this text.");
          ids.push(id);
        }
      }
    }
  }

  private encodeWord(word: string): readonly number[] {
    const bytes = this.encoder.encode(word);
    const whole = bytes.length <= this.longest ? this.ranks.get(String.fromCharCode(...bytes)) : undefined;
    if (whole !== undefined) return [whole];
    const letters = Array.from(bytes, (byte) => this.ranks.get(String.fromCharCode(byte))!);
    return merge(
      letters,
      (left, right) => this.pair(left, right),
      (rank) => rank,
    );
  }

  /** Returns the rank of the merged pair; -1: none. */
  private pair(left: number, right: number): number {
    const key = left * PAIR + right;
    let rank = this.pairs.get(key);
    if (rank === undefined) {
      const [a, b] = [this.tokens[left]!, this.tokens[right]!];
      rank = a.length + b.length <= this.longest ? (this.ranks.get(a + b) ?? -1) : -1;
      if (this.pairs.size >= MAX_PAIRS) this.pairs.clear();
      this.pairs.set(key, rank);
    }
    return rank;
  }

  tokenBytes(id: number): Uint8Array {
    const rank = this.rankOf.get(id);
    if (rank === undefined) return this.others.get(id) ?? new Uint8Array();
    return Uint8Array.from(this.tokens[rank]!, (byte) => byte.charCodeAt(0));
  }
}
