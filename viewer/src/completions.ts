// Implements `glgpt.chat.completions.create`: chat completions with the interface of OpenAI's API, as in web-llm.

import type { ChatOptions, Glgpt } from "./api";
import {
  check,
  CompletionError,
  constraintOf,
  plainMessages,
  sampling,
  toolsOf,
  type ChatCompletionRequest,
} from "./completion-request";
import { ConstraintError } from "./runtime/constraints/constraint";
import type { CallParser, CallPart } from "./runtime/chat/calls";
import type { ChatMessage, ChatTemplate } from "./runtime/chat/template";
import { callForm, forTemplate, type ToolCall, type Tools } from "./runtime/chat/tools";
import { PageError } from "./runtime/gl/errors";
import { randomId } from "./runtime/io/random-id";
import type { Model } from "./runtime/engine/model";
import type { Candidate, Token } from "./runtime/engine/sampling";
import { samplingDefaults, type SamplingDefaults } from "./runtime/engine/sampling-defaults";

const LEAST_LOGPROB = -9999; // stands for ln 0 (minus infinity), which JSON cannot represent

export interface CompletionRequestOptions {
  signal?: AbortSignal;
  /** Guess tokens and check several at once, like the option `speculate` of `glgpt.generate`. */
  speculate?: boolean;
}

export interface TokenLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}

export interface ChatLogprobs {
  content: (TokenLogprob & { top_logprobs: TokenLogprob[] })[];
  refusal: null;
}

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
}

interface Shared<Kind extends string> {
  id: string;
  object: Kind;
  /** Seconds since 1970. */
  created: number;
  model: string;
}

export type FinishReason = "stop" | "length" | "tool_calls";

/** A part of a call. The first part has the id and the name; later parts continue the arguments. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: "function";
  function: { name?: string; arguments: string };
}

export interface ChatCompletion extends Shared<"chat.completion"> {
  choices: {
    index: number;
    /** If a message has calls and no text, its content is null. */
    message: { role: "assistant"; content: string | null; refusal: null; tool_calls?: ToolCall[] };
    logprobs: ChatLogprobs | null;
    finish_reason: FinishReason;
  }[];
  usage: CompletionUsage;
}

export interface ChatCompletionChunk extends Shared<"chat.completion.chunk"> {
  choices: {
    index: number;
    delta: { role?: "assistant"; content?: string; tool_calls?: ToolCallDelta[] };
    logprobs: ChatLogprobs | null;
    finish_reason: FinishReason | null;
  }[];
  /** Only in the last chunk, if `stream_options` requests it. */
  usage?: CompletionUsage;
}

/**
 * Finds stop texts in a text that arrives in pieces. Holds back the end of the text if a stop text may begin there, so
 * that it also finds a stop text that is divided between pieces.
 */
export class StopTexts {
  found = false;
  private held = "";

  constructor(private readonly stops: readonly string[]) {}

  /** Adds a piece, and returns the text that may be shown now. */
  push(piece: string): string {
    if (this.found) return "";
    const text = this.held + piece;
    const waiting = text.length - Math.max(0, ...this.stops.map((stop) => begun(text, stop)));
    const at = this.first(text);
    // The stop text at `at` does not count while another one, which begins before it, may still become complete.
    this.found = at < Infinity && at <= waiting;
    const end = Math.min(at, waiting);
    this.held = this.found ? "" : text.slice(end);
    return text.slice(0, end);
  }

  /** Returns the text that is held back, up to a stop text in it. Call this at the end of the text. */
  flush(): string {
    const at = this.first(this.held);
    this.found ||= at < Infinity;
    return this.held.slice(0, at);
  }

  /** Returns the index at which the first stop text in `text` begins; Infinity if there is none. */
  private first(text: string): number {
    return Math.min(...this.stops.map((stop) => text.indexOf(stop)).filter((i) => i >= 0));
  }
}

/** Returns how many characters at the end of `text` may be the beginning of `stop`. */
function begun(text: string, stop: string): number {
  for (let n = Math.min(text.length, stop.length - 1); n > 0; n--) if (text.endsWith(stop.slice(0, n))) return n;
  return 0;
}

