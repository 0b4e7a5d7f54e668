// Converts a JSON schema to a grammar of JSON texts. The grammar matches only texts that the schema accepts, but not
// all of them. For example, the matched texts have spaces only where Python's `json.dumps` writes spaces. Throws
// PageError for an unsupported keyword.

import { inJson, literal, UNICODE } from "./characters";
import { integers, numbers } from "./numbers";
import { patternGrammar } from "./pattern";
import { repeated, Repetitions, rulesText } from "./repetition";
import { PageError, reason } from "../gl/errors";
import { dumped, isObject, type Json } from "../gl/json";

type Schema = { readonly [key: string]: Json };

const MAX_DEPTH = 100; // maximum depth of nested schemas
const ANNOTATIONS = ["$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"];
ANNOTATIONS.push("example", "examples", "deprecated", "readOnly", "writeOnly");
/** The supported keywords of each type. */
const KEYWORDS = {
  object: ["properties", "required", "additionalProperties"],
  array: ["items", "prefixItems", "minItems", "maxItems", "uniqueItems"],
  string: ["minLength", "maxLength", "pattern", "format"],
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
  integer: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
  boolean: [],
  null: [],
} as const;
type Type = keyof typeof KEYWORDS;
const TYPES = Object.keys(KEYWORDS) as Type[];
/**
 * Regular expressions of the supported formats. The expression of ipv4 matches all texts that this format allows; the
 * others match only some of the texts of their formats.
 */
const FORMATS: Record<string, string> = {
  date: String.raw`[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])`,
  time: String.raw`([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z`,
  "date-time": String.raw`[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z`,
  uuid: String.raw`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`,
  email: String.raw`[a-z0-9]{1,32}(\.[a-z0-9]{1,32})?@[a-z0-9]{1,32}\.[a-z]{2,8}`,
  ipv4: String.raw`((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`,
};
const CHARACTER = inJson(UNICODE)!;
/** The rules that match any JSON value. */
const ANY: Record<string, string> = {
  any: 'any_object | any_array | any_string | any_number | "true" | "false" | "null"',
  any_object: '"{" (any_string ": " any (", " any_string ": " any)*)? "}"',
  any_array: '"[" (any (", " any)*)? "]"',
  any_string: `${literal('"')} ${CHARACTER}* ${literal('"')}`,
  any_number: numbers({}),
};

/** A grammar as xgrammar reads it. */
export interface Grammar {
  text: string;
  /**
   * True if the schema refers to itself, directly or indirectly. With such a schema, the text that must come next may
   * have no end. The rules of `ANY`, which refer to themselves too, do not count.
   */
  recursive: boolean;
}

/** Returns the grammar of a schema. For an unsupported keyword, throws a PageError with the keyword and its path. */
export function schemaGrammar(schema: unknown): Grammar {
  return new Converter(schema as Json).grammar();
}

/** True if a value has a type. */
function has(type: Type, value: Json): boolean {
  if (type === "integer") return Number.isInteger(value);
  if (type === "null") return value === null;
  if (type === "array") return Array.isArray(value);
  return type === "object" ? isObject(value) : typeof value === type;
}

class Converter {
  private readonly rules = new Map<string, string>();
  private readonly references = new Map<string, string>(); // the names of the rules, by `$ref`
  private readonly repetitions = new Repetitions(true);
  private recursive = false;
  private names = 0;
  private depth = 0;

  constructor(private readonly root: Json) {}

  grammar(): Grammar {
    this.rules.set("root", "");
    this.rules.set("root", this.value(this.root, "#"));
    const text = rulesText([...Object.entries(ANY), ...this.rules, ...this.repetitions.rules]);
    return { text, recursive: this.recursive };
  }

  private refused(path: string, why: string): PageError {
    return new PageError(`${path === "#" ? "" : `at ${path}, `}${why}`);
  }

  /** Adds a rule and returns its name. */
  private rule(expression: string): string {
    const name = `rule_${this.names++}`;
    this.rules.set(name, expression);
    return name;
  }

