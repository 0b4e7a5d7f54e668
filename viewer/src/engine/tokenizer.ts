// Text to ids and back: js-tiktoken's engine with the exported ranks; same ids as the desktop.

import { Tiktoken } from "js-tiktoken/lite";
import type { TokenizerData } from "./manifest";
import { PageError } from "../gl/errors";
import { fromBase64 } from "./base64";

const SHOWN: Record<string, string> = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** What a model's text is made of. */
export abstract class Vocabulary {
  /** The ids of a text. */
  abstract encode(text: string): number[];
  abstract tokenBytes(id: number): Uint8Array;

  /** The ids of a prompt. */
  prompt(text: string): number[] {
    return this.encode(text);
  }

  decode(ids: Iterable<number>): string {
    const decoder = this.stream();
    let text = "";
    for (const id of ids) text += decoder.push(id);
    return text + decoder.flush();
  }

  /** Decodes ids as they come: a character appears once its last byte has. */
  stream(): { push(id: number): string; flush(): string } {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return {
      push: (id) => decoder.decode(this.tokenBytes(id), { stream: true }),
      flush: () => decoder.decode(),
    };
  }

  /** A short printable text for a label: blanks as `·`, a newline as `⏎`, stray bytes as `\xe2`. */
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

export class Tokenizer extends Vocabulary {
  private readonly engine: Tiktoken;
  private readonly bytes = new Map<number, Uint8Array>();
  private readonly specials: RegExp | null;

  constructor(private readonly data: TokenizerData) {
    super();
    this.engine = new Tiktoken({ pat_str: data.pattern, special_tokens: {}, bpe_ranks: `! 0 ${data.ranks}` });
    data.ranks.split(" ").forEach((token, rank) => {
      const id = data.ids ? (data.ids[rank] ?? -1) : rank;
      if (id >= 0) this.bytes.set(id, fromBase64(token));
    });
    for (const [id, token] of Object.entries(data.others)) this.bytes.set(Number(id), fromBase64(token));
    const longestFirst = Object.keys(data.special).sort((a, b) => b.length - a.length);
    const escaped = longestFirst.map((text) => text.replace(/[\\^$*+?.()|[\]{}]/g, "\\$&"));
    this.specials = escaped.length ? new RegExp(escaped.join("|"), "g") : null;
  }

  /** The ids of a prompt: those of a text between the special tokens that the tokenizer puts around one. */
  override prompt(text: string): number[] {
    return [...this.data.prefix, ...this.encode(text), ...this.data.suffix];
  }

  /** The ids of a text; special tokens written out in it become their one id. */
  encode(text: string): number[] {
    const ids: number[] = [];
    let start = 0;
    for (const match of this.specials ? text.matchAll(this.specials) : []) {
      ids.push(...this.ordinary(text.slice(start, match.index)), this.data.special[match[0]]!);
      start = match.index + match[0].length;
    }
    ids.push(...this.ordinary(text.slice(start)));
    return ids;
  }

  private ordinary(text: string): number[] {
    if (!text) return [];
    if (this.data.prefix_space && !text.startsWith(" ")) text = " " + text;
    return this.engine.encode(text, [], []).map((rank) => {
      const id = this.data.ids ? (this.data.ids[rank] ?? -1) : rank;
      if (id < 0) throw new PageError("The model's vocabulary lacks a character of this text.");
      return id;
    });
  }

  tokenBytes(id: number): Uint8Array {
    return this.bytes.get(id) ?? new Uint8Array();
  }
}
