// Converts the metadata `tokenizer.ggml.*` of a GGUF file to the files of a Hugging Face tokenizer, as
// glgpt/gguf/tokenizer_files.py does.

import type { AddedId, Back, Prepend, Replace, Template, TokenizerSchema } from "../generated/tokenizer";
import * as gguf from "../generated/gguf-tokenizers";
import { PageError } from "../gl/errors";

/** The metadata of a GGUF file by key. An array holds strings, or numbers of any type. */
export interface Metadata {
  get(key: string): unknown;
}

/** The object of a tokenizer.json with a BPE model. */
export interface TokenizerDocument extends Pick<
  TokenizerSchema,
  "added_tokens" | "normalizer" | "pre_tokenizer" | "decoder" | "model"
> {
  version: string;
  post_processor: Template | null;
}

/** The tokenizer of a GGUF file. */
export interface TokenizerFiles {
  /** The object of tokenizer.json. */
  document: TokenizerDocument;
  /** Special tokens by role, such as `eos_token`. */
  roles: Record<string, string>;
  /** The ids that end a text or a message. */
  ends: number[];
  /** The chat template; null: none. */
  template: string | null;
}

type Parts = Pick<TokenizerDocument, "normalizer" | "pre_tokenizer" | "decoder" | "model">;

/**
 * Returns the tokenizer of a GGUF file; null if the file has none. Supports byte-level BPE and SentencePiece's BPE. For
 * another kind, or an unknown pre-tokenizer, throws a PageError that names the file.
 */
export function tokenizerFiles(metadata: Metadata, name: string): TokenizerFiles | null {
  const kind = metadata.get(`${PREFIX}model`) ?? "none";
  if (kind === "none" || kind === "no_vocab") return null;
  const tokens = metadata.get(`${PREFIX}tokens`);
  if (!isTexts(tokens)) throw new PageError(`${name}: ${PREFIX}tokens is not a list of strings`);
  if (kind !== "gpt2" && kind !== "llama")
    throw new PageError(`${name}: the tokenizer is of kind ${shown(kind)}; this page reads "gpt2" and "llama"`);
  const vocab = new Map(tokens.map((token, id) => [token, id]));
  if (vocab.size < tokens.length) {
    const twice = tokens.find((token, id) => vocab.get(token) !== id);
    throw new PageError(`${name}: ${PREFIX}tokens has ${shown(twice)} twice`);
  }
  const reader = new Reader(metadata, name, tokens, vocab);
  const parts = kind === "gpt2" ? reader.byteLevel() : reader.sentencePiece();
  const roles = reader.roles();
  const document = {
    version: "1.0",
    added_tokens: reader.added(),
    post_processor: reader.template(kind === "llama", roles),
    ...parts,
  };
  const template = metadata.get("tokenizer.chat_template");
  return {
    document,
    roles: Object.fromEntries([...roles].map(([role, token]) => [`${role}_token`, token])),
    ends: reader.ends(),
    template: typeof template === "string" ? template : null,
  };
}

const PREFIX = "tokenizer.ggml.";
const SPECIAL = new Map<number, boolean>([
  [gguf.CONTROL, true],
  [gguf.UNKNOWN, true],
  [gguf.USER_DEFINED, false],
]);
const [BYTE_LEVEL] = gguf.STEPS[gguf.PRE_TOKENIZERS["gpt-2"]];

class Reader {
  private readonly types: ArrayLike<number>;

  constructor(
    private readonly metadata: Metadata,
    private readonly name: string,
    private readonly tokens: readonly string[],
    private readonly vocab: ReadonlyMap<string, number>,
  ) {
    const types = this.get("token_type");
    const integers = isNumbers(types) && types.length === tokens.length && every(types, Number.isInteger);
    if (types !== undefined && !integers) throw this.problem("token_type", "integers");
    this.types = integers ? types : new Uint8Array(tokens.length).fill(gguf.NORMAL);
  }

  private get(key: string): unknown {
    return this.metadata.get(PREFIX + key);
  }

  private problem(key: string, what: string): PageError {
    return new PageError(`${this.name}: ${PREFIX}${key} is not a list of ${this.tokens.length} ${what}`);
  }

