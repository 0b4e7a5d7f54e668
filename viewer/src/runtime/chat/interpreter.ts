// Renders chat templates, which are programs that come with a model. Limits the size of the values that a template
// computes. This module runs in a worker, which the page ends if a template takes too long.

import { Environment, Interpreter, parse, Template, tokenize } from "@huggingface/jinja";
import { isUnicode } from "../gl/unicode";

/** A template's source, and one set of variables for each text to render. */
export interface RenderJob {
  source: string;
  variables: Record<string, unknown>[];
}

export type Rendered = { texts: string[] } | { failed: string };

const MAX_TEXT = 1 << 20; // maximum characters of all rendered texts together; the same as on the desktop
const MAX_VALUE = 1 << 20; // maximum characters of a text, or items of a list or an object
const MAX_VALUES = 1 << 27; // maximum characters of all values; each item of a list or object counts as ITEM characters
const ITEM = 16;
const MAX_CONTENT = 1 << 23; // maximum sum of the characters and items in a list or an object, including nested ones
const MAX_DEPTH = 1000; // maximum depth of nested expressions
const MAX_REASON = 1000; // maximum characters of an error
const TOO_MUCH = "it needs too much memory";
const NESTED = "it is nested too deeply";

/** Thrown for a template that exceeds a limit. */
class LimitError extends Error {}

/** Returns the texts of a job, or the reason why it failed. */
export function rendered({ source, variables }: RenderJob): Rendered {
  try {
    const program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));
    let length = 0;
    const texts = variables.map((each) => {
      const text = new LimitedInterpreter(globals(each)).run(program).value as string;
      length += text.length;
      if (length > MAX_TEXT) throw new LimitError(`it produces ${length} characters, more than ${MAX_TEXT}`);
      return text;
    });
    return texts.every(isUnicode) ? { texts } : { failed: "it produces text that is not valid Unicode" };
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return { failed: error instanceof RangeError && /stack/.test(why) ? NESTED : why.slice(0, MAX_REASON) };
  }
}

/** Returns an environment with `variables` and the library's default names, but a `range` of limited length. */
function globals(variables: Record<string, unknown>): Environment {
  const environment = new Environment();
  const own = {
    ...{ true: true, false: false, none: null, True: true, False: false, None: null },
    raise_exception: (message: unknown) => {
      throw new Error(String(message));
    },
    range,
    strftime_now: (format: string) => new Template("{{ strftime_now(format) }}").render({ format }),
  };
  for (const [name, value] of Object.entries({ ...own, ...variables })) environment.set(name, value);
  return environment;
}

function range(start: number, stop?: number, step = 1): number[] {
  const [first, end] = stop === undefined ? [0, start] : [start, stop];
  const length = Math.max(0, Math.ceil((end - first) / step));
  if (Number.isNaN(length) || !step) throw new Error("range() needs integers, and a step other than 0");
  checkSize(length);
  return Array.from({ length }, (_, i) => first + i * step);
}

function checkSize(size: number): void {
  if (size > MAX_VALUE) throw new LimitError(`it computes a text or a list of ${size} parts, more than ${MAX_VALUE}`);
}

type Node = Parameters<Interpreter["evaluate"]>[0];
type Value = ReturnType<Interpreter["evaluate"]>;
type Statements = Parameters<Interpreter["run"]>[0]["body"];
type Context = Parameters<Interpreter["evaluate"]>[1];

/** Declares methods of the library's interpreter, including a method that the library's types hide. */
interface Methods {
  run(program: Parameters<Interpreter["run"]>[0]): Value;
  evaluate(node: Node, environment: Context): Value;
  evaluateBlock(statements: Statements, environment: Context): Value;
}

const SIZE = Symbol("size"); // the key of a value's cached size: texts, lists and objects never change
const Base = Interpreter as unknown as new (environment: Context) => Methods;

/** Runs a template, but limits the size of all values: a worker that runs out of memory would end the page too. */
class LimitedInterpreter extends Base {
  private depth = 0;
  private total = 0;

  override evaluate(node: Node, environment: Context): Value {
    if (++this.depth > MAX_DEPTH) throw new LimitError(NESTED);
    try {
      const found = super.evaluate(node, environment);
      this.size(found);
      return found;
    } finally {
      this.depth--;
    }
  }

  override evaluateBlock(statements: Statements, environment: Context): Value {
    const found = super.evaluateBlock(statements, environment);
    this.size(found);
    return found;
  }

  /** Returns the number of characters and items in a value, also in nested values. Counts new values in `total`. */
  private size(found: Value & { [SIZE]?: number }): number {
    if (found[SIZE] !== undefined) return found[SIZE];
    const value: unknown = found.value;
    if (typeof value === "string") return (found[SIZE] = this.count(value.length, value.length));
    if (!Array.isArray(value) && !(value instanceof Map)) return 1;
    const changes = found.type === "NamespaceValue";
    const [length, items]: [number, Iterable<Value>] = Array.isArray(value)
      ? [value.length, value]
      : [value.size, value.values()];
    let size = this.count(length, changes ? 0 : ITEM * length);
    for (const item of items) {
      if (item.type === "NamespaceValue") throw new LimitError("it stores a namespace in a list or an object");
      size += this.size(item);
      if (size > MAX_CONTENT) throw new LimitError(TOO_MUCH);
    }
    if (value instanceof Map) for (const name of value.keys()) size += String(name).length;
    if (!changes) found[SIZE] = size;
    return size;
  }

  /** Checks the size of a text or a list of `size` parts, and adds `characters` to `total`. Returns `size`. */
  private count(size: number, characters: number): number {
    checkSize(size);
    this.total += characters;
    if (this.total > MAX_VALUES) throw new LimitError(TOO_MUCH);
    return size;
  }
}
