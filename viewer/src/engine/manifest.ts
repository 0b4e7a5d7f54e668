// What an exported folder holds, and checking it against the schemas that the exporter was checked against.

import { Validator, type Schema } from "@cfworker/json-schema";
import manifestSchema from "../../schema/manifest.schema.json";
import programSchema from "../../schema/program.schema.json";
import recordedSchema from "../../schema/recorded.schema.json";
import referenceSchema from "../../schema/reference.schema.json";
import tokenizerSchema from "../../schema/tokenizer.schema.json";
import trainingSchema from "../../schema/training.schema.json";
import { PageError } from "../gl/errors";
import type { Dtype, Program } from "../gl/program";
import type { SplitSettings } from "./split";
import type { Tolerance } from "./tolerance";


export interface Shard {
  file: string;
  bytes: number;
  sha256: string;
  /** (texture, layer, first row, rows), one after another in the file, of a texture without panels. */
  pieces: [string, number, number, number][];
}

/** The programs recorded for one kernel and one way of one-row products, and what to measure of them. */
export interface Recording {
  draw_buffers: number;
  kernel: string;
  rows: "strided" | "contiguous";
  generate: string;
  capture: string;
  product: string;
  row: string;
  /** `generate` with parts that can be cut. */
  interventions?: string;
  /** Texts side by side that continue one prompt. */
  several?: string;
}

/**
 * How a named activation lies in its matrix: a row a token; the same with padded heads; a row a position with padded
 * heads; rows are token * heads + head and columns keys. `width` is that of a row, or of a head of `heads` and `cache`.
 */
export interface Activation {
  kind: "rows" | "heads" | "cache" | "scores" | "pattern";
  heads: number;
  width: number;
}

/** By name, in the order in which they are computed. */
export type Activations = ReadonlyMap<string, Activation>;

/** A cell of a block in the machine: the activations within the block that it shows, and the part that adds them. */
export interface Stage {
  title: string;
  shows: readonly string[];
  adds: string | null;
}

/** What a family of models calls things, and the words for them (see the schema); `{}` is a block's number. */
export interface Family {
  blocks: readonly string[];
  positions: "absolute" | "rotary";
  stream: readonly [string, string];
  adds: readonly { part: string; out: string }[];
  stages: readonly Stage[];
  names: readonly { name: string; title?: string; about?: string }[];
}

/** A text to start from, and the caption of its button. */
export interface Prompt {
  title: string;
  text: string;
}

export interface Config {
  vocab_size: number;
  n_positions: number;
  n_layer: number;
  n_head: number;
  n_embd: number;
  d_head: number;
}

/** Constants that the desktop and the page share, described in the schema. */
export interface Tuning {
  one_token: number;
  /** The same of an entry that keeps every activation. */
  one_captured: number;
  per_chunk: number;
  panels_pay: number;
  steady: number;
  draw_flops: number;
  ahead: number;
  /** How many texts `several` of a recording continues. */
  texts?: number;
}

export interface Manifest {
  schema: number;
  glgpt: string;
  model: string;
  dtype: Dtype;
  /** How many there are; a shared one counts once. */
  parameters?: number;
  /** In a few words; null: not known. */
  trained_on?: string | null;
  /** Where the page's source is. */
  source?: string | null;
  config: Config;
  recordings: Recording[];
  tokenizer: string | null;
  /** The ids that end a text. */
  eos?: number[];
  reference: string;
  /** A generation to show until the model can run. */
  recorded?: string | null;
  tuning: Tuning;
  /** What can be trained: the file that lists it. */
  training?: string | null;
  activations: Activations;
  family: Family;
  /** Texts to start from; the page opens with the first. None without a tokenizer. */
  prompts: readonly Prompt[];
  /** Of an instruct model, what is sent for a message: ids of special tokens, texts, and null for the message. */
  chat?: readonly (number | string | null)[] | null;
  /** A head that the tour shows. */
  head?: { layer: number; head: number; text: string; question: string; answer: string } | null;
  /** Where attention can be made to look; none in pages exported before there were any. */
  patterns?: string[];
  /** Of a page that holds the first blocks alone: who runs the others. */
  split?: (SplitSettings & { activations: Activations }) | null;
  files: Record<string, { bytes: number; sha256: string }>;
  shards: Shard[];
}

/** As a file has it: a list, since the keys of an object have no order that a reader may rely on. */
type Listed<T extends { activations: Activations }> = Omit<T, "activations"> & { activations: readonly (Activation & { name: string })[] };

const byName = ({ activations }: Listed<{ activations: Activations }>): Activations => new Map(activations.map((each) => [each.name, each]));

export function parseManifest(document: unknown): Manifest {
  type Split = Listed<NonNullable<Manifest["split"]>>;
  const manifest = checked(manifestSchema, document, "manifest.json") as Listed<Omit<Manifest, "split">> & { split?: Split | null };
  const { split } = manifest;
  const { n_layer, n_head } = manifest.config;
  const named = manifest.activations.length;
  if (n_layer > named) throw damaged("manifest.json", `it has ${n_layer} blocks and names ${named} activations`);
  if (n_layer * n_head > MAX_HEADS) throw damaged("manifest.json", `it has ${n_layer} blocks of ${n_head} heads`);
  return { ...manifest, activations: byName(manifest), split: split ? { ...split, activations: byName(split) } : null };
}

