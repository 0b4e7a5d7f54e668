// Converts text to ids and back as tokenizer.json specifies, with the same ids as the desktop.

import { MAX_IDS, MAX_RUN } from "../generated/patterns";
import type { TokenizerSchema } from "../generated/tokenizer";
import type { TokenizerFiles } from "../gguf/tokenizer";
import { PageError, reason } from "../gl/errors";
import { LETTERS } from "./byte-letters";
import { damaged as damagedFile } from "./manifest";
import { merge } from "./merging";
import { normalizer, preTokenizer, type Piece } from "./tokenizer-steps";

const SHOWN: Record<string, string> = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** Converts between text and a model's token ids. */
export abstract class Vocabulary {
  /** Returns the ids of a text. */
  abstract encode(text: string): number[];
  abstract tokenBytes(id: number): Uint8Array;

  /** True for a token that is not text, such as one that ends a turn. */
  abstract isSpecial(id: number): boolean;

  /** Returns the ids of a prompt. */
  prompt(text: string): number[] {
    return this.encode(text);
  }

  /** Returns the ids of a text, with special tokens encoded as plain text. */
  encodeOrdinary(text: string): number[] {
    return this.encode(text);
  }

  /** Returns the ids of a chat turn. `pieces` holds ids of special tokens, texts, and null for the message. */
  turn(pieces: readonly (number | string | null)[], message: string): number[] {
    const parts: number[][] = [];
    let text = "";
    for (const piece of pieces) {
      if (typeof piece === "number") {
        parts.push(this.encodeOrdinary(text), [piece]);
        text = "";
      } else text += piece ?? message;
    }
    return [...parts, this.encodeOrdinary(text)].flat();
  }

  decode(ids: Iterable<number>): string {
    const decoder = this.stream();
    let text = "";
    for (const id of ids) text += decoder.push(id);
    return text + decoder.flush();
  }

  /** Returns a streaming decoder. `push` returns a character once its last byte has arrived. */
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

const PAIR = MAX_IDS; // greater than any id
const BLANK = /^\p{White_Space}$/u;

/** Splits long runs: a run of blanks, or of other characters, is split after every `most` characters. */
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

interface Added {
  id: number;
  special: boolean;
  single: boolean;
  left: boolean;
  right: boolean;
}

/** Finds the tokens of the list `added_tokens` in a text. Of several such tokens at one position, finds the longest. */
class AddedTokens {
  private readonly tokens = new Map<string, Added>();
  private readonly pattern: RegExp | null;

  constructor(tokens: readonly TokenizerSchema["added_tokens"][number][], key: (content: string) => string) {
    for (const { content, id, special, single_word, lstrip, rstrip } of tokens) {
      const flags = { special: special === true, single: single_word === true };
      if (key(content)) this.tokens.set(key(content), { id, ...flags, left: lstrip === true, right: rstrip === true });
    }
    const longestFirst = [...this.tokens.keys()].sort((a, b) => b.length - a.length);
    const escaped = longestFirst.map((text) => text.replace(/[\\^$*+?.()|[\]{}]/g, "\\$&"));
    this.pattern = escaped.length ? new RegExp(escaped.join("|"), "g") : null;
  }

