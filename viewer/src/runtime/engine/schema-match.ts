// Checks quickly if a document matches a JSON schema. Reports no reason if the document does not match.

import { isObject } from "../gl/json";

type Check = (value: unknown) => boolean;
type Schema = Readonly<Record<string, unknown>>;
type Compile = (schema: unknown) => Check;

const ANNOTATIONS = ["$schema", "$id", "$defs", "description"]; // keywords that check nothing
const never: Check = () => false;

const TYPES: Record<string, Check> = {
  array: Array.isArray,
  boolean: (value) => typeof value === "boolean",
  integer: Number.isInteger,
  null: (value) => value === null,
  number: (value) => typeof value === "number",
  object: isObject,
  string: (value) => typeof value === "string",
};

const ofNumber =
  (check: (value: number) => boolean): Check =>
  (value) =>
    typeof value !== "number" || check(value);
const ofString =
  (check: (value: string) => boolean): Check =>
  (value) =>
    typeof value !== "string" || check(value);
const ofArray =
  (check: (value: unknown[]) => boolean): Check =>
  (value) =>
    !Array.isArray(value) || check(value);
const ofObject =
  (check: (value: Record<string, unknown>) => boolean): Check =>
  (value) =>
    !isObject(value) || check(value);

/** Returns the number of Unicode characters of a text. */
const length = (text: string) => Array.from(text).length;

/** Keywords that do not depend on other keywords. Each function turns the keyword's value in a schema into a check. */
const KEYWORDS: Record<string, (wanted: never, compile: Compile) => Check> = {
  type: (wanted: string | readonly string[]) => anyOf([wanted].flat().map((name) => TYPES[name] ?? never)),
  const: (wanted: unknown) => (value) => value === wanted,
  enum: (wanted: readonly unknown[]) => (value) => wanted.includes(value),
  anyOf: (wanted: readonly unknown[], compile) => anyOf(wanted.map(compile)),
  minimum: (least: number) => ofNumber((value) => value >= least),
  maximum: (most: number) => ofNumber((value) => value <= most),
  exclusiveMinimum: (bound: number) => ofNumber((value) => value > bound),
  exclusiveMaximum: (bound: number) => ofNumber((value) => value < bound),
  minLength: (least: number) => ofString((value) => value.length >= least && (least < 2 || length(value) >= least)),
  maxLength: (most: number) => ofString((value) => value.length <= most || length(value) <= most),
  pattern: (source: string) => {
    const pattern = new RegExp(source, "u");
    return ofString((value) => pattern.test(value));
  },
  minItems: (least: number) => ofArray((value) => value.length >= least),
  maxItems: (most: number) => ofArray((value) => value.length <= most),
  contains: (schema: unknown, compile) => {
    const check = compile(schema);
    return ofArray((value) => value.some(check));
  },
  minProperties: (least: number) => ofObject((value) => Object.keys(value).length >= least),
  required: (names: readonly string[]) => ofObject((value) => names.every((name) => Object.hasOwn(value, name))),
};

function anyOf(checks: readonly Check[]): Check {
  const [first, second] = checks;
  return first && !second ? first : (value) => checks.some((check) => check(value));
}

/** Returns the check of an array's items. */
function items({ prefixItems = [], items: others }: Schema, compile: Compile): Check {
  const first = (prefixItems as unknown[]).map(compile);
  const other = others === undefined ? null : compile(others);
  return ofArray((value) => {
    for (let i = 0; i < value.length; i++) {
      const check = first[i] ?? other;
      if (check && !check(value[i])) return false;
    }
    return true;
  });
}

/** Returns the check of an object's values. */
function values({ properties = {}, additionalProperties: others }: Schema, compile: Compile): Check {
  const named = new Map(Object.entries(properties as Schema).map(([name, schema]) => [name, compile(schema)]));
  const other = others === undefined ? null : compile(others);
  return ofObject((value) => {
    for (const name in value) {
      const check = named.get(name) ?? other;
      if (check && !check(value[name])) return false;
    }
    return true;
  });
}

/** Compiles schemas to checks. A schema with an unknown keyword becomes a check that never passes. */
class Compiler {
  private readonly referred = new Map<string, Check>();

  constructor(
    private readonly root: Schema,
    private readonly others: readonly Schema[],
  ) {}

  readonly compile: Compile = (schema) => {
    if (!isObject(schema)) return () => schema === true;
    const checks: Check[] = [];
    for (const [keyword, wanted] of Object.entries(schema)) {
      if (ANNOTATIONS.includes(keyword)) continue;
      if (keyword === "$ref") checks.push(this.reference(wanted as string));
      else if (Object.hasOwn(KEYWORDS, keyword)) checks.push(KEYWORDS[keyword]!(wanted as never, this.compile));
      else if (!["items", "prefixItems", "properties", "additionalProperties"].includes(keyword)) return never;
    }
    if ("items" in schema || "prefixItems" in schema) checks.push(items(schema, this.compile));
    if ("properties" in schema || "additionalProperties" in schema) checks.push(values(schema, this.compile));
    const [first, second] = checks;
    if (first && !second) return first;
    return (value) => {
      for (const check of checks) if (!check(value)) return false;
      return true;
    };
  };

  /** Returns the check of a definition, which is compiled on first use, because definitions may be recursive. */
  private reference(name: string): Check {
    return (value) => {
      let check = this.referred.get(name);
      if (!check) this.referred.set(name, (check = this.definition(name)));
      return check(value);
    };
  }

  private definition(name: string): Check {
    const [id, path = ""] = name.split("#");
    const root = id ? this.others.find((schema) => schema["$id"] === id) : this.root;
    const found = /^\/\$defs\/(\w+)$/.exec(path);
    const schema = found && (root?.["$defs"] as Schema | undefined)?.[found[1]!];
    if (!root || schema === undefined) return never;
    return (root === this.root ? this : new Compiler(root, this.others)).compile(schema);
  }
}

const compiled = new WeakMap<object, Check>();

/**
 * Returns true only if a document matches a schema of `viewer/schema`. May return false for a matching document if the
 * schema has unknown keywords, or objects in `const` or `enum`. `others` are schemas that `schema` refers to.
 */
export function matchesSchema(schema: object, document: unknown, others: readonly object[] = []): boolean {
  let check = compiled.get(schema);
  if (!check) compiled.set(schema, (check = new Compiler(schema as Schema, others as Schema[]).compile(schema)));
  return check(document);
}
