// `glgpt.chat.completions.create`: chat completions with the shape of OpenAI's API, as users of web-llm know it.

import type { ChatOptions, Glgpt } from "./api";
import { ConstraintError, type Constraint } from "./runtime/constraints/constraint";
import type { CallParser, CallPart } from "./runtime/chat/calls";
import { checkedMessages, type ChatMessage, type ChatTemplate } from "./runtime/chat/template";
import { callForm, ToolError, Tools, type Tool, type ToolCall, type ToolChoice } from "./runtime/chat/tools";
import { PageError } from "./runtime/gl/errors";
import { randomId } from "./runtime/io/random-id";
import { samplingOptions, type Candidate, type SamplingRequest, type Token } from "./runtime/engine/sampling";

const MAX_STOPS = 16; // the same as on the desktop
const MAX_TOP = 20;
const LEAST_LOGPROB = -9999; // stands for ln 0, which JSON lacks

export interface ChatCompletionMessage {
  role: ChatMessage["role"];
  /** May be null in an answer that calls functions. */
  content: string | readonly { type: "text"; text: string }[] | null;
  /** Calls of an answer (`ToolCall`). */
  tool_calls?: readonly object[];
  /** The call whose result a message of the role `tool` has. */
  tool_call_id?: string;
  name?: string;
}

export interface ChatCompletionRequest {
  messages: readonly ChatCompletionMessage[];
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  /** The maximum number of tokens of the answer (default: as many as the context holds). */
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  /** 1 by default; 0 is greedy. */
  temperature?: number | null;
  top_p?: number | null;
  seed?: number | null;
  /** Texts before which the answer ends. */
  stop?: string | readonly string[] | null;
  /** Values to add to the logits of these ids. */
  logit_bias?: Record<number, number> | null;
  /** Send the log probability of each token. */
  logprobs?: boolean | null;
  /** The number of the most likely tokens to send with each token. Needs `logprobs`. */
  top_logprobs?: number | null;
  /** Only 1. */
  n?: number | null;
  /** Constrains the answer to any JSON object, or to JSON that a schema validates. */
  response_format?:
    | { type: "text" | "json_object" }
    | { type: "json_schema"; json_schema: { name?: string; schema: object | boolean; strict?: boolean | null } }
    | null;
  /** A JSON schema, as in vLLM. */
  guided_json?: object | string | null;
  /** A regular expression that the whole answer matches, as in vLLM. */
  guided_regex?: string | null;
  /** Texts, of which one is the answer, as in vLLM. */
  guided_choice?: readonly string[] | null;
  /** Functions that the answer may call. Needs a model whose chat template describes them. */
  tools?: readonly Tool[] | null;
  /** `auto` by default; `required`, or a function, constrains the answer to a call. */
  tool_choice?: ToolChoice | null;
  /** False: one call at most. */
  parallel_tool_calls?: boolean | null;
  /** Has no effect: a page has one model. */
  model?: string | null;
  /** Has no effect. */
  user?: string | null;
}

export interface CompletionRequestOptions {
  signal?: AbortSignal;
  /** Guess tokens and check several at once, as `speculate` of `glgpt.generate`. */
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

/** A part of a call: the first has the id and the name, later ones continue the arguments. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: "function";
  function: { name?: string; arguments: string };
}

export interface ChatCompletion extends Shared<"chat.completion"> {
  choices: {
    index: number;
    /** Without text, the content of a message with calls is null. */
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
  /** In the last chunk, if `stream_options` asks for it. */
  usage?: CompletionUsage;
}

/** An error with the fields of OpenAI's: `param` is the field at fault, `code` a word for programs. */
export class CompletionError extends PageError {
  override readonly name = "CompletionError";
  readonly status = 400;
  readonly type = "invalid_request_error";

  constructor(
    message: string,
    readonly param: string | null = null,
    readonly code: string | null = null,
  ) {
    super(message);
  }

  /** The object that OpenAI's API would answer. */
  get error(): { message: string; type: string; param: string | null; code: string | null } {
    const { message, type, param, code } = this;
    return { message, type, param, code };
  }
}

const FIELDS: Record<keyof Required<ChatCompletionRequest>, true> = {
  messages: true,
  stream: true,
  stream_options: true,
  max_tokens: true,
  max_completion_tokens: true,
  temperature: true,
  top_p: true,
  seed: true,
  stop: true,
  logit_bias: true,
  logprobs: true,
  top_logprobs: true,
  n: true,
  response_format: true,
  guided_json: true,
  guided_regex: true,
  guided_choice: true,
  tools: true,
  tool_choice: true,
  parallel_tool_calls: true,
  model: true,
  user: true,
};

/** Finds stop texts in a text that arrives in pieces. Holds back what could be the start of one. */
class StopTexts {
  found = false;
  private held = "";