interface Piece {
  /** A part of the text, or of a call. */
  part: string | CallPart;
  logprobs: ChatLogprobs | null;
}

interface Ended {
  reason: FinishReason;
  tokens: number;
}

/** The parts of a request that depend on `model`. If another model is in use later, the request is encoded again. */
interface Encoded {
  model: Model;
  ids: number[];
  /** The field of the request that holds the constraint; null: none. */
  field: string | null;
  options: Pick<
    ChatOptions,
    "tokens" | keyof SamplingDefaults | "seed" | "logitBias" | "alternatives" | "constraint" | "speculate"
  >;
}

/** A request that was checked. */
interface Prepared {
  encoded: Encoded;
  /** Encodes the request for the model in use. */
  encode: () => Promise<Encoded>;
  tools: Tools | null;
  stops: readonly string[];
  /** Separates calls of functions from the text; null: the answer cannot call functions. */
  calls: CallParser | null;
  /** The number of most likely tokens to return; null: no log probabilities are returned. */
  top: number | null;
}

export class Completions {
  /** @internal */
  constructor(private readonly glgpt: Glgpt) {}

  /**
   * Answers `messages`. With `stream`, resolves to an async iterable of chunks; leaving the iteration early stops the
   * answer. Rejects with CompletionError for a request that cannot be answered. Rejects with the signal's reason once
   * the signal aborts.
   */
  create(
    request: ChatCompletionRequest & { stream: true },
    options?: CompletionRequestOptions,
  ): Promise<AsyncIterable<ChatCompletionChunk>>;
  create(
    request: ChatCompletionRequest & { stream?: false | null },
    options?: CompletionRequestOptions,
  ): Promise<ChatCompletion>;
  create(
    request: ChatCompletionRequest,
    options?: CompletionRequestOptions,
  ): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>>;
  async create(
    request: ChatCompletionRequest,
    { signal, speculate }: CompletionRequestOptions = {},
  ): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    check(request);
    const asked = { tools: toolsOf(request), messages: plainMessages(request.messages) };
    await this.glgpt.usable();
    const prepared = await this.prepared(request, asked, speculate).catch((error: unknown) => {
      if (error instanceof CompletionError || !(error instanceof PageError)) throw error;
      throw new CompletionError(error.message);
    });
    signal?.throwIfAborted();
    if (request.stream) return this.stream(prepared, Boolean(request.stream_options?.include_usage), signal);
    const pieces: Piece[] = [];
    const ended = await this.answer(prepared, (piece) => pieces.push(piece), signal);
    const content = pieces.flatMap(({ logprobs }) => logprobs?.content ?? []);
    const choice = {
      index: 0,
      message: message(pieces.map(({ part }) => part)),
      logprobs: prepared.top === null ? null : { content, refusal: null },
      finish_reason: ended.reason,
    } as const;
    return { ...this.shared("chat.completion", prepared), choices: [choice], usage: usage(prepared, ended) };
  }

  /** Yields the chunks of an answer. */
  private async *stream(
    prepared: Prepared,
    withUsage: boolean,
    signal?: AbortSignal,
  ): AsyncGenerator<ChatCompletionChunk> {
    const asked = this.shared("chat.completion.chunk", prepared);
    const left = new AbortController(); // aborts when the caller leaves the iteration
    const arrived: Piece[] = [];
    let wake = () => {};
    const next = () => new Promise<void>((resolve) => (wake = resolve));
    const state = { running: true };
    const either = signal ? AbortSignal.any([signal, left.signal]) : left.signal;
    const push = (piece: Piece) => {
      arrived.push(piece);
      wake();
    };
    const done = this.answer(prepared, push, either).finally(() => {
      state.running = false;
      wake();
    });
    done.catch(() => {}); // awaited below, unless the caller leaves the iteration
    try {
      // Waits for the first piece: until then, `answer` may encode the request for another model that is selected.
      if (state.running && !arrived.length) await next();
      if (!arrived.length) await done; // rejects before the first chunk if the request is refused
      const about = { ...asked, model: prepared.encoded.model.manifest.model };
      const chunk = (
        delta: ChatCompletionChunk["choices"][number]["delta"],
        logprobs: ChatLogprobs | null = null,
        finish_reason: FinishReason | null = null,
      ): ChatCompletionChunk => ({ ...about, choices: [{ index: 0, delta, logprobs, finish_reason }] });
      yield chunk({ role: "assistant", content: "" });
      while (state.running || arrived.length) {
        const piece = arrived.shift();
        if (piece) yield chunk(delta(piece.part), piece.logprobs);
        else await next();
      }
      const ended = await done;
      yield chunk({}, null, ended.reason);
      if (withUsage) yield { ...about, choices: [], usage: usage(prepared, ended) };
    } finally {
      left.abort();
    }
  }

  /** Generates an answer and calls `push` with each piece of it. */
  private async answer(prepared: Prepared, push: (piece: Piece) => void, signal?: AbortSignal): Promise<Ended> {
    const { top, calls } = prepared;
    const stops = new StopTexts(prepared.stops);
    const stopped = new AbortController();
    let waiting: ChatLogprobs["content"] = []; // log probabilities that are not sent yet
    let text = ""; // the text of all tokens
    const send = (piece: string, last = false) => {
      const parts: (string | CallPart)[] = calls ? calls.push(piece) : piece ? [piece] : [];
      if (last) parts.push(...(calls?.flush() ?? []));
      if (!parts.length && last && waiting.length) parts.push("");
      for (const part of parts) {
        push({ part, logprobs: top === null ? null : { content: waiting, refusal: null } });
        waiting = [];
      }
    };
    const onToken = (token: Token & { text: string }) => {
      if (top !== null) waiting.push(this.logprobs(token, top));
      text += token.text;
      send(stops.push(token.text));
      if (stops.found) stopped.abort();
    };
    const either = signal ? AbortSignal.any([signal, stopped.signal]) : stopped.signal;
    const running = this.glgpt.write(async () => {
      if (prepared.encoded.model !== this.glgpt.model) prepared.encoded = await prepared.encode();
      const { ids, options } = prepared.encoded;
      return { ...options, ids, signal: either, onToken };
    }, either);
    const answer = await running.catch(async (error: unknown) => {
      throw error instanceof ConstraintError ? await this.unusable(error, prepared) : error;
    });
    if (!stops.found) {
      signal?.throwIfAborted();
      if (answer.stopped === "aborted") throw new PageError("The model was disposed of.");
      send(stops.push(answer.text.slice(text.length)) + stops.flush(), true);
    } else if (calls) send("", true);
    const whole = answer.stopped !== "tokens" || stops.found;
    return { reason: !whole ? "length" : calls?.count ? "tool_calls" : "stop", tokens: answer.ids.length };
  }

  /** Checks a request and encodes its messages. */
  private async prepared(
    request: ChatCompletionRequest,
    { tools, messages }: { tools: Tools | null; messages: readonly ChatMessage[] },
    speculate?: boolean,
  ): Promise<Prepared> {
    const { logprobs, top_logprobs, stop } = request;
    const top = logprobs ? (top_logprobs ?? 0) : null;
    const encode = async () => {
      const { options, ...encoded } = await this.encoded({ ...request, messages }, tools);
      const more = {
        ...(speculate === undefined ? {} : { speculate }),
        ...(top === null ? {} : { alternatives: Math.max(1, top) }),
      };
      return { ...encoded, options: { ...options, ...more } };
    };
    return {
      encoded: await encode(),
      encode,
      tools,
      calls: tools?.parser() ?? null,
      stops: typeof stop === "string" ? [stop] : (stop ?? []),
      top,
    };
  }

  /** Encodes a request for the model in use. */
  private async encoded(
    request: ChatCompletionRequest & { messages: readonly ChatMessage[] },
    tools: Tools | null,
  ): Promise<Encoded> {
    const { model } = this.glgpt;
    const { chatTemplate: template, manifest } = model;
    if (!template) throw new CompletionError("This model has no chat template; use glgpt.generate.", "messages");
    const form = callForm((text) => template.mentions(text));
    const ids = await this.prompt(template, request.messages, tools);
    if (tools?.forced && form.start) ids.push(...model.tokenizer!.encode(form.start));
    const { n_positions: limit, vocab_size } = manifest.config;
    if (ids.length > limit) {
      const why = `The prompt has ${ids.length} tokens and the context holds ${limit}; shorten it.`;
      throw new CompletionError(why, "messages", "context_length_exceeded");
    }
    const constrained = constraintOf(request, tools, form.key);
    const asked = request.max_completion_tokens ?? request.max_tokens ?? Infinity;
    return {
      model,
      ids,
      field: constrained?.field ?? null,
      options: {
        tokens: Math.min(asked, limit - ids.length + 1),
        ...sampling(request, samplingDefaults(manifest.sampling), vocab_size),
        constraint: constrained?.constraint ?? null,
      },
    };
  }

  /** Returns the token ids of messages. Rejects with CompletionError for messages that cannot be used. */
  private async prompt(
    template: ChatTemplate,
    messages: readonly ChatMessage[],
    tools: Tools | null,
  ): Promise<number[]> {
    const written = forTemplate(messages, tools, (text) => template.mentions(text));
    return template.ids(written, true, tools?.documents() ?? null).catch((error: unknown) => {
      throw error instanceof PageError ? new CompletionError(error.message, "messages") : error;
    });
  }

  /** Returns the error for a constraint that cannot be used. */
  private async unusable(error: ConstraintError, { encoded, tools }: Prepared): Promise<CompletionError> {
    const { model, field } = encoded;
    if (!tools?.forced) return new CompletionError(error.message, field);
    const own = await tools.unusable(error, (schema) => model.matcher({ json_schema: schema }));
    return new CompletionError(own.message, own.field);
  }

  private logprobs(token: Token, top: number): ChatLogprobs["content"][number] {
    const { model } = this.glgpt;
    const about = ({ id, p = 0 }: Token | Candidate): TokenLogprob => {
      const logprob = p > 0 ? Math.log(p) : LEAST_LOGPROB;
      return { token: this.glgpt.decode([id]), logprob, bytes: [...(model.tokenizer?.tokenBytes(id) ?? [])] };
    };
    return { ...about(token), top_logprobs: (token.top ?? []).slice(0, top).map(about) };
  }

  private shared<Kind extends string>(object: Kind, { encoded }: Prepared): Shared<Kind> {
    const id = `chatcmpl-${randomId()}`;
    return { id, object, created: Math.floor(Date.now() / 1000), model: encoded.model.manifest.model };
  }
}

