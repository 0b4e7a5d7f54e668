// Gives a model the interface of the browser's Prompt API (https://github.com/webmachinelearning/prompt-api), for pages
// that use this API in browsers without a model.

import type { Glgpt } from "./api";
import { systems } from "./runtime/chat/context";
import { ConstraintError, type Constraint } from "./runtime/constraints/constraint";
import { checkedMessages, type ChatMessage } from "./runtime/chat/template";
import { PageError } from "./runtime/gl/errors";
import { Queue } from "./runtime/gl/wait";
import { samplingDefaults } from "./runtime/engine/sampling-defaults";

/** A message of the user as text, or a list of messages. */
export type PromptInput =
  string | readonly { role: string; content: string | readonly PromptPart[]; prefix?: boolean }[];

interface PromptPart {
  type: string;
  value?: unknown;
}

export interface LanguageModelOptions {
  initialPrompts?: PromptInput;
  temperature?: number;
  topK?: number;
  /** Guess tokens and check several at once, like the option `speculate` of `glgpt.generate`. */
  speculate?: boolean;
  signal?: AbortSignal;
}

export interface PromptOptions {
  signal?: AbortSignal;
  /**
   * A JSON schema or regular expression that the whole answer must match. If the constraint cannot be used, the call
   * rejects with NotSupportedError.
   */
  responseConstraint?: object | RegExp;
  /** Has no effect: the constraint is never part of the model's input. */
  omitResponseConstraintInput?: boolean;
}

const refuse = (name: string, message: string) => new DOMException(message, name);

/**
 * Returns the messages of an input. Throws NotSupportedError for content other than text and for the prefix of an
 * answer, and PageError for invalid messages.
 */
function messagesOf(input: PromptInput): ChatMessage[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  if (!input.length) return [];
  const texts = input.map(({ role, content, prefix }) => {
    if (prefix) throw refuse("NotSupportedError", "An answer cannot be given a prefix.");
    if (typeof content === "string") return { role, content };
    if (!content.every(({ type, value }) => type === "text" && typeof value === "string")) {
      throw refuse("NotSupportedError", "This model reads text only.");
    }
    return { role, content: content.map(({ value }) => value as string).join("") };
  });
  return checkedMessages(texts);
}

/** Returns the constraint of an answer; null: none. */
function constraintOf({ responseConstraint: given }: PromptOptions): Constraint | null {
  if (given === undefined) return null;
  return given instanceof RegExp ? { regex: given } : { json_schema: given };
}

/** A session: sends messages to the model and keeps them with the model's answers. */
export class LanguageModelSession extends EventTarget {
  readonly temperature: number;
  readonly topK: number;
  private used = 0;
  private dropped = 0; // number of oldest messages, after the system message, that no longer fit the context
  private messages: ChatMessage[];
  private readonly queue = new Queue(); // prompts are answered one at a time
  private readonly ended = new AbortController();

  private constructor(
    private readonly glgpt: Glgpt,
    private readonly options: LanguageModelOptions,
    messages: readonly ChatMessage[],
  ) {
    super();
    this.messages = [...messages];
    const { sampling, config } = glgpt.model.manifest;
    const recommended = samplingDefaults(sampling);
    this.temperature = options.temperature ?? recommended.temperature;
    this.topK = options.topK ?? recommended.topK ?? config.vocab_size;
    options.signal?.addEventListener("abort", () => this.destroy(), { signal: this.ended.signal });
  }

  /** Starts a session. Rejects with NotSupportedError for a model without a chat template. */
  static async create(glgpt: Glgpt, options: LanguageModelOptions = {}): Promise<LanguageModelSession> {
    options.signal?.throwIfAborted();
    await glgpt.usable();
    options.signal?.throwIfAborted();
    if (!glgpt.model.chatTemplate) throw refuse("NotSupportedError", "This model has no chat template.");
    const session = new LanguageModelSession(glgpt, options, messagesOf(options.initialPrompts ?? []));
    await session.measure();
    options.signal?.throwIfAborted();
    return session;
  }

  /** The number of tokens of the session's messages that the model still reads. The maximum is `contextWindow`. */
  get contextUsage(): number {
    return this.used;
  }

  get contextWindow(): number {
    return this.glgpt.model.manifest.config.n_positions;
  }

  /** Answers an input. Resolves to the whole answer. */
  async prompt(input: PromptInput, options: PromptOptions = {}): Promise<string> {
    return this.queued(() => this.answer(input, options, () => {}));
  }