  /** Returns the ids of added tokens in a text and the pieces between them. If `ordinary`, ignores special tokens. */
  split({ text, first }: Piece, ordinary: boolean): (number | Piece)[] {
    const found: (number | Piece)[] = [];
    let start = 0;
    for (const match of this.pattern ? text.matchAll(this.pattern) : []) {
      const token = this.tokens.get(match[0])!;
      let [from, to] = [match.index, match.index + match[0].length];
      if (ordinary && token.special) continue;
      if (
        token.single &&
        (LAST_WORD.test(text.slice(Math.max(0, from - 2), from)) || FIRST_WORD.test(text.slice(to, to + 2)))
      )
        continue;
      if (token.left) while (from > start && BLANK.test(text[from - 1]!)) from--;
      if (token.right) while (to < text.length && BLANK.test(text[to]!)) to++;
      if (from > start) found.push({ text: text.slice(start, from), first: first && start === 0 });
      found.push(token.id);
      start = to;
    }
    if (start < text.length) found.push({ text: text.slice(start), first: first && start === 0 });
    return found;
  }
}

const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
const [FIRST_WORD, LAST_WORD] = [new RegExp(`^${WORD}`, "u"), new RegExp(`${WORD}$`, "u")];
const BYTE = /^<0x([0-9A-F]{2})>$/;

/** Returns a function that returns a token's bytes as `data.decoder` defines; without a decoder, \u2581 is a blank. */
function decoding(data: TokenizerSchema): (token: string) => Uint8Array {
  const { decoder } = data;
  const parts = !decoder ? [] : decoder.type === "Sequence" ? decoder.decoders : [decoder];
  const before = data.pre_tokenizer;
  const splits = !before ? [] : before.type === "Sequence" ? before.pretokenizers : [before];
  const kinds = new Set<string>((parts.length ? parts : splits).map(({ type }) => type));
  const single = data.model.byte_fallback === true || kinds.has("ByteFallback");
  const texts: [string, string][] = parts.length ? [] : [["\u2581", " "]];
  for (const part of parts) {
    if (part.type === "Replace") texts.push([part.pattern.String, part.content]);
    if (part.type === "Metaspace") texts.push([part.replacement, " "]);
  }
  const encoder = new TextEncoder();
  return (token) => {
    if (kinds.has("ByteLevel")) {
      const bytes = Array.from(token, (letter) => LETTER_BYTE.get(letter));
      return bytes.every((byte) => byte !== undefined) ? Uint8Array.from(bytes) : encoder.encode(token);
    }
    const byte = single ? BYTE.exec(token) : null;
    if (byte) return Uint8Array.of(parseInt(byte[1]!, 16));
    return encoder.encode(texts.reduce((text, [from, to]) => text.replaceAll(from, to), token));
  };
}

const LETTER_BYTE = new Map(LETTERS.map((letter, byte) => [letter, byte]));

/** Converts a tokenizer.json, with the special tokens by role (see gguf/tokenizer.ts), to the page's format. */
export function tokenizerData({ document, roles }: Pick<TokenizerFiles, "document" | "roles">): TokenizerSchema {
  const { vocab } = document.model;
  const known = new Set(document.added_tokens.map(({ content }) => content));
  const named = [...new Set(Object.values(roles))].filter((token) => !known.has(token));
  const others = named.map((content) => ({ id: vocab[content]!, content, special: true, normalized: false }));
  const around: [number[], number[]] = [[], []];
  const template = document.post_processor;
  let side = 0;
  for (const piece of template?.single ?? []) {
    if ("SpecialToken" in piece) around[side]!.push(...template!.special_tokens[piece.SpecialToken.id]!.ids);
    else side = 1;
  }
  return {
    schema: 3,
    ...document,
    added_tokens: [...document.added_tokens, ...others],
    prefix: around[0],
    suffix: around[1],
    vocab_size: 1 + Object.values(vocab).reduce((most, id) => Math.max(most, id), 0),
  };
}

export class Tokenizer extends Vocabulary {
  private readonly vocab: ReadonlyMap<string, number>;
  private readonly tokens = new Map<number, string>();
  private readonly bytesOf: (token: string) => Uint8Array;
  /** The bytes of added tokens, and of other tokens after their first use. */
  private readonly bytes = new Map<number, Uint8Array>();
  /** The rank of each merge, by `left * PAIR + right`. */
  private readonly ranks = new Map<number, number>();
  /** For each rank, the id that the merge makes. */
  private readonly made: number[] = [];
  private readonly raw: AddedTokens;
  private readonly normalized: AddedTokens;
  private readonly normalize: (text: string) => string;
  private readonly split: (piece: Piece) => Piece[];
  private readonly unknown: number | null;
  private readonly special: ReadonlySet<number>;

  /** Throws PageError for invalid data. */
  constructor(private readonly data: TokenizerSchema) {
    super();
    const { model, added_tokens: added } = data;
    const { vocab, unk_token: unknown } = model;
    this.vocab = new Map(Object.entries(vocab));
    for (const [token, id] of this.vocab) {
      const valid = Number.isInteger(id) && id >= 0 && id < MAX_IDS;
      if (!valid) throw damaged("its vocabulary does not map tokens to ids");
      this.tokens.set(id, token);
    }
    if (this.tokens.size < this.vocab.size) throw damaged("two tokens have the same id");
    this.bytesOf = decoding(data);
    // the decoder applies to added tokens that are not special, such as runs of blanks
    for (const { id, content, special } of added)
      this.bytes.set(id, special === true ? new TextEncoder().encode(content) : this.bytesOf(content));
    this.special = new Set(added.filter(({ special }) => special === true).map(({ id }) => id));
    for (const merge of model.merges) this.learn(merge);
    if (unknown && !this.vocab.has(unknown)) throw damaged(`its vocabulary lacks ${JSON.stringify(unknown)}`);
    this.unknown = unknown ? this.vocab.get(unknown)! : null;
    try {
      this.normalize = normalizer(data.normalizer);
      this.split = preTokenizer(data.pre_tokenizer);
    } catch (error) {
      throw damaged(reason(error));
    }
    const isRaw = ({ normalized }: { normalized?: boolean }) => normalized !== true || !data.normalizer;
    this.raw = new AddedTokens(added.filter(isRaw), (text) => text);
    this.normalized = new AddedTokens(
      added.filter((token) => !isRaw(token)),
      this.normalize,
    );
  }

