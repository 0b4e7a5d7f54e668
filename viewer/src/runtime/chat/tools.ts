// Checks the functions that an answer may call, and builds the constraint of a forced call. For a chat template that
// does not support tools, converts functions, calls and results to text. The desktop's glgpt/api/tools.py has the same
// rules.

import { PageError, reason } from "../gl/errors";
import { dumped, isObject, type Json } from "../gl/json";
import { ARGUMENTS, CallParser, CLOSE, OPEN, PARAMETERS } from "./calls";
import type { ChatMessage } from "./template";

/** A function that the model may call. */
export interface Tool {
  type: "function";
  function: {
    name: string;
    description?: string | null;
    /** The JSON schema of the function's arguments. */
    parameters?: object | null;
    strict?: boolean | null;
  };
}

/** "none" forbids calls, "auto" allows them, "required" demands one, and a function demands a call of that function. */
export type ToolChoice = "none" | "auto" | "required" | { type: "function"; function: { name: string } };

/** A call in an answer. `arguments` is JSON text. */
export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

const MAX_TOOLS = 128; // the same as on the desktop
const COMBINED = ["$ref", "anyOf", "oneOf", "allOf"]; // keywords that combine or refer to schemas
// Keywords whose value is an object of named schemas.
const NAMED = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const DATA = ["enum", "const", "default", "examples"]; // keywords whose value is data, not a schema
const NO_PARAMETERS = { type: "object", properties: {} };

/** Thrown for tools or a choice of tools that cannot be used. `field` names the request's field with the error. */
export class ToolError extends PageError {
  constructor(
    message: string,
    readonly field: string,
  ) {
    super(message);
  }
}

/** Returns a copy of a value with only what JSON can hold. */
const plain = (value: unknown): Json => JSON.parse(JSON.stringify(value)) as Json;

export class Tools {
  private constructor(
    private readonly functions: readonly Tool["function"][],
    /** True if the answer must call a function. */
    readonly forced: boolean,
    private readonly most: number,
    /** Index of `functions[0]` in the request's list of tools. */
    private readonly first = 0,
  ) {}

  /**
   * Returns the tools of a request; null if the answer may not call any. Throws ToolError for invalid tools or choices.
   */
  static asked(tools: readonly Tool[] | null, choice: ToolChoice | null, parallel: boolean | null): Tools | null {
    if (tools !== null && !Array.isArray(tools)) throw new ToolError("tools must be a list of functions.", "tools");
    if (!tools?.length) {
      if (choice !== null && choice !== "none" && choice !== "auto") {
        throw new ToolError("tool_choice needs tools.", "tool_choice");
      }
      return null;
    }
    if (tools.length > MAX_TOOLS) throw new ToolError(`tools has more than ${MAX_TOOLS} functions.`, "tools");
    const functions = tools.map(checked);
    const names = functions.map(({ name }) => name);
    const twice = names.find((name, i) => names.indexOf(name) < i);
    if (twice !== undefined) throw new ToolError(`two functions are named ${twice}.`, "tools");
    if (choice === "none") return null;
    if (choice === null || choice === "auto") return new Tools(functions, false, parallel === false ? 1 : Infinity);
    if (choice === "required") return new Tools(functions, true, 1);
    const { type, function: own } = Object(choice) as Partial<Exclude<ToolChoice, string>>;
    if (type !== "function" || !isObject(own)) {
      const why = `tool_choice is ${JSON.stringify(choice)}; it must be "none", "auto", "required" or a function.`;
      throw new ToolError(why, "tool_choice");
    }
    const first = functions.findIndex(({ name }) => name === own.name);
    if (first < 0) throw new ToolError(`tool_choice names ${own.name}, which is not in tools.`, "tool_choice");
    return new Tools([functions[first]!], true, 1, first);
  }

  /** Returns the functions in the form that templates render. */
  documents(): Json[] {
    return this.functions.map(({ name, description, parameters }) =>
      plain({
        type: "function",
        function: { name, description: description || "", parameters: parameters ?? NO_PARAMETERS },
      }),
    );
  }

  parser(): CallParser {
    return new CallParser(
      this.functions.map(({ name }) => name),
      this.most,
    );
  }

  /** Returns the schema of a forced call. The field `key` holds the arguments, which match the function's schema. */
  schema(key: string): Json {
    const own: Record<string, Json> = {};
    const calls = this.functions.map(({ name, parameters }, i) => {
      let schema = plain(parameters ?? NO_PARAMETERS) as Record<string, Json>;
      // with COMBINED keywords, additionalProperties would also forbid the properties of the combined schemas
      if (!COMBINED.some((word) => word in schema)) schema = { additionalProperties: false, ...schema };
      own[i] = moved(schema, `#/$defs/${i}`);
      const properties = { name: { const: name }, [key]: { $ref: `#/$defs/${i}` } };
      return { type: "object", properties, required: ["name", key], additionalProperties: false };
    });
    return { anyOf: calls, $defs: own };
  }