  constructor(private readonly stops: readonly string[]) {}

  /** Returns the text that may be shown after this piece. */
  push(piece: string): string {
    if (this.found) return "";
    const text = this.held + piece;
    const at = Math.min(...this.stops.map((stop) => text.indexOf(stop)).filter((i) => i >= 0));
    this.found = at !== Infinity;
    const end = this.found ? at : text.length - Math.max(0, ...this.stops.map((stop) => begun(text, stop)));
    this.held = this.found ? "" : text.slice(end);
    return text.slice(0, end);
  }

  /** Returns what was held back at the end of the text. */
  flush(): string {
    return this.held;
  }
}

/** Returns the length of the longest end of `text` that begins `stop`. */
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

/** A request that was checked, and the ids of its prompt. */
interface Prepared {
  ids: number[];
  /** The field of its constraint; null: none. */
  field: string | null;
  stops: readonly string[];
  /** Separates calls of functions from the text; null: the answer cannot call one. */
  calls: CallParser | null;
  /** The number of the most likely tokens to send; null without log probabilities. */
  top: number | null;
  options: Pick<
    ChatOptions,
    "tokens" | "temperature" | "topP" | "seed" | "logitBias" | "alternatives" | "constraint" | "speculate"
  >;
}

export class Completions {
  /** @internal */
  constructor(private readonly glgpt: Glgpt) {}

  /**
   * Answers `messages`; with `stream`, resolves to an async iterable of chunks, and leaving it early stops the answer.
   * Rejects with CompletionError for a request that cannot be answered, and with the signal's reason once it aborts.
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
    { signal, speculate = false }: CompletionRequestOptions = {},
  ): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    const prepared = await this.prepared(request, speculate).catch((error: unknown) => {
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
    return { ...this.shared("chat.completion"), choices: [choice], usage: usage(prepared, ended) };
  }

  /** Yields the chunks of an answer. */
  private async *stream(
    prepared: Prepared,
    withUsage: boolean,
    signal?: AbortSignal,
  ): AsyncGenerator<ChatCompletionChunk> {
    const about = this.shared("chat.completion.chunk");
    const chunk = (
      delta: ChatCompletionChunk["choices"][number]["delta"],
      logprobs: ChatLogprobs | null = null,
      finish_reason: FinishReason | null = null,
    ): ChatCompletionChunk => ({ ...about, choices: [{ index: 0, delta, logprobs, finish_reason }] });
    const left = new AbortController(); // the reader wants no more
    const arrived: Piece[] = [];
    let wake = () => {};
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
    done.catch(() => {}); // awaited below, unless the reader leaves
    try {
      yield chunk({ role: "assistant", content: "" });
      while (state.running || arrived.length) {
        const piece = arrived.shift();
        if (piece) yield chunk(delta(piece.part), piece.logprobs);
        else await new Promise<void>((resolve) => (wake = resolve));
      }
      const ended = await done;
      yield chunk({}, null, ended.reason);
      if (withUsage) yield { ...about, choices: [], usage: usage(prepared, ended) };
    } finally {
      left.abort();
    }
  }