  /** Returns the expression that matches a schema's values. `path`: where the schema is, for errors. */
  private value(schema: Json | undefined, path: string): string {
    if (schema === true || schema === undefined) return "any";
    if (schema === false) throw this.refused(path, "the schema false allows no value");
    if (!isObject(schema)) throw this.refused(path, "a schema must be an object or a boolean");
    if (++this.depth > MAX_DEPTH) throw this.refused(path, `schemas are nested more than ${MAX_DEPTH} deep`);
    const found = `(${this.either(schema, path)})`;
    this.depth--;
    return found;
  }

  private either(schema: Schema, path: string): string {
    for (const name of ["$ref", "const", "enum", "anyOf", "oneOf", "allOf"] as const) {
      if (!(name in schema)) continue;
      const more = name === "const" || name === "enum" ? ["type"] : [];
      this.only(schema, [name, ...more], path, ` together with ${name}`);
      const value = schema[name]!;
      if (name === "$ref") return this.reference(value, path);
      if (name === "const") return this.listed([value], schema, `${path}/const`);
      if (!Array.isArray(value) || !value.length) throw this.refused(path, `${name} must be a list that is not empty`);
      const list = value as readonly Json[];
      if (name === "enum") return this.listed(list, schema, `${path}/enum`);
      if (name === "allOf" && list.length > 1) throw this.refused(path, "allOf with several schemas is not supported");
      if (name === "oneOf") this.disjoint(list, path);
      return list.map((one, i) => this.value(one, `${path}/${name}/${i}`)).join(" | ");
    }
    return this.typed(schema, path);
  }

  /** Throws PageError for a keyword that is neither in `known` nor an annotation. */
  private only(schema: Schema, known: readonly string[], path: string, more = ""): void {
    const other = Object.keys(schema).find((name) => !known.includes(name) && !ANNOTATIONS.includes(name));
    if (other !== undefined) throw this.refused(path, `the keyword ${JSON.stringify(other)} is not supported${more}`);
  }

  private reference(value: Json, path: string): string {
    if (typeof value !== "string") throw this.refused(path, "$ref must be a string");
    const known = this.references.get(value);
    if (known) {
      this.recursive ||= !this.rules.has(known); // true: the reference is inside the schema that it names
      return known;
    }
    const target = this.resolved(value);
    if (target === undefined) throw this.refused(path, `$ref ${JSON.stringify(value)} is not in the schema`);
    const name = `reference_${this.references.size}`;
    this.references.set(value, name);
    this.rules.set(name, this.value(target, value));
    return name;
  }

