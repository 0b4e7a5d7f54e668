// What an exported folder holds, and checking it against the schemas that the exporter was checked against.

import { Validator, type Schema } from "@cfworker/json-schema";
import manifestSchema from "../schema/manifest.schema.json";
import programSchema from "../schema/program.schema.json";
import { PageError, type Program } from "./program";

export const SCHEMA = 1;

export interface Shard {
  file: string;
  bytes: number;
  sha256: string;
  /** (texture, layer, first row, rows), one after another in the file. */
  pieces: [string, number, number, number][];
}

export interface Recording {
  draw_buffers: number;
  kernel: string;
  generate: string;
  capture: string;
  probe: string;
}

export type ActivationKind = "rows" | "heads" | "cache" | "scores" | "pattern";

export interface Config {
  vocab_size: number;
  n_positions: number;
  n_layer: number;
  n_head: number;
  n_embd: number;
  d_head: number;
}

export interface Manifest {
  schema: number;
  glgpt: string;
  model: string;
  dtype: "f32" | "f16";
  config: Config;
  recordings: Recording[];
  tokenizer: string | null;
  reference: string;
  activations: Record<string, ActivationKind>;
  files: Record<string, { bytes: number; sha256: string }>;
  shards: Shard[];
}

export function parseManifest(document: unknown): Manifest {
  return checked<Manifest>(manifestSchema, document, "manifest.json");
}

export function parseProgram(document: unknown, name: string): Program {
  return checked<Program>(programSchema, document, name);
}

function checked<T>(schema: unknown, document: unknown, name: string): T {
  const version = (document as { schema?: unknown } | null)?.schema;
  if (version !== SCHEMA) {
    throw new PageError(
      `${name} has schema version ${JSON.stringify(version) ?? "none"} and this page reads version ${SCHEMA}: ` +
        "the folder mixes two exports. Export the model again.",
    );
  }
  const result = new Validator(schema as Schema, "2020-12", true).validate(document);
  const error = result.errors.at(-1);
  if (!result.valid)
    throw new PageError(`${name} is damaged: ${error?.instanceLocation ?? "#"}: ${error?.error ?? ""}`);
  return document as T;
}
