// Checks the requests of `glgpt.chat.completions.create`, and converts their fields to the model's options.

import type { Constraint } from "./runtime/constraints/constraint";
import { checkedMessages, type ChatMessage } from "./runtime/chat/template";
import { ToolError, Tools, type Tool, type ToolCall, type ToolChoice } from "./runtime/chat/tools";
import { PageError } from "./runtime/gl/errors";
import { checkBias, samplingOptions, type SamplingRequest } from "./runtime/engine/sampling";
import type { SamplingDefaults } from "./runtime/engine/sampling-defaults";

const MAX_STOPS = 16; // the same as on the desktop
const MAX_TOP = 20;

export interface ChatCompletionMessage {
  role: ChatMessage["role"];
  /** May be null in an answer that calls functions. */
  content: string | readonly { type: "text"; text: string }[] | null;
  /** Calls of an earlier answer (`ToolCall`). */
  tool_calls?: readonly object[];
  /** Id of the call that a message of the role `tool` answers. */
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
  /** 0 is greedy. Default: the temperature recommended for the model (`samplingDefaults`). */
  temperature?: number | null;
  top_p?: number | null;
  seed?: number | null;
  /** Texts before which the answer ends. */
  stop?: string | readonly string[] | null;
  /** Values to add to logits, by token id. */
  logit_bias?: Record<number, number> | null;
  /** True: return the log probability of each token. */
  logprobs?: boolean | null;
  /** The number of most likely tokens to return with each token. Needs `logprobs`. */
  top_logprobs?: number | null;
  /** Must be 1: a page writes one answer per request. */
  n?: number | null;
  /** Constrains the answer to a JSON object, or to JSON that matches a schema. */
  response_format?:
    | { type: "text" | "json_object" }
    | { type: "json_schema"; json_schema: { name?: string; schema: object | boolean; strict?: boolean | null } }
    | null;
  /** A JSON schema that the answer must match, as in vLLM. */
  guided_json?: object | string | null;
  /** A regular expression that the whole answer must match, as in vLLM. */
  guided_regex?: string | null;
  /** The allowed texts: the answer is one of them, as in vLLM. */
  guided_choice?: readonly string[] | null;
  /** Functions that the answer may call. If the chat template cannot describe them, a system message does. */
  tools?: readonly Tool[] | null;
  /** Default: `auto`. `required` constrains the answer to calls, and a named function to a call of this function. */
  tool_choice?: ToolChoice | null;
  /** False: the answer makes at most one call. */
  parallel_tool_calls?: boolean | null;
  /** Has no effect: a page has one model. */
  model?: string | null;
  /** Has no effect. */
  user?: string | null;
}

/** An error with the fields of OpenAI's errors. `param` is the field at fault; `code` identifies the error. */
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

  /** The error as the object that OpenAI's API returns. */
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

/** Returns the functions that an answer may call; null: none. Throws CompletionError for invalid tools or choices. */
export function toolsOf({ tools, tool_choice, parallel_tool_calls }: ChatCompletionRequest): Tools | null {
  try {
    return Tools.asked(tools ?? null, tool_choice ?? null, parallel_tool_calls ?? null);
  } catch (error) {
    throw error instanceof ToolError ? new CompletionError(error.message, error.field) : error;
  }
}

/**
 * Throws CompletionError for a request with unknown or invalid fields. Other functions of this module check the
 * messages (`plainMessages`), the sampling options (`sampling`), the constraint (`constraintOf`) and the tools
 * (`toolsOf`).
 */
export function check(request: ChatCompletionRequest): void {
  if (typeof request !== "object" || (request as unknown) === null)
    throw new CompletionError("create takes an object with messages.");
  const unknown = Object.entries(request).find(([name, value]) => !Object.hasOwn(FIELDS, name) && value !== undefined);
  if (unknown) throw new CompletionError(`${unknown[0]} is not a supported field.`, unknown[0]);
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
    throw new CompletionError(`stop must be a string or a list of up to ${MAX_STOPS} strings.`, "stop");
  }
  if (top != null && !(Number.isInteger(top) && top >= 0 && top <= MAX_TOP)) {
    throw new CompletionError(`top_logprobs is ${top}; it must be from 0 to ${MAX_TOP}.`, "top_logprobs");
  }
  if (top && !logprobs) throw new CompletionError("top_logprobs needs logprobs: true.", "top_logprobs");
}