const callId = () => `call_${randomId()}`;

/** Returns an answer as a message. */
function message(parts: readonly (string | CallPart)[]): ChatCompletion["choices"][number]["message"] {
  const text = parts.filter((part) => typeof part === "string").join("");
  const calls: ToolCall[] = [];
  for (const part of parts) {
    if (typeof part === "string") continue;
    const { index, name, arguments: own } = part;
    if (name === null) calls[index]!.function.arguments += own;
    else calls.push({ id: callId(), type: "function", function: { name, arguments: own } });
  }
  const about = { role: "assistant", content: text || !calls.length ? text : null, refusal: null } as const;
  return calls.length ? { ...about, tool_calls: calls } : about;
}

/** Returns the `delta` of a chunk with this part of an answer. */
function delta(part: string | CallPart): ChatCompletionChunk["choices"][number]["delta"] {
  if (typeof part === "string") return { content: part };
  const { index, name, arguments: own } = part;
  const call: ToolCallDelta =
    name === null
      ? { index, function: { arguments: own } }
      : { index, id: callId(), type: "function", function: { name, arguments: own } };
  return { tool_calls: [call] };
}

function usage({ encoded }: Prepared, { tokens }: Ended): CompletionUsage {
  const { length } = encoded.ids;
  return { prompt_tokens: length, completion_tokens: tokens, total_tokens: length + tokens };
}
