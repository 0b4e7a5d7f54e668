// Defines the types of the files in an exported folder. Validates the files against the same schemas as the exporter.

import { Validator, type Schema } from "@cfworker/json-schema";
import manifestSchema from "../../../schema/manifest.schema.json";
import programSchema from "../../../schema/program.schema.json";
import recordedSchema from "../../../schema/recorded.schema.json";
import referenceSchema from "../../../schema/reference.schema.json";
import tokenizerSchema from "../../../schema/tokenizer.schema.json";
import type { Config, ListedActivation, ManifestDocument } from "../generated/manifest";
import type { RecordedDocument } from "../generated/recorded";
import type { ReferenceDocument } from "../generated/reference";
import type { TokenizerSchema } from "../generated/tokenizer";
import type * as training from "../generated/training";
import { PageError } from "../gl/errors";
import type { Program } from "../gl/program";
import { matchesSchema } from "./schema-match";
import type { SplitSettings } from "./split";

export type {
  Config,
  ExamplePrompt as Prompt,
  Family,
  ListedStage as Stage,
  RecordingFiles as Recording,
  Shard,
  Tuning,
} from "../generated/manifest";
export type { BundledText } from "../generated/training";

/**
 * The layout of a named activation in its matrix. `rows`: one row per token. `heads`: one row per token, with padded
 * heads. `cache`: one row per position, with padded heads. `scores`, `pattern`: one row per token and head, with index
 * token * heads + head, and one column per key. `width`: columns of a row; for `heads` and `cache`, the columns of one
 * head without padding.
 */
export type Activation = Omit<ListedActivation, "name">;

/** Activations by name, in the order of computation. */
export type Activations = ReadonlyMap<string, Activation>;

/** A manifest, with its activations by name. */
export interface Manifest extends Omit<ManifestDocument, "activations" | "split" | "schema"> {
  schema: number;
  activations: Activations;
  /** The server that can run blocks for a split page; null: not a split page. A split page may lack the last blocks. */
  split?: (SplitSettings & { activations: Activations }) | null;
}

/** T as a file stores it: activations are a list, because the order of an object's keys is not reliable. */
export type Listed<T extends { activations: Activations }> = Omit<T, "activations"> & {
  activations: readonly ListedActivation[];
};

export const byName = ({ activations }: Listed<{ activations: Activations }>): Activations =>
  new Map(activations.map((each) => [each.name, each]));

export function parseManifest(document: unknown): Manifest {
  type Split = Listed<NonNullable<Manifest["split"]>>;
  const manifest = checked(manifestSchema, document, "manifest.json") as Listed<Omit<Manifest, "split">> & {
    split?: Split | null;
  };
  const { split } = manifest;
  const { n_layer, n_head } = manifest.config;
  const named = manifest.activations.length;
  if (n_layer > named) throw damaged("manifest.json", `it has ${n_layer} blocks and names ${named} activations`);
  if (n_layer * n_head > MAX_HEADS) throw damaged("manifest.json", `it has ${n_layer} blocks of ${n_head} heads`);
  return { ...manifest, activations: byName(manifest), split: split ? { ...split, activations: byName(split) } : null };
}

const MAX_HEADS = 1 << 15; // maximum heads of all blocks; the page has an element for each head

export function parseProgram(document: unknown, name: string): Program {
  return checked(programSchema, document, name) as Program;
}

export interface Reference extends Omit<ReferenceDocument, "schema"> {
  schema: number;
}

export function parseReference(document: unknown, name: string): Reference {
  return checked(referenceSchema, document, name) as Reference;
}

/**
 * A generation recorded on the desktop. Each token's attention to itself and to each earlier token is
 * stored as a byte: 255 * weight^0.4.
 */
export interface Recorded extends Omit<RecordedDocument, "schema"> {
  schema: number;
}

export function parseRecorded(document: unknown, name: string, { n_layer, n_head }: Config): Recorded {
  const recorded = checked(recordedSchema, document, name) as Recorded;
  const { tokens, data } = recorded.attention;
  const pairs = (tokens * (tokens + 1)) / 2;
  if (tokens > recorded.tokens.length || (data.length * 3) / 4 < n_layer * n_head * pairs) {
    throw damaged(name, `it has attention of fewer than ${n_layer} blocks with ${n_head} heads over ${tokens} tokens`);
  }
  return recorded;
}

export function parseTokenizer(document: unknown, name: string): TokenizerSchema {
  return checked(tokenizerSchema, document, name) as TokenizerSchema;
}

/** A model size that the page can train with one kind of tokenizer. */
export interface Offer extends Omit<training.Offer, "activations" | "config" | "recipe"> {
  activations: Activations;
  config: Record<string, number | boolean | string | null> & training.Offer["config"];
  recipe: Record<string, unknown> & Omit<training.Offer["recipe"], "accumulate">;
}

export type Schedule = Offer["settings"]["schedule"];

export interface TrainingIndex extends Omit<training.TrainingDocument, "schema" | "sizes"> {
  schema: number;
  sizes: Offer[];
}

/** Returns a file's document. Throws PageError if the document or its version does not match the schema. */
export function checked(schema: unknown, document: unknown, name: string): unknown {
  const version = (document as { schema?: unknown } | null)?.schema;
  const { const: known } = (schema as { properties: { schema: { const: number } } }).properties.schema;
  if (version !== known) {
    throw new PageError(
      `${name} has schema version ${version === undefined ? "none" : JSON.stringify(version)} and this page ` +
        `reads version ${known}: ` +
        "the folder mixes two exports. Export the model again.",
    );
  }
  if (matchesSchema(schema as object, document, [manifestSchema])) return document;
  const validator = new Validator(schema as Schema, "2020-12", true);
  if (schema !== manifestSchema) validator.addSchema(manifestSchema as Schema); // other schemas refer to its parts
  const result = validator.validate(document);
  const error = result.errors.at(-1);
  if (!result.valid) throw damaged(name, `${error?.instanceLocation ?? "#"}: ${error?.error ?? ""}`);
  return document;
}

/** Returns the error for a file whose contents are not valid. */
export function damaged(name: string, why: string): PageError {
  return new PageError(`${name} is damaged: ${why.replace(/[.]$/, "")}. Export the model again.`);
}