  private learn(merge: unknown): void {
    const pair: unknown[] = typeof merge === "string" ? merge.split(" ") : Array.isArray(merge) ? merge : [];
    const [first, second] = pair as string[]; // a value that is not a string is not found in the map
    const [left, right] = [this.vocab.get(first!), this.vocab.get(second!)];
    const made = this.vocab.get(`${first}${second}`);
    if (pair.length !== 2 || left === undefined || right === undefined || made === undefined) {
      const shown = JSON.stringify(merge).slice(0, 80);
      throw damaged(`the merge ${shown} is not a pair of tokens, or needs a token that the vocabulary lacks`);
    }
    this.ranks.set(left * PAIR + right, this.made.push(made) - 1);
  }

  /** Returns the ids of a prompt, including the special tokens that the tokenizer adds before and after a text. */
  override prompt(text: string): number[] {
    return [...this.data.prefix, ...this.encode(text), ...this.data.suffix];
  }

  /** Returns the ids of a text. If `ordinary`, special tokens in the text are encoded as plain text. */
  encode(text: string, ordinary = false): number[] {
    const ids: number[] = [];
    for (const section of this.raw.split({ text, first: true }, ordinary)) {
      if (typeof section === "number") ids.push(section);
      else {
        const piece = { text: this.normalize(section.text), first: section.first };
        for (const part of this.normalized.split(piece, ordinary)) {
          if (typeof part === "number") ids.push(part);
          else this.ordinary(part, ids);
        }
      }
    }
    return ids;
  }

  override encodeOrdinary(text: string): number[] {
    return this.encode(text, true);
  }

  /** Appends the ids of a piece that contains no added tokens to `ids`. */
  private ordinary({ text, first }: Piece, ids: number[]): void {
    for (const part of parts(text)) {
      for (const word of this.split({ text: part, first })) {
        const whole = this.data.model.ignore_merges === true ? this.vocab.get(word.text) : undefined;
        if (whole !== undefined) ids.push(whole);
        else {
          const merged = merge(
            this.letters(word.text),
            (left, right) => this.ranks.get(left * PAIR + right) ?? -1,
            (rank) => this.made[rank]!,
          );
          for (const id of merged) ids.push(id);
        }
      }
      first = false;
    }
  }

  /**
   * Returns the ids of a word's characters. For a character without an id, returns the ids of its bytes, or else that
   * of the unknown token. Throws PageError if the vocabulary has none of these.
   */
  private letters(word: string): number[] {
    const found: number[] = [];
    let unknown = 0; // unknown characters whose token is not yet in `found`
    const flush = () => {
      if (unknown) found.push(this.unknown!);
      unknown = 0;
    };
    for (const letter of word) {
      const id = this.vocab.get(letter);
      if (id !== undefined) {
        flush();
        found.push(id);
        continue;
      }
      if (this.data.model.byte_fallback === true) {
        const bytes = Array.from(this.encoder.encode(letter), (byte) => this.vocab.get(byteToken(byte)));
        if (bytes.every((byte) => byte !== undefined)) {
          found.push(...bytes);
          continue;
        }
      }
      if (this.unknown === null) throw new PageError("The model's vocabulary lacks a character of this text.");
      if (this.data.model.fuse_unk !== true) flush();
      unknown++;
    }
    flush();
    return found;
  }

  private readonly encoder = new TextEncoder();

  override isSpecial(id: number): boolean {
    return this.special.has(id);
  }

  tokenBytes(id: number): Uint8Array {
    let bytes = this.bytes.get(id);
    if (!bytes) {
      const token = this.tokens.get(id);
      bytes = token === undefined ? new Uint8Array() : this.bytesOf(token);
      this.bytes.set(id, bytes);
    }
    return bytes;
  }
}

const byteToken = (byte: number) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
