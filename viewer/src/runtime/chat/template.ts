// Converts the messages of a conversation to token ids with the chat template of a model.

import { PageError } from "../gl/errors";
import type { TemplateRenderer } from "./renderer";
import { isUnicode } from "../gl/unicode";

export const ROLES = ["system", "developer", "user", "assistant", "tool"] as const;

/** A tokenizer that encodes special tokens in a text as plain text. */
interface Encoder {
  encodeOrdinary(text: string): number[];
}

export interface ChatMessage {
  role: (typeof ROLES)[number];
  content: string;
  /** Calls of functions. Their arguments are JSON values, as templates expect. */
  tool_calls?: readonly object[];
  /** In a message with the result of a function: id of the call. */
  tool_call_id?: string;
  name?: string;
}

/** The sources of a chat template. */
export interface TemplateSources {
  /** The Jinja template. */
  source: string;
  /** The Jinja template for messages with tools, if it differs. */
  tools?: string;
}

/** A model's chat template, in the form of the manifest. */
export interface ChatTemplateData extends TemplateSources {
  /** Special tokens that the template reads as variables, by the variable's name, such as `bos_token`. */
  named: Record<string, string>;
  /** The id of each special token. Only the template can write special tokens; in messages they are plain text. */
  special: Record<string, number>;
}

// The range of private-use characters. `ids` marks special tokens in messages and tools with a character of this range
// that occurs neither in them nor in the template.
const PRIVATE = [0xe000, 0xf8ff] as const;
const MESSAGE = "\ue000message\ue001"; // placeholder of the user's message in `pieces`
const MAX_CHARACTERS = 1 << 19; // maximum characters of all messages as JSON; the same as on the desktop

/**
 * Returns the templates in a tokenizer_config.json's `chat_template`, which is one template or a list of named
 * templates. Returns null if the default template is missing.
 */
export function templateSources(given: unknown): TemplateSources | null {
  const listed = Array.isArray(given) ? (given as unknown[]) : [{ name: "default", template: given }];
  const named = listed.map((each) => Object(each) as { name?: unknown; template?: unknown });
  const [source, tools] = ["default", "tool_use"].map((name) => {
    const text = named.find((each) => each.name === name)?.template;
    return typeof text === "string" ? text : "";
  });
  if (!source) return null;
  return tools && tools !== source ? { source, tools } : { source };
}

/**
 * Returns copies of messages with only the fields that templates read. For an invalid message, throws a PageError with
 * the message's index. Also throws PageError if the list is empty or has too many characters.
 */
export function checkedMessages(messages: unknown): ChatMessage[] {
  if (!Array.isArray(messages) || !messages.length) {
    throw new PageError("messages must be a list of messages with role and content.");
  }
  const found = messages.map((message: unknown, i) => {
    const { role, content, tool_calls, tool_call_id, name } = Object(message) as Partial<Record<string, unknown>>;
    if (!ROLES.some((known) => known === role)) {
      throw new PageError(`message ${i}: the role is ${JSON.stringify(role)}; it must be one of ${ROLES.join(", ")}.`);
    }
    if (typeof content !== "string") throw new PageError(`message ${i}: the content must be a string.`);
    if (!isUnicode(content)) throw new PageError(`message ${i}: the content is not valid Unicode.`);
    const own = Object.entries({ tool_calls, tool_call_id, name }).filter(([, value]) => value != null);
    return { role, content, ...Object.fromEntries(own) } as ChatMessage;
  });
  const length = JSON.stringify(found).length;
  if (length > MAX_CHARACTERS) {
    throw new PageError(`the messages have ${length} characters; at most ${MAX_CHARACTERS} are supported.`);
  }
  return found;
}

/**
 * A chat template and the tokenizer that encodes the rendered text. The ids are those of transformers'
 * `apply_chat_template`, with one exception: special tokens in the text of messages stay plain text.
 */
export class ChatTemplate {
  private readonly tokens: string[]; // longest first
  private readonly pattern: RegExp;

  constructor(
    private readonly data: ChatTemplateData,
    private readonly vocabulary: Encoder,
    private readonly renderer: Pick<TemplateRenderer, "render" | "close">,
  ) {
    this.tokens = Object.keys(data.special).sort((a, b) => b.length - a.length);
    const escaped = this.tokens.map((text) => text.replace(/[\\^$*+?.()|[\]{}]/g, "\\$&"));
    this.pattern = new RegExp(escaped.join("|") || "(?!)", "g");
  }

  /** True if the source of the template for messages with tools contains this text. */
  mentions(text: string): boolean {
    return this.source(true).includes(text);
  }