const MAX_HEADS = 1 << 15; // of all blocks: the page has an element for each

export function parseProgram(document: unknown, name: string): Program {
  return checked(programSchema, document, name) as Program;
}

export interface Reference {
  schema: number;
  prompt: string | null;
  ids: number[];
  greedy: number[];
  device: string;
  tolerance: Tolerance;
  /** Of tokens `first`.. of the prompt; 32-bit floats in base64. */
  logits: { first: number; data: string };
  /** The last token's row of every intermediate, in the same form. */
  activations: Record<string, string>;
}

export function parseReference(document: unknown, name: string): Reference {
  return checked(referenceSchema, document, name) as Reference;
}

/** A generation of the desktop; attention as bytes, 255 * weight^0.4, of the pairs on and below the diagonal. */
export interface Recorded {
  schema: number;
  prompt: string;
  given: number;
  tokens: {
    id: number;
    text: string;
    label: string;
    p?: number;
    sampled?: number;
    top?: { id: number; label: string; p: number; sampled: number }[];
  }[];
  attention: { tokens: number; data: string };
  /** Pictures of the machine as the tokens `at` came out: bytes, 127 for zero, of cells of so many texels. */
  machine: { cell: [number, number]; at: number[]; pictures: string[] };
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

export interface TokenizerData {
  schema: number;
  pattern: string;
  ranks: string;
  ids: number[] | null;
  others: Record<string, string>;
  special: Record<string, number>;
  /** Ids that the tokenizer puts before and after a prompt. */
  prefix: number[];
  suffix: number[];
  prefix_space: boolean;
  vocab_size: number;
}

export function parseTokenizer(document: unknown, name: string): TokenizerData {
  return checked(tokenizerSchema, document, name) as TokenizerData;
}

/** A size of model that the page can train with a tokenizer of one kind. */
export interface Offer {
  name: string;
  tokenizer: string;
  /** Of model and recipe: who has the same trains the same. */
  digest: string;
  config: Record<string, number | boolean | string | null> & {
    vocab_size: number;
    n_positions: number;
    n_embd: number;
    n_layer: number;
    n_head: number;
  };
  /** What every family of models has, for `Manifest.config`. */
  shape: Pick<Config, "d_head">;
  activations: Activations;
  family: Family;
  recipe: Record<string, unknown> & { batch: number; context: number; betas: [number, number]; precision?: "f32" | "f16" };
  settings: { steps: number; lr: number; min_lr: number; warmup: number; schedule: Schedule };
  /** Parameters, bytes of all textures, and floating-point operations of a step's passes. */
  count: number;
  bytes: number;
  flops: number;
  /** The config.json of a checkpoint. */
  checkpoint: Record<string, unknown>;
  /** `stored` is the name in a checkpoint; `transposed`: the texture holds the transpose; a vector is one row. */
  parameters: { name: string; stored: string; shape: number[]; transposed: boolean }[];
  programs: {
    kernel: string;
    draw_buffers: number;
    file: string;
    /** What the other tabs play of a model of this size, with weights laid out as its parameters. */
    generate: string;
    capture: string;
    interventions: string;
  }[];
}

export type Schedule = "cosine" | "linear" | "constant";

/** A set that comes with the page. */
export interface BundledText {
  name: string;
  title: string;
  about: string;
  source: string;
  file: string;
  bytes: number;
}

export interface TrainingIndex {
  schema: number;
  /** Sets to train on, each in a file of its own; the first to begin with. */
  texts: BundledText[];
  /** What a visitor may ask to be fetched. */
  books: { title: string; author: string; url: string }[];
  /** Tokens of the entry `look`. */
  look: number;
  sizes: Offer[];
}

export function parseTraining(document: unknown, name: string): TrainingIndex {
  const index = checked(trainingSchema, document, name) as Omit<TrainingIndex, "sizes"> & { sizes: Listed<Offer>[] };
  return { ...index, sizes: index.sizes.map((offer) => ({ ...offer, activations: byName(offer) })) };
}

function checked(schema: unknown, document: unknown, name: string): unknown {
  const version = (document as { schema?: unknown } | null)?.schema;
  const { const: known } = (schema as { properties: { schema: { const: number } } }).properties.schema;
  if (version !== known) {
    throw new PageError(
      `${name} has schema version ${version === undefined ? "none" : JSON.stringify(version)} and this page reads version ${known}: ` +
        "the folder mixes two exports. Export the model again.",
    );
  }
  const validator = new Validator(schema as Schema, "2020-12", true);
  if (schema !== manifestSchema) validator.addSchema(manifestSchema as Schema); // whose definitions others refer to
  const result = validator.validate(document);
  const error = result.errors.at(-1);
  if (!result.valid) throw damaged(name, `${error?.instanceLocation ?? "#"}: ${error?.error ?? ""}`);
  return document;
}

/** Returns the error for a file whose contents are not valid. */
export function damaged(name: string, why: string): PageError {
  return new PageError(`${name} is damaged: ${why.replace(/[.]$/, "")}. Export the model again.`);
}