/** A constraint, and the field of the request that gives it. */
export interface Constrained {
  field: string;
  constraint: Constraint;
}

/**
 * Returns the constraint that a request gives, or the schema of calls if `tool_choice` forces a call. null: none.
 * `key` is the name under which the model writes a call's arguments. Throws CompletionError if there are several
 * constraints, or if a schema is missing.
 */
export function constraintOf(request: ChatCompletionRequest, tools: Tools | null, key: string): Constrained | null {
  const own = givenConstraint(request);
  if (!tools?.forced) return own;
  if (own) throw new CompletionError(`Give tool_choice or ${own.field}, not both.`, "tool_choice");
  return { field: "tools", constraint: { json_schema: tools.schema(key) as object } };
}

function givenConstraint(request: ChatCompletionRequest): Constrained | null {
  const { response_format: format, guided_json, guided_regex, guided_choice } = request;
  const schema =
    format?.type === "json_schema" ? (Object(format.json_schema) as { schema?: object }).schema : undefined;
  if (format?.type === "json_schema" && schema === undefined) {
    throw new CompletionError("response_format lacks json_schema.schema.", "response_format");
  }
  const found: Constrained[] = [];
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

/**
 * Returns a request's sampling options, completed with `recommended`, for a model with `vocab` tokens. Throws
 * CompletionError for an invalid option.
 */
export function sampling(
  { temperature, top_p, seed, logit_bias }: ChatCompletionRequest,
  recommended: SamplingDefaults,
  vocab: number,
) {
  const checked = <T extends SamplingRequest>(param: string, options: T): T => {
    try {
      checkBias(samplingOptions(options).logitBias, vocab);
      return options;
    } catch (error) {
      throw error instanceof PageError ? new CompletionError(error.message, param) : error;
    }
  };
  return {
    ...recommended,
    ...checked("temperature", { temperature: temperature ?? recommended.temperature }),
    ...(top_p === 0 ? { temperature: 0 } : {}), // top_p 0 leaves only the likeliest token: greedy decoding
    ...checked("top_p", { topP: top_p == null ? recommended.topP : top_p || null }),
    ...checked("logit_bias", { logitBias: logit_bias ?? null }),
    ...checked("seed", { seed: seed ?? Math.floor(Math.random() * 2 ** 32) }),
  };
}

/**
 * Returns copies of the messages, with each content as one text, and with the arguments of calls as values instead of
 * JSON text. Throws CompletionError for invalid messages.
 */
export function plainMessages(messages: ChatCompletionRequest["messages"]): ChatMessage[] {
  const texts = Array.isArray(messages)
    ? (messages as readonly ChatCompletionMessage[]).map((message, i) => {
        const { content: given, tool_calls: calls } = Object(message) as Partial<ChatCompletionMessage>;
        const content = Array.isArray(given) ? joined(given, i) : given;
        if (calls?.length) return { ...message, content: content ?? "", tool_calls: withValues(calls, i) };
        return content === given ? message : { ...message, content };
      })
    : messages;
  try {
    return checkedMessages(texts);
  } catch (error) {
    throw error instanceof PageError ? new CompletionError(error.message, "messages") : error;
  }
}

/** Returns the text of a content's parts. Throws CompletionError for a part that is not a text. */
function joined(parts: readonly unknown[], i: number): string {
  const texts = parts.map((part) => {
    const { type, text } = Object(part) as { type?: unknown; text?: unknown };
    if (type === "text" && typeof text === "string") return text;
    const why = type === "text" ? "a text part without text" : `a part of type ${String(type)}; this model reads text`;
    throw new CompletionError(`messages[${i}] has ${why}.`, "messages");
  });
  return texts.join("");
}

/**
 * Returns copies of calls with their arguments as values instead of JSON text, as templates expect. Throws
 * CompletionError if a call has no function name, or its arguments are not a JSON object.
 */
function withValues(calls: readonly object[], i: number): object[] {
  if (!Array.isArray(calls)) throw new CompletionError(`messages[${i}]: tool_calls must be a list.`, "messages");
  return (calls as readonly object[]).map((call) => {
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