  /**
   * Returns the token ids of messages. Unless `answer` is false, the ids end where the assistant's answer begins.
   * `tools`: descriptions of functions, which the template renders.
   */
  async ids(
    messages: readonly ChatMessage[],
    answer = true,
    tools: readonly unknown[] | null = null,
  ): Promise<number[]> {
    const found = checkedMessages(messages);
    const source = this.source(Boolean(tools?.length));
    const used = JSON.stringify([found, tools]) + source;
    let code: number = PRIVATE[0];
    while (used.includes(String.fromCharCode(code))) code++;
    const mark = String.fromCharCode(code);
    const given = this.markedIn({ messages: found, ...(tools ? { tools } : {}) }, mark) as object;
    const variables = { ...this.data.named, ...given, add_generation_prompt: answer };
    const [text] = await this.renderer.render({ source, variables: [variables] });
    return this.encode(text!, mark);
  }

  /**
   * Returns the format of one message of the user, followed by the start of the answer: ids of special tokens, texts,
   * and null for the message. Rejects with PageError unless the template writes the message exactly once.
   */
  async pieces(): Promise<(number | string | null)[]> {
    const messages = [{ role: "user", content: MESSAGE }];
    const variables = { ...this.data.named, messages, add_generation_prompt: true };
    const [text] = await this.renderer.render({ source: this.source(false), variables: [variables] });
    const pieces: (number | string | null)[] = [];
    let start = 0;
    for (const { 0: found, index } of text!.matchAll(new RegExp(`${MESSAGE}|${this.pattern.source}`, "g"))) {
      if (index > start) pieces.push(text!.slice(start, index));
      pieces.push(found === MESSAGE ? null : this.data.special[found]!);
      start = index + found.length;
    }
    if (start < text!.length) pieces.push(text!.slice(start));
    const times = pieces.filter((piece) => piece === null).length;
    if (times !== 1) throw new PageError(`The chat template has the user's message ${times} times instead of once.`);
    return pieces;
  }

  private source(tools: boolean): string {
    return (tools && this.data.tools) || this.data.source;
  }

  /** Ends the worker that renders the template. The worker starts again when needed. */
  close(): void {
    this.renderer.close();
  }

  /** Returns a copy of a JSON value with `mark` before each special token. Marks the content as `marked` does. */
  private markedIn(value: unknown, mark: string, key = ""): unknown {
    if (Array.isArray(value)) return value.map((item) => this.markedIn(item, mark, key));
    if (typeof value === "string") {
      return key === "content" || key === "text" ? this.marked(value, mark) : value.replace(this.pattern, `${mark}$&`);
    }
    if (typeof value !== "object" || value === null) return value;
    const entries = Object.entries(value).map(([name, own]): [string, unknown] => [
      name.replace(this.pattern, `${mark}$&`),
      this.markedIn(own, mark, name),
    ]);
    return Object.fromEntries(entries);
  }

  /**
   * Returns a text with `mark` before each special token, and before a part of a special token at an edge of the text,
   * which the template could complete.
   */
  private marked(content: string, mark: string): string {
    if (!content) return content;
    const text = content.replace(this.pattern, `${mark}$&`);
    let end = 0; // number of last characters that a special token could begin with
    let begins = false; // true if a special token could end with the first characters, or contain the whole text
    for (const token of this.tokens) {
      for (let n = 1; n < token.length; n++) {
        if (n > end && text.endsWith(token.slice(0, n))) end = n;
        begins ||= text.startsWith(token.slice(n)) || token.slice(n).includes(content);
      }
    }
    const ended = end ? text.slice(0, -end) + mark + text.slice(-end) : text;
    return begins ? mark + ended : ended;
  }

  /** Encodes a rendered text without its marks. A special token that follows or contains a mark is plain text. */
  private encode(rendered: string, mark: string): number[] {
    const bare = (text: string) => text.replaceAll(mark, "");
    const written = [...rendered.matchAll(this.pattern)]
      .filter(({ index }) => rendered[index - 1] !== mark)
      .map((match) => ({ at: bare(rendered.slice(0, match.index)).length, token: match[0] }));
    const text = bare(rendered);
    const parts: number[][] = [];
    let start = 0;
    for (const { at, token } of written) {
      parts.push(this.vocabulary.encodeOrdinary(text.slice(start, at)), [this.data.special[token]!]);
      start = at + token.length;
    }
    return [...parts, this.vocabulary.encodeOrdinary(text.slice(start))].flat();
  }
}