  /**
   * Returns the error to throw if the constraint of a forced call cannot be used. `check` must reject for a schema that
   * cannot be used. The error names the first function whose schema `check` rejects, if there is one.
   */
  async unusable(error: unknown, check: (schema: object) => Promise<unknown>): Promise<ToolError> {
    for (const [i, { name, parameters }] of this.functions.entries()) {
      try {
        await check(parameters ?? NO_PARAMETERS);
      } catch (own) {
        const why = `The parameters of the function ${name}: ${reason(own)}`;
        return new ToolError(why, `tools.${this.first + i}.function.parameters`);
      }
    }
    return new ToolError(reason(error), "tools");
  }
}

/** Returns the function of a tool. Throws ToolError if the tool is invalid. */
function checked(tool: Tool, i: number): Tool["function"] {
  const { type, function: own } = Object(tool) as Partial<Tool>;
  const at = `tools.${i}`;
  if (type !== "function" || !isObject(own)) throw new ToolError(`${at} must be a function.`, at);
  if (typeof own.name !== "string" || !/^[a-zA-Z0-9_.-]{1,64}$/.test(own.name)) {
    throw new ToolError(`${at}.function.name must be 1 to 64 letters, digits, _, . or -.`, `${at}.function.name`);
  }
  if (own.parameters != null && (typeof own.parameters !== "object" || Array.isArray(own.parameters))) {
    throw new ToolError(`the parameters of ${own.name} must be a JSON schema.`, `${at}.function.parameters`);
  }
  return own;
}

/**
 * Returns a copy of a schema for a document that holds the copy at `root`: the copy's `#` references start with `root`.
 */
function moved(schema: Json, root: string): Json {
  if (Array.isArray(schema)) return (schema as readonly Json[]).map((each) => moved(each, root));
  if (!isObject(schema)) return schema;
  const found: Record<string, Json> = {};
  for (const [key, value] of Object.entries(schema)) {
    if (NAMED.includes(key) && isObject(value)) {
      found[key] = Object.fromEntries(Object.entries(value).map(([name, each]) => [name, moved(each, root)]));
    } else if (key === "$ref" && typeof value === "string" && value.startsWith("#")) found[key] = root + value.slice(1);
    else if (key !== "$schema" && key !== "$id") found[key] = DATA.includes(key) ? value : moved(value, root);
  }
  return found;
}

const SYSTEM = `You can call functions. Each line below describes one as JSON:
{tools}
To call one, answer with its name and arguments and nothing else:
<tool_call>
{"name": "…", "arguments": {…}}
</tool_call>
The result follows between <tool_response> and </tool_response>. Answer without a call if none is needed.`;

type Mentions = (text: string) => boolean;

/** Returns the name of the field with a call's arguments (`key`) and the text that begins a forced call (`start`). */
export function callForm(mentions: Mentions): { key: string; start: string } {
  const tagged = mentions(OPEN);
  const key = mentions(`"${PARAMETERS}": `) && !tagged ? PARAMETERS : ARGUMENTS;
  return { key, start: tagged || !mentions("tools") ? `${OPEN}\n` : "" };
}

/** Returns messages that a template can render. Calls and tools become text if the template does not mention them. */
export function forTemplate(messages: readonly ChatMessage[], tools: Tools | null, mentions: Mentions): ChatMessage[] {
  const found = mentions("tool_calls") ? [...messages] : withoutTools(messages);
  return tools && !mentions("tools") ? described(found, tools) : found;
}

/** Returns messages whose calls and results are text. */
function withoutTools(messages: readonly ChatMessage[]): ChatMessage[] {
  const found: ChatMessage[] = [];
  let results = false; // true if the previous message is a result
  for (const message of messages) {
    if (message.role === "tool") {
      const text = `<tool_response>\n${message.content}\n</tool_response>`;
      // consecutive results share one message, because some templates require alternating roles
      found.push({ role: "user", content: results ? `${found.pop()!.content}\n${text}` : text });
    } else if (message.tool_calls?.length) {
      const calls = message.tool_calls.map((call) => {
        const { name, arguments: own } = (call as { function: { name: string; arguments: Json } }).function;
        return `${OPEN}\n${dumped({ name, arguments: own })}\n${CLOSE}`;
      });
      found.push({ role: "assistant", content: [message.content, ...calls].filter(Boolean).join("\n") });
    } else found.push(message);
    results = message.role === "tool";
  }
  return found;
}

/** Returns the messages with a description of the tools in the system message. */
function described(messages: readonly ChatMessage[], tools: Tools): ChatMessage[] {
  const lines = tools.documents().map((each) => dumped((each as { function: Json }).function));
  const text = SYSTEM.replace("{tools}", () => lines.join("\n"));
  const [first, ...rest] = messages;
  const own = first && ["system", "developer"].includes(first.role) ? first : null;
  const content = own ? `${own.content}\n\n${text}`.trimStart() : text;
  return [{ role: "system", content }, ...(own ? rest : messages)];
}
