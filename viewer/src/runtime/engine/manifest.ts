// The types of the files in an exported folder, and their validation against the schemas that the exporter uses too.

import { Validator, type Schema } from "@cfworker/json-schema";
import manifestSchema from "../../../schema/manifest.schema.json";
import programSchema from "../../../schema/program.schema.json";
import recordedSchema from "../../../schema/recorded.schema.json";
import referenceSchema from "../../../schema/reference.schema.json";
import tokenizerSchema from "../../../schema/tokenizer.schema.json";
import trainingSchema from "../../../schema/training.schema.json";
import { PageError } from "../gl/errors";
import type { Dtype, Program } from "../gl/program";
import type { SplitSettings } from "./split";
import type { Tolerance } from "./tolerance";

export interface Shard {
  file: string;
  bytes: number;
  sha256: string;
  /** (texture, layer, first row, rows), one after another in the file, in the layout of a texture without panels. */
  pieces: [string, number, number, number][];
}

/** The files of the programs recorded for one kernel and one layout of one-row products, and of their probes. */
export interface Recording {
  draw_buffers: number;
  kernel: string;
  rows: "strided" | "contiguous";
  /** True if only devices that blend floats can play it. */
  blends?: boolean;
  generate: string;
  capture: string;
  product: string;
  row: string;
  /** `generate` with interventions. */
  interventions?: string;
  /** Batched continuations of one prompt. */
  several?: string;
}

/**
 * The layout of a named activation in its matrix. `rows`: one row per token. `heads`: the same, with padded heads.
 * `cache`: one row per position, with padded heads. `scores`, `pattern`: row token * heads + head, one column per key.
 * `width`: columns of a row; for `heads` and `cache`, of a head without padding.
 */
export interface Activation {
  kind: "rows" | "heads" | "cache" | "scores" | "pattern";
  heads: number;
  width: number;
}

/** Activations by name, in the order of computation. */
export type Activations = ReadonlyMap<string, Activation>;

/** A cell of a block in the machine view: the activations of the block that it shows, and the part that adds them. */
export interface Stage {
  title: string;
  shows: readonly string[];
  adds: string | null;
}

/** A model family's names, with captions and explanations (see the schema); `{}` stands for a block's number. */
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

/** Constants shared by the desktop and the page, described in the schema. */
export interface Tuning {
  one_token: number;
  /** `one_token` for an entry that captures all activations. */
  one_captured: number;
  per_chunk: number;
  panels_pay: number;
  steady: number;
  draw_flops: number;
  ahead: number;
  /** Number of texts that `several` of a recording continues. */
  texts?: number;
}

export interface Manifest {
  schema: number;
  glgpt: string;
  model: string;
  dtype: Dtype;
  /** Number of parameters; a shared parameter counts once. */
  parameters?: number;
  /** The training data, in a few words; null: not known. */
  trained_on?: string | null;
  /** Address of the page's source. */
  source?: string | null;
  config: Config;
  recordings: Recording[];
  tokenizer: string | null;
  /** The ids that end a text. */
  eos?: number[];
  reference: string;
  /** The file of a generation to show until the model can run. */
  recorded?: string | null;
  tuning: Tuning;
  /** The file that lists what can be trained. */
  training?: string | null;
  activations: Activations;
  family: Family;
  /** Texts to start from; the page opens with the first. None without a tokenizer. */
  prompts: readonly Prompt[];
  /** The chat format of an instruct model: ids of special tokens, texts, and null for the message. */
  chat?: readonly (number | string | null)[] | null;
  /** The head that the tour shows. */
  head?: { layer: number; head: number; text: string; question: string; answer: string } | null;
  /** Attention patterns that interventions can set; absent in older exports. */
  patterns?: string[];
  /** The server of a split page, whose model has all or only the first blocks. */
  split?: (SplitSettings & { activations: Activations }) | null;
  files: Record<string, { bytes: number; sha256: string }>;
  shards: Shard[];
}

/** The form in a file: activations are a list, since readers cannot rely on the order of an object's keys. */
type Listed<T extends { activations: Activations }> = Omit<T, "activations"> & {
  activations: readonly (Activation & { name: string })[];
};

const byName = ({ activations }: Listed<{ activations: Activations }>): Activations =>
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

const MAX_HEADS = 1 << 15; // over all blocks; the page has an element for each head

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
  /** Logits of the prompt's tokens from `first` on: 32-bit floats in base64. */
  logits: { first: number; data: string };
  /** The last token's row of every activation, in the same encoding. */
  activations: Record<string, string>;
}

export function parseReference(document: unknown, name: string): Reference {
  return checked(referenceSchema, document, name) as Reference;
}

/** A generation recorded on the desktop. Attention: bytes 255 * weight^0.4, for the pairs on and below the diagonal. */
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
  /** Pictures of the machine view at the tokens `at`: bytes, 127 for zero; `cell` is a cell's size in texels. */
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

/** A model size that the page can train with one kind of tokenizer. */
export interface Offer {
  name: string;
  tokenizer: string;
  /** Digest of model and recipe: equal digests mean equal trainings. */
  digest: string;
  config: Record<string, number | boolean | string | null> & {
    vocab_size: number;
    n_positions: number;
    n_embd: number;
    n_layer: number;
    n_head: number;
  };
  /** The field of `Manifest.config` that `config` lacks. */
  shape: Pick<Config, "d_head">;
  activations: Activations;
  family: Family;
  recipe: Record<string, unknown> & {
    batch: number;
    context: number;
    betas: [number, number];
    precision?: "f32" | "f16";
  };
  settings: { steps: number; lr: number; min_lr: number; warmup: number; schedule: Schedule };
  /** Number of parameters, bytes of all textures, and floating-point operations of a step. */
  count: number;
  bytes: number;
  flops: number;
  /** The config.json of a checkpoint. */
  checkpoint: Record<string, unknown>;
  /** `stored`: name in a checkpoint; `transposed`: the texture holds the transpose; a vector is one row. */
  parameters: { name: string; stored: string; shape: number[]; transposed: boolean }[];
  programs: {
    kernel: string;
    draw_buffers: number;
    file: string;
    /** Programs of the other tabs for a model of this size, with weights in the layout of the parameters. */
    generate: string;
    capture: string;
    interventions: string;
  }[];
}

export type Schedule = "cosine" | "linear" | "constant";

/** A text that comes with the page. */
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
  /** Texts to train on, each in its own file; the first is selected by default. */
  texts: BundledText[];
  /** Books that a visitor can have fetched. */
  books: { title: string; author: string; url: string }[];
  /** Number of tokens of the entry `look`. */
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
  if (schema !== manifestSchema) validator.addSchema(manifestSchema as Schema); // others refer to its definitions
  const result = validator.validate(document);
  const error = result.errors.at(-1);
  if (!result.valid) throw damaged(name, `${error?.instanceLocation ?? "#"}: ${error?.error ?? ""}`);
  return document;
}

/** Returns the error for a file whose contents are not valid. */
export function damaged(name: string, why: string): PageError {
  return new PageError(`${name} is damaged: ${why.replace(/[.]$/, "")}. Export the model again.`);
}