  /** Generates an answer and passes its pieces on. */
  private async answer(prepared: Prepared, push: (piece: Piece) => void, signal?: AbortSignal): Promise<Ended> {
    const { ids, top, options, calls } = prepared;
    const stops = new StopTexts(prepared.stops);
    const stopped = new AbortController();
    let waiting: ChatLogprobs["content"] = []; // of tokens whose text is not complete yet
    let text = ""; // of all tokens
    const send = (piece: string, last = false) => {
      const parts: (string | CallPart)[] = calls ? calls.push(piece) : piece ? [piece] : [];
      if (last) parts.push(...(calls?.flush() ?? []));
      if (!parts.length && last && waiting.length) parts.push("");
      for (const part of parts) {
        push({ part, logprobs: top === null ? null : { content: waiting, refusal: null } });
        waiting = [];
      }
    };
    const running = this.glgpt.generate({
      ...options,
      ids,
      signal: signal ? AbortSignal.any([signal, stopped.signal]) : stopped.signal,
      onToken: (token) => {
        if (top !== null) waiting.push(this.logprobs(token, top));
        text += token.text;
        send(stops.push(token.text));
        if (stops.found) stopped.abort();
      },
    });
    const answer = await running.catch((error: unknown) => {
      throw error instanceof ConstraintError ? new CompletionError(error.message, prepared.field) : error;
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
  private async prepared(request: ChatCompletionRequest, speculate: boolean): Promise<Prepared> {
    check(request);
    await this.glgpt.ready;
    const { chatTemplate, manifest } = this.glgpt.model;
    if (!chatTemplate) throw new CompletionError("This model has no chat template; use glgpt.generate.", "messages");
    const tools = toolsOf(request);
    const messages = plain(request.messages);
    if (tools) checkWord(chatTemplate, "tools", "tools");
    if (messages.some((each) => each.tool_calls || each.role === "tool")) {
      checkWord(chatTemplate, "tool_calls", "messages");
    }
    const ids = await chatTemplate.ids(messages, true, tools?.documents() ?? null).catch((error: unknown) => {
      throw error instanceof PageError ? new CompletionError(error.message, "messages") : error;
    });
    const form = callForm((text) => chatTemplate.mentions(text));
    if (tools?.forced && form.start) ids.push(...this.glgpt.model.tokenizer!.encode(form.start));
    const limit = manifest.config.n_positions;
    if (ids.length > limit) {
      const why = `The prompt has ${ids.length} tokens and the context holds ${limit}; shorten it.`;
      throw new CompletionError(why, "messages", "context_length_exceeded");
    }
    const { logprobs, top_logprobs, stop } = request;
    const own = constraintOf(request);
    if (own && tools?.forced) throw new CompletionError(`Give tool_choice or ${own.field}, not both.`, "tool_choice");
    const forced = tools?.forced
      ? { field: "tools", constraint: { json_schema: tools.schema(form.key) as object } }
      : null;
    const constrained = own ?? forced;
    const asked = request.max_completion_tokens ?? request.max_tokens ?? Infinity;
    const top = logprobs ? (top_logprobs ?? 0) : null;
    return {
      ids,
      field: constrained?.field ?? null,
      calls: tools?.parser() ?? null,
      stops: typeof stop === "string" ? [stop] : (stop ?? []),
      top,
      options: {
        tokens: Math.min(asked, limit - ids.length + 1),
        ...sampling(request),
        constraint: constrained?.constraint ?? null,
        speculate,
        ...(top === null ? {} : { alternatives: Math.max(1, top) }),
      },
    };
  }

  private logprobs(token: Token, top: number): ChatLogprobs["content"][number] {
    const { model } = this.glgpt;
    const about = ({ id, p = 0 }: Token | Candidate): TokenLogprob => {
      const logprob = p > 0 ? Math.log(p) : LEAST_LOGPROB;
      return { token: this.glgpt.decode([id]), logprob, bytes: [...(model.tokenizer?.tokenBytes(id) ?? [])] };
    };
    return { ...about(token), top_logprobs: (token.top ?? []).slice(0, top).map(about) };
  }

  private shared<Kind extends string>(object: Kind): Shared<Kind> {
    const id = `chatcmpl-${randomId()}`;
    return { id, object, created: Math.floor(Date.now() / 1000), model: this.glgpt.model.manifest.model };
  }
}

/** Throws CompletionError for a request that needs a word of the chat template which it lacks. */
function checkWord(template: ChatTemplate, word: string, field: string): void {
  if (template.mentions(word)) return;
  throw new CompletionError(`The chat template of this model has no ${word}, so it cannot call functions.`, field);
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

/** Returns a part of an answer as a chunk has it. */
function delta(part: string | CallPart): ChatCompletionChunk["choices"][number]["delta"] {
  if (typeof part === "string") return { content: part };
  const { index, name, arguments: own } = part;
  const call: ToolCallDelta =
    name === null
      ? { index, function: { arguments: own } }
      : { index, id: callId(), type: "function", function: { name, arguments: own } };
  return { tool_calls: [call] };
}

/** Returns the functions that an answer may call; null: none. Throws CompletionError for an unusable choice. */
function toolsOf({ tools, tool_choice, parallel_tool_calls }: ChatCompletionRequest): Tools | null {
  try {
    return Tools.asked(tools ?? null, tool_choice ?? null, parallel_tool_calls ?? null);
  } catch (error) {
    throw error instanceof ToolError ? new CompletionError(error.message, error.field) : error;
  }
}

function usage({ ids }: Prepared, { tokens }: Ended): CompletionUsage {
  return { prompt_tokens: ids.length, completion_tokens: tokens, total_tokens: ids.length + tokens };
}

/** Throws CompletionError for a request with unknown or invalid fields. The model checks messages and sampling. */
function check(request: ChatCompletionRequest): void {
  if (typeof request !== "object" || (request as unknown) === null)
    throw new CompletionError("create takes an object with messages.");
  const unknown = Object.entries(request).find(([name, value]) => !Object.hasOwn(FIELDS, name) && value !== undefined);
  if (unknown) throw new CompletionError(`${unknown[0]} is not a field that this model knows.`, unknown[0]);
  const { n, response_format: format, stop, top_logprobs: top, logprobs } = request;
  if ((n ?? 1) !== 1) throw new CompletionError(`n is ${n}; a page writes 1 answer at a time.`, "n");
  if (format && !["text", "json_object", "json_schema"].includes(format.type)) {
    const why = `response_format has type ${format.type}; it must be text, json_object or json_schema.`;
    throw new CompletionError(why, "response_format");
  }
  for (const name of ["max_tokens", "max_completion_tokens"] as const) {
    const value = request[name] ?? 1;
    if (!(Number.isInteger(value) && value >= 1))
      throw new CompletionError(`${name} is ${value}; it must be 1 or more.`, name);
  }
  const stops = typeof stop === "string" ? [stop] : (stop ?? []);
  if (!(Array.isArray(stops) && stops.length <= MAX_STOPS && stops.every((s) => typeof s === "string" && s))) {
    throw new CompletionError(`stop must be a text or a list of up to ${MAX_STOPS} texts.`, "stop");
  }
  if (top != null && !(Number.isInteger(top) && top >= 0 && top <= MAX_TOP)) {
    throw new CompletionError(`top_logprobs is ${top}; it must be from 0 to ${MAX_TOP}.`, "top_logprobs");
  }
  if (top && !logprobs) throw new CompletionError("top_logprobs needs logprobs: true.", "top_logprobs");
}

/** Returns the constraint of a request and the field that holds it. Throws CompletionError for several. */
function constraintOf(request: ChatCompletionRequest): { field: string; constraint: Constraint } | null {
  const { response_format: format, guided_json, guided_regex, guided_choice } = request;
  const schema =
    format?.type === "json_schema" ? (Object(format.json_schema) as { schema?: object }).schema : undefined;
  if (format?.type === "json_schema" && schema === undefined) {
    throw new CompletionError("response_format lacks json_schema.schema.", "response_format");
  }
  const found: { field: string; constraint: Constraint }[] = [];
  const add = (field: string, constraint: Constraint) => found.push({ field, constraint });
  if (format?.type === "json_object") add("response_format", { json_object: true });
  if (schema !== undefined) add("response_format", { json_schema: schema });
  if (guided_json != null) add("guided_json", { json_schema: guided_json });
  if (guided_regex != null) add("guided_regex", { regex: guided_regex });
  if (guided_choice != null) add("guided_choice", { choice: guided_choice });
  const [first = null, second] = found;
  if (first && second) throw new CompletionError(`Give ${first.field} or ${second.field}, not both.`, second.field);
  return first;
}

/** Returns how tokens are chosen. Throws CompletionError for a value out of range. */
function sampling({ temperature, top_p, seed, logit_bias }: ChatCompletionRequest) {
  const checked = <T extends SamplingRequest>(param: string, options: T): T => {
    try {
      samplingOptions(options);
      return options;
    } catch (error) {
      throw error instanceof PageError ? new CompletionError(error.message, param) : error;
    }
  };
  return {
    ...checked("temperature", { temperature: temperature ?? 1 }),
    ...checked("top_p", { topP: top_p || null }), // 0 is greedy in some clients, and no share of tokens here
    ...checked("logit_bias", { logitBias: logit_bias ?? null }),
    ...checked("seed", { seed: seed ?? Math.floor(Math.random() * 2 ** 32) }),
  };
}

/** Returns messages whose content is a text, with arguments of calls as values. Throws CompletionError for others. */
function plain(messages: ChatCompletionRequest["messages"]): ChatMessage[] {
  const texts = Array.isArray(messages)
    ? (messages as readonly ChatCompletionMessage[]).map((message, i) => {
        const { content, tool_calls: calls } = Object(message) as Partial<ChatCompletionMessage>;
        if (calls?.length) return { ...message, content: content ?? "", tool_calls: withValues(calls, i) };
        if (!Array.isArray(content)) return message;
        const parts = content as readonly { type: string; text: string }[];
        const other = parts.find(({ type }) => type !== "text");
        if (other) {
          throw new CompletionError(
            `messages[${i}] has a part of type ${other.type}; this model reads text.`,
            "messages",
          );
        }
        return { ...message, content: parts.map(({ text }) => text).join("") };
      })
    : messages;
  try {
    return checkedMessages(texts);
  } catch (error) {
    throw error instanceof PageError ? new CompletionError(error.message, "messages") : error;
  }
}

/** Returns calls whose arguments are values, which templates render. Throws CompletionError for other arguments. */
function withValues(calls: readonly object[], i: number): object[] {
  return calls.map((call) => {
    const { function: own } = Object(call) as Partial<ToolCall>;
    let values: unknown = own?.arguments;
    try {
      if (typeof values === "string") values = JSON.parse(values || "{}");
    } catch {
      values = null;
    }
    if (typeof own?.name !== "string" || typeof values !== "object" || !values || Array.isArray(values)) {
      const why = `messages[${i}]: a call in tool_calls needs a function with name and arguments, a JSON object.`;
      throw new CompletionError(why, "messages");
    }
    return { ...call, type: "function", function: { ...own, arguments: values } };
  });
}