  /** Returns the part of the schema that a reference such as `#/$defs/a` names; undefined if the schema lacks it. */
  private resolved(reference: string): Json | undefined {
    if (!/^#(\/|$)/.test(reference)) return undefined;
    let found: Json | undefined = this.root;
    for (const part of reference.slice(2).split("/")) {
      if (reference === "#") break;
      const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
      if (typeof found !== "object" || !Object.hasOwn(found ?? {}, name)) return undefined;
      found = (found as Schema)[name];
    }
    return found;
  }

  private listed(values: readonly Json[], schema: Schema, path: string): string {
    const types = this.types(schema, path);
    const fitting = values.filter((value) => !types || types.some((type) => has(type, value)));
    if (!fitting.length) throw this.refused(path, "no value has the type");
    return fitting.map((value) => literal(dumped(value))).join(" | ");
  }

  /** Returns the types that a schema allows; null if it allows any type. */
  private types({ type }: Schema, path: string): Type[] | null {
    if (type === undefined) return null;
    const named = Array.isArray(type) ? (type as readonly Json[]) : [type];
    const wrong = named.find((name) => !TYPES.includes(name as Type));
    if (wrong !== undefined || !named.length) {
      throw this.refused(path, `type is ${JSON.stringify(wrong ?? type)}; it must be among ${TYPES.join(", ")}`);
    }
    return named as Type[];
  }

  /** Throws PageError if a value could be valid for two of the schemas. */
  private disjoint(schemas: readonly Json[], path: string): void {
    const all = schemas.map((schema) => this.followed(schema));
    for (const [i, a] of all.entries()) {
      for (const b of all.slice(i + 1)) {
        if (this.apart(a, b)) continue;
        throw this.refused(path, "oneOf has schemas that may validate the same value; use anyOf");
      }
    }
  }

  /** Returns the schema at the end of a chain of references. */
  private followed(schema: Json | undefined): Json | undefined {
    for (let steps = 0; steps < MAX_DEPTH && isObject(schema) && typeof schema["$ref"] === "string"; steps++) {
      schema = this.resolved(schema["$ref"]);
    }
    return schema;
  }

  /** True if types, constants or required properties show that no value is valid for both schemas. */
  private apart(a: Json | undefined, b: Json | undefined): boolean {
    if (!isObject(a) || !isObject(b)) return false;
    const values = ({ const: one, enum: list }: Schema) => (one !== undefined ? [one] : list);
    const [left, right] = [values(a), values(b)];
    if (Array.isArray(left) && Array.isArray(right)) {
      const texts = (right as readonly Json[]).map(dumped);
      return (left as readonly Json[]).every((value) => !texts.includes(dumped(value)));
    }
    const kinds = (schema: Schema, listed: Json | undefined): string[] | null => {
      const types = this.types(schema, "#");
      if (Array.isArray(listed)) {
        return (listed as readonly Json[]).flatMap((value) => TYPES.filter((type) => has(type, value)));
      }
      return types && types.flatMap((type) => (type === "number" ? [type, "integer"] : [type]));
    };
    const [one, other] = [kinds(a, left), kinds(b, right)];
    if (one && other && !one.some((type) => other.includes(type))) return true;
    const shared = [a["required"], b["required"]].map((list) => (Array.isArray(list) ? (list as string[]) : []));
    const property = (schema: Schema, name: string) =>
      isObject(schema["properties"]) ? this.followed(schema["properties"][name]) : undefined;
    const objects = one?.join() === "object" && other?.join() === "object";
    return (
      objects &&
      shared[0]!.some((name) => shared[1]!.includes(name) && this.apart(property(a, name), property(b, name)))
    );
  }

  private typed(schema: Schema, path: string): string {
    const present = TYPES.filter((type) => KEYWORDS[type].some((name) => name in schema) && type !== "integer");
    const types = this.types(schema, path) ?? (present.length ? present : null);
    this.only(schema, ["type", ...(types ?? []).flatMap((type) => KEYWORDS[type] as readonly string[])], path);
    if (!types) return "any";
    return types.map((type) => this.ofType(type, schema, path)).join(" | ");
  }

  private ofType(type: Type, schema: Schema, path: string): string {
    if (type === "null") return '"null"';
    if (type === "boolean") return '"true" | "false"';
    if (type === "string") return this.string(schema, path);
    if (type === "array") return this.array(schema, path);
    if (type === "object") return this.object(schema, path);
    const bounds: Record<string, number> = {};
    for (const name of KEYWORDS.number) {
      const bound = schema[name];
      if (bound === undefined) continue;
      if (typeof bound !== "number" || !Number.isFinite(bound)) throw this.refused(path, `${name} must be a number`);
      bounds[name] = bound;
    }
    try {
      return (type === "integer" ? integers : numbers)(bounds);
    } catch (error) {
      throw this.refused(path, reason(error));
    }
  }

  /** Returns the value of a keyword such as `minItems`, or `otherwise` if the keyword is missing. */
  private count(schema: Schema, name: string, otherwise: number, path: string): number {
    const value = schema[name] ?? otherwise;
    if (value === Infinity || (Number.isInteger(value) && (value as number) >= 0)) return value as number;
    throw this.refused(path, `${name} must be a non-negative integer`);
  }

  /** Returns the minimum and the maximum of a count, which are the values of the keywords `least` and `most`. */
  private counts(schema: Schema, least: string, most: string, path: string): [number, number] {
    const [low, high] = [this.count(schema, least, 0, path), this.count(schema, most, Infinity, path)];
    if (low > high) throw this.refused(path, `${least} is greater than ${most}`);
    return [low, high];
  }

  private string(schema: Schema, path: string): string {
    const { pattern, format } = schema;
    const [low, high] = this.counts(schema, "minLength", "maxLength", path);
    const text = (expression: string) => `${literal('"')} ${expression} ${literal('"')}`;
    const given = ["pattern", "format", "minLength", "maxLength"].filter((name) => name in schema);
    if (given.length > 1 && (pattern !== undefined || format !== undefined)) {
      throw this.refused(path, `the keyword ${given[0]} is not supported together with ${given[1]}`);
    }
    if (pattern === undefined && format === undefined) {
      const bounded = low > 0 || high < Infinity;
      return bounded ? text(this.repetitions.shared(UNICODE, low, high)) : "any_string";
    }
    if (format !== undefined && !Object.hasOwn(FORMATS, format as string)) {
      const known = Object.keys(FORMATS).join(", ");
      throw this.refused(path, `the format ${JSON.stringify(format)} is not supported, only ${known}`);
    }
    if (format === undefined && typeof pattern !== "string") throw this.refused(path, "pattern must be a string");
    try {
      const source = format === undefined ? (pattern as string) : FORMATS[format as string]!;
      return text(patternGrammar(source, this.repetitions));
    } catch (error) {
      throw this.refused(`${path}/pattern`, reason(error));
    }
  }

  private array(schema: Schema, path: string): string {
    const [low, high] = this.counts(schema, "minItems", "maxItems", path);
    if (schema["uniqueItems"] !== undefined && schema["uniqueItems"] !== false) {
      throw this.refused(path, 'the keyword "uniqueItems" is not supported');
    }
    const prefix = schema["prefixItems"] ?? [];
    if (!Array.isArray(prefix)) throw this.refused(path, "prefixItems must be a list");
    if (Array.isArray(schema["items"])) throw this.refused(path, "items must be a schema; use prefixItems");
    const first = (prefix as readonly Json[])
      .slice(0, high)
      .map((one, i) => this.value(one, `${path}/prefixItems/${i}`));
    const others = schema["items"] !== false && high > first.length;
    if (!others && low > first.length) throw this.refused(path, `minItems is greater than the number of items`);
    const item = others ? this.rule(this.value(schema["items"], `${path}/items`)) : "";
    if (!first.length) return `"[" ${item ? list(item, low, high) : ""} "]"`;
    let rest = item ? repeated(`(", " ${item})`, Math.max(0, low - first.length), high - first.length) : "";
    for (let i = first.length - 1; i >= 0; i--) {
      const part = `${i ? '", " ' : ""}${first[i]} ${rest}`;
      rest = i < low ? part : `(${part})?`;
    }
    return `"[" ${rest} "]"`;
  }

  private object(schema: Schema, path: string): string {
    const { properties = {}, additionalProperties: others = true } = schema;
    const required = schema["required"] ?? [];
    if (!isObject(properties)) throw this.refused(path, "properties must be an object");
    if (!Array.isArray(required) || required.some((name) => typeof name !== "string")) {
      throw this.refused(path, "required must be a list of names");
    }
    const unnamed = (required as readonly string[]).filter((name) => !Object.hasOwn(properties, name));
    if (unnamed.length && others === false) {
      throw this.refused(path, `required names ${JSON.stringify(unnamed[0])}, which is not in properties`);
    }
    const names = [...Object.keys(properties), ...new Set(unnamed)];
    if (!names.length) {
      if (others === false) return '"{}"';
      const member = this.rule(`any_string ": " ${this.value(others, `${path}/additionalProperties`)}`);
      return `"{" ${list(member, 0, Infinity)} "}"`;
    }
    // expressions that match the members from the current one on: `rest` (with a comma first) if another member
    // precedes them, `start` if they begin the object
    let [rest, start] = ["", ""];
    for (const name of names.reverse()) {
      const own = Object.hasOwn(properties, name);
      const place = `${path}/${own ? `properties/${name}` : "additionalProperties"}`;
      const member = `${literal(`${JSON.stringify(name)}: `)} ${this.value(own ? properties[name] : others, place)}`;
      const needed = required.includes(name);
      const one = this.rule(member);
      start = needed ? `${one} ${rest}` : `(${one} ${rest}${start ? ` | ${start}` : ' | ""'})`;
      rest = this.rule(needed ? `", " ${one} ${rest}` : `(", " ${one})? ${rest}`);
      start = this.rule(start);
    }
    return `"{" ${start} "}"`;
  }
}

/** Returns the expression that matches low..high members with commas between them; "" if `high` is 0. */
function list(member: string, low: number, high: number): string {
  if (high === 0) return "";
  const found = `${member} ${repeated(`(", " ${member})`, Math.max(0, low - 1), high - 1)}`;
  return low ? found : `(${found})?`;
}
