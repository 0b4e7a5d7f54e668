// Tests that the quick check of a document agrees with the slower validator, which names the errors.

import { Validator, type Schema } from "@cfworker/json-schema";
import { describe, expect, it } from "vitest";
import manifest from "../schema/manifest.schema.json";
import player from "../schema/player.schema.json";
import program from "../schema/program.schema.json";
import recorded from "../schema/recorded.schema.json";
import reference from "../schema/reference.schema.json";
import tokenizer from "../schema/tokenizer.schema.json";
import training from "../schema/training.schema.json";
import { matchesSchema } from "../src/runtime/engine/schema-match";

/** Holds the keywords that a sample depends on. */
interface Part {
  $id?: string;
  $ref?: string;
  $defs?: Record<string, Part>;
  const?: unknown;
  enum?: unknown[];
  anyOf?: Part[];
  type?: string | string[];
  properties?: Record<string, Part>;
  additionalProperties?: Part | boolean;
  prefixItems?: Part[];
  items?: Part;
  contains?: Part;
  minItems?: number;
  minimum?: number;
  exclusiveMinimum?: number;
  pattern?: string;
}

const SCHEMAS = { manifest, player, program, recorded, reference, tokenizer, training } as unknown as Record<
  string,
  Part
>;
const OTHERS = [manifest];
const MAX_DEPTH = 9; // maximum depth of references, which may be recursive
const TEXTS = ["x", "0".repeat(64), "AAAA", "bytes", "{}", "shapes/a", "https://a.b/", "wss://a.b/"];
const ODD: unknown[] = [null, true, 0, 1, -1, 0.5, 1e9, "", "ab", "f32", "x".repeat(99), [], [1, 2], {}, { a: 1 }];

/** Returns a value that matches a part of a schema, with all properties. */
function sample(part: Part, root: Part, depth = 0): unknown {
  const of = (other: Part) => sample(other, root, depth);
  if (part.$ref !== undefined) {
    const [id, path = ""] = part.$ref.split("#");
    const other = id ? (manifest as unknown as Part) : root;
    return depth < MAX_DEPTH ? sample(other.$defs![path.split("/").at(-1)!]!, other, depth + 1) : undefined;
  }
  if (part.const !== undefined) return part.const;
  if (part.enum) return part.enum[0];
  if (part.anyOf) return of(part.anyOf[0]!);
  switch ([part.type].flat()[0]) {
    case "object": {
      const found = Object.entries(part.properties ?? {}).map(([name, each]) => [name, of(each)] as const);
      const more = part.additionalProperties;
      return Object.fromEntries(typeof more === "object" ? [...found, ["more", of(more)]] : found);
    }
    case "array": {
      const found = (part.prefixItems ?? []).map(of);
      while (part.items && found.length < Math.max(1, part.minItems ?? 1)) found.push(of(part.items));
      return part.contains ? [...found, of(part.contains)] : found;
    }
    case "string":
      return TEXTS.find((text) => new RegExp(part.pattern ?? "", "u").test(text));
    case "integer":
    case "number":
      return part.minimum ?? (part.exclusiveMinimum ?? 0.5) + 0.5;
    case "boolean":
      return true;
    default:
      return null;
  }
}

/** Yields copies of a document. In each copy, one value is replaced, missing or repeated, or has a new neighbour. */
function* changed(document: unknown): Generator {
  yield* ODD;
  if (Array.isArray(document)) {
    yield [...(document as unknown[]), ...(document as unknown[])];
    yield document.slice(1);
    for (const [i, value] of document.entries()) for (const other of changed(value)) yield document.with(i, other);
  } else if (typeof document === "object" && document !== null) {
    yield { ...document, unknown: 1 };
    for (const [name, value] of Object.entries(document)) {
      yield Object.fromEntries(Object.entries(document).filter(([other]) => other !== name));
      for (const other of changed(value)) yield { ...document, [name]: other };
    }
  }
}

describe.each(Object.entries(SCHEMAS))("%s", (name, schema) => {
  it("is checked as by the validator", () => {
    const validator = new Validator(schema as Schema, "2020-12", true);
    if (name !== "manifest") validator.addSchema(manifest as Schema);
    const document: unknown = JSON.parse(JSON.stringify(sample(schema, schema))); // drops undefined values
    expect(validator.validate(document).errors).toEqual([]);
    const counts = { valid: 0, other: 0 };
    for (const each of [document, ...changed(document)]) {
      const { valid } = validator.validate(each);
      if (matchesSchema(schema, each, OTHERS) !== valid) expect.fail(`${valid}: ${JSON.stringify(each)}`);
      counts[valid ? "valid" : "other"]++;
    }
    expect(counts.valid).toBeGreaterThan(20);
    expect(counts.other).toBeGreaterThan(100);
  });
});

it("refuses any value for a keyword or a reference that it does not know", () => {
  expect(matchesSchema({ type: "integer" }, 3)).toBe(true);
  expect(matchesSchema({ type: "integer", multipleOf: 3 }, 3)).toBe(false);
  expect(matchesSchema({ $ref: "#/$defs/a" }, 3)).toBe(false);
});