  /** Returns the id of a role's special token; null: none. Throws PageError if the vocabulary lacks the id. */
  private id(role: string): number | null {
    const value = this.get(`${role}_token_id`);
    if (value === undefined || value === gguf.NO_TOKEN || value === BigInt(gguf.NO_TOKEN)) return null;
    const id = typeof value === "bigint" ? Number(value) : value;
    if (typeof id === "number" && Number.isInteger(id) && id >= 0 && id < this.tokens.length) return id;
    const most = this.tokens.length - 1;
    throw new PageError(`${this.name}: ${PREFIX}${role}_token_id is ${shown(value)}, not 0 to ${most}`);
  }

  /** Returns the special tokens by role. */
  roles(): Map<string, string> {
    const found = new Map<string, string>();
    for (const [role, short] of Object.entries(gguf.ROLES)) {
      const id = this.id(role);
      if (id !== null) found.set(short, this.tokens[id]!);
    }
    return found;
  }

  ends(): number[] {
    const ids = ["eos", "eot", "eom"].map((role) => this.id(role)).filter((id) => id !== null);
    const named = gguf.ENDS.map((text) => this.vocab.get(text)).filter((id) => id !== undefined);
    return [...new Set([...ids, ...named.filter((id) => this.types[id] === gguf.CONTROL)])];
  }

  added(): AddedId[] {
    const found: AddedId[] = [];
    this.tokens.forEach((content, id) => {
      const special = SPECIAL.get(this.types[id]!);
      if (special !== undefined && content) found.push({ id, content, special, normalized: false });
    });
    return found;
  }

  private pre(): string {
    const pre = this.get("pre") ?? "default";
    if (typeof pre !== "string") throw new PageError(`${this.name}: ${PREFIX}pre is ${shown(pre)}, not a string`);
    return pre;
  }

  /** Returns the post-processor that adds special tokens around a text; null if it would add none. */
  template(sentencePiece: boolean, roles: ReadonlyMap<string, string>): Template | null {
    const begins = sentencePiece || isWhole(this.pre());
    const wanted = { bos: this.get("add_bos_token") ?? begins, eos: this.get("add_eos_token") ?? false };
    const [first, last] = (["bos", "eos"] as const).map((role) => {
      const token = roles.get(role);
      return wanted[role] === true && token !== undefined ? [token] : [];
    });
    if (!first?.length && !last?.length) return null;
    const piece = (id: string) => ({ SpecialToken: { id, type_id: 0 } });
    const text = { Sequence: { id: "A" as const, type_id: 0 } };
    const around = [...first!, ...last!];
    const found = {
      type: "TemplateProcessing" as const,
      single: [...first!.map(piece), text, ...last!.map(piece)],
      pair: [],
      special_tokens: Object.fromEntries(around.map((id) => [id, { id, ids: [this.vocab.get(id)!], tokens: [id] }])),
    };
    return found;
  }

  /** Returns the model of a byte-level BPE, with its normalizer, pre-tokenizer and decoder. */
  byteLevel(): Parts {
    const merges = this.get("merges");
    if (!isTexts(merges)) throw new PageError(`${this.name}: ${PREFIX}merges is not a list of strings`);
    const pre = this.pre();
    if (!Object.hasOwn(gguf.PRE_TOKENIZERS, pre)) {
      const known = Object.keys(gguf.PRE_TOKENIZERS).join(", ");
      throw new PageError(`${this.name}: the pre-tokenizer ${shown(pre)} is not supported; supported are ${known}`);
    }
    const steps = gguf.STEPS[gguf.PRE_TOKENIZERS[pre as keyof typeof gguf.PRE_TOKENIZERS]];
    return {
      normalizer: (gguf.NORMALIZERS as Partial<Record<string, { type: "NFC" }>>)[pre] ?? null,
      pre_tokenizer: steps.length > 1 ? { type: "Sequence", pretokenizers: steps } : steps[0],
      decoder: BYTE_LEVEL,
      model: { type: "BPE", vocab: Object.fromEntries(this.vocab), merges, ignore_merges: isWhole(pre) },
    };
  }