  /** Answers an input. The stream's chunks are pieces of the answer. */
  promptStreaming(input: PromptInput, options: PromptOptions = {}): ReadableStream<string> {
    const stopped = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, stopped.signal]) : stopped.signal;
    return new ReadableStream<string>({
      start: (stream) => {
        this.queued(() => this.answer(input, { ...options, signal }, (piece) => stream.enqueue(piece))).then(
          () => stream.close(),
          (error: unknown) => !stopped.signal.aborted && stream.error(error),
        );
      },
      cancel: () => stopped.abort(),
    });
  }

  /** Adds messages without answering them. */
  async append(input: PromptInput): Promise<void> {
    await this.queued(async () => {
      const messages = [...this.messages, ...messagesOf(input)];
      this.used = await this.tokens(messages);
      this.messages = messages;
    });
  }

  /** Returns a session with the same messages. */
  async clone({ signal }: { signal?: AbortSignal } = {}): Promise<LanguageModelSession> {
    await this.check(signal);
    const { temperature, topK } = this;
    const options = { ...this.guessing, temperature, topK, ...(signal ? { signal } : {}) };
    const copy = new LanguageModelSession(this.glgpt, options, this.messages);
    copy.dropped = this.dropped;
    await copy.measure();
    return copy;
  }

  /** Returns the option `speculate` as an object, which is empty if the option was not given. */
  private get guessing(): { speculate?: boolean } {
    const { speculate } = this.options;
    return speculate === undefined ? {} : { speculate };
  }

  /** Returns the number of tokens that an input would add. */
  async measureInputUsage(input: PromptInput): Promise<number> {
    await this.check();
    return (await this.tokens([...this.messages, ...messagesOf(input)])) - this.used;
  }

  /** Ends the session. Running and later calls reject with AbortError. */
  destroy(): void {
    this.ended.abort(refuse("AbortError", "The session was destroyed."));
    this.messages = [];
  }

  private async answer(input: PromptInput, options: PromptOptions, piece: (text: string) => void): Promise<string> {
    const messages = [...this.messages, ...messagesOf(input)];
    const signal = options.signal ? AbortSignal.any([options.signal, this.ended.signal]) : this.ended.signal;
    const { temperature } = this.options;
    const topK = this.topK < this.glgpt.model.manifest.config.vocab_size ? this.topK : null;
    const answer = await this.glgpt
      .chat(messages, {
        ...(temperature === undefined ? {} : { temperature }),
        topK,
        constraint: constraintOf(options),
        ...this.guessing,
        dropped: this.dropped,
        seed: Math.floor(Math.random() * 2 ** 32),
        onToken: (token) => piece(token.text),
        signal,
      })
      .catch((error: unknown) => {
        if (!(error instanceof PageError)) throw error;
        throw refuse(error instanceof ConstraintError ? "NotSupportedError" : "OperationError", error.message);
      });
    signal.throwIfAborted();
    if (answer.stopped === "aborted") throw refuse("AbortError", "The model was disposed of.");
    this.messages = [...messages, { role: "assistant", content: answer.text }];
    const overflowed = answer.dropped > this.dropped;
    this.dropped = answer.dropped;
    if (overflowed) this.dispatchEvent(new Event("contextoverflow"));
    this.used = answer.promptTokens + answer.ids.length;
    return answer.text;
  }

  private queued<T>(work: () => Promise<T>): Promise<T> {
    return this.queue.run(async () => {
      await this.check();
      return work();
    });
  }

  /** Rejects if the session was destroyed, the model was disposed of, or `signal` is aborted. */
  private async check(signal?: AbortSignal): Promise<void> {
    await this.glgpt.usable();
    this.ended.signal.throwIfAborted();
    signal?.throwIfAborted();
  }

  private async measure(): Promise<void> {
    this.used = await this.tokens(this.messages);
  }

  /** Returns the number of tokens of these messages, without the `dropped` ones. */
  private async tokens(messages: readonly ChatMessage[]): Promise<number> {
    const start = systems(messages);
    const read = [...messages.slice(0, start), ...messages.slice(start + this.dropped)];
    if (!read.length) return 0;
    return (await this.glgpt.model.chatTemplate!.ids(read, read.at(-1)?.role === "user")).length;
  }
}

/** Sets `globalThis.LanguageModel` to a model's interface, unless the browser has one. Returns true if it was set. */
export function polyfill(glgpt: Glgpt): boolean {
  if ("LanguageModel" in globalThis) return false;
  const availability = async () => {
    const usable = glgpt
      .usable()
      .then(() => Boolean(glgpt.model.chatTemplate))
      .catch(() => false);
    return (await usable) ? "available" : "unavailable";
  };
  const params = async () => {
    await glgpt.usable();
    const { sampling, config } = glgpt.model.manifest;
    const { temperature, topK } = samplingDefaults(sampling);
    const maxTopK = config.vocab_size;
    return { defaultTopK: topK ?? maxTopK, maxTopK, defaultTemperature: temperature, maxTemperature: 2 };
  };
  const create = (options: LanguageModelOptions = {}) => LanguageModelSession.create(glgpt, options);
  Object.assign(globalThis, { LanguageModel: { availability, params, create } });
  return true;
}