  /** Returns the model of a SentencePiece BPE, with its normalizer and decoder. Token scores determine the merges. */
  sentencePiece(): Parts {
    const scores = this.get("scores");
    if (!isNumbers(scores) || scores.length !== this.tokens.length || !every(scores, Number.isFinite))
      throw this.problem("scores", "numbers");
    const lengths = this.tokens.map((token) => Array.from(token).length);
    if (lengths.some((length) => length > gguf.MAX_TOKEN) || lengths.reduce((a, b) => a + b, 0) > gguf.MAX_CHARACTERS)
      throw new PageError(
        `${this.name}: the vocabulary has tokens that are too long; at most ${gguf.MAX_TOKEN} characters`,
      );
    const merges = this.merges(scores);
    const blank: Replace = { type: "Replace", pattern: { String: " " }, content: gguf.BLANK };
    const space: Back = { type: "Replace", pattern: { String: gguf.BLANK }, content: " " };
    const spaced = (this.get("add_space_prefix") ?? true) === true;
    const prepend: Prepend[] = spaced ? [{ type: "Prepend", prepend: gguf.BLANK }] : [];
    const unknown = this.id("unknown");
    return {
      normalizer: { type: "Sequence", normalizers: [...prepend, blank] },
      pre_tokenizer: null,
      decoder: { type: "Sequence", decoders: [space, { type: "ByteFallback" }, { type: "Fuse" }] },
      model: {
        type: "BPE",
        vocab: Object.fromEntries(this.vocab),
        merges,
        byte_fallback: true,
        fuse_unk: true,
        unk_token: unknown === null ? null : this.tokens[unknown]!,
      },
    };
  }

  /**
   * Returns the pairs of tokens that merge into another token. The pairs are sorted by the score of the merged token,
   * highest first; at equal scores, by the id of the merged token and then by the ids of the pair.
   */
  private merges(scores: ArrayLike<number>): [string, string][] {
    const ordinary = (token: string): number | null => {
      const id = this.vocab.get(token);
      const type = id === undefined ? undefined : this.types[id];
      return id !== undefined && (type === gguf.NORMAL || type === gguf.USER_DEFINED) ? id : null;
    };
    const found: { score: number; pair: [string, string] }[] = [];
    this.tokens.forEach((token, id) => {
      if (ordinary(token) === null) return;
      const pairs: { left: number; right: number; pair: [string, string] }[] = [];
      let at = 0;
      for (const char of token) {
        at += char.length;
        const pair: [string, string] = [token.slice(0, at), token.slice(at)];
        const left = ordinary(pair[0]);
        const right = left === null || !pair[1] ? null : ordinary(pair[1]);
        if (left !== null && right !== null) pairs.push({ left, right, pair });
      }
      pairs.sort((a, b) => a.left - b.left || a.right - b.right);
      for (const { pair } of pairs) found.push({ score: scores[id]!, pair });
      if (found.length > gguf.MAX_MERGES)
        throw new PageError(`${this.name}: the tokens can be merged in more than ${gguf.MAX_MERGES} ways`);
    });
    return found.sort((a, b) => b.score - a.score).map(({ pair }) => pair);
  }
}

const isWhole = (pre: string) => (gguf.WHOLE_WORDS as readonly string[]).includes(pre);

const isTexts = (value: unknown): value is string[] =>
  Array.isArray(value) && value.every((each) => typeof each === "string");

function isNumbers(value: unknown): value is ArrayLike<number> {
  if (Array.isArray(value)) return value.every((each) => typeof each === "number");
  return (
    ArrayBuffer.isView(value) &&
    !(value instanceof DataView) &&
    !(value instanceof BigInt64Array || value instanceof BigUint64Array)
  );
}

function every(values: ArrayLike<number>, holds: (value: number) => boolean): boolean {
  for (let i = 0; i < values.length; i++) if (!holds(values[i]!)) return false;
  return true;
}

/** Returns a value of any kind as one short line. */
function shown(value: unknown): string {
  const text = typeof value === "string" ? JSON.stringify(value.slice(0, 80)) : String(value).slice(0, 80);
  return text.replace(/[^\P{C} ]/gu, "?");
}
