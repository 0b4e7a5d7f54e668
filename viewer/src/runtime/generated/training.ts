// The types of viewer/schema/training.schema.json. Written by scripts/generate_schema.py.

import type { Family, ListedActivation } from "./manifest";

/** A text that comes with the page. */
export interface BundledText {
  name: string;
  title: string;
  about: string;
  source: string;
  file: string;
  bytes: number;
}

/** A book that the page can fetch. */
export interface ListedBook {
  title: string;
  author: string;
  url: string;
}

/** A model size that the page can train with one kind of tokenizer. */
export interface Offer {
  name: string;
  tokenizer: string;
  digest: string;
  config: OfferConfig;
  shape: OfferShape;
  activations: readonly ListedActivation[];
  family: Family;
  checkpoint: Record<string, unknown>;
  recipe: OfferRecipe;
  settings: OfferSettings;
  count: number;
  bytes: number;
  flops: number;
  parameters: readonly OfferedParameter[];
  programs: readonly OfferedProgram[];
}

/** The sizes of a model to train; further fields are those of the model's family. */
export interface OfferConfig {
  vocab_size: number;
  n_positions: number;
  n_embd: number;
  n_layer: number;
  n_head: number;
}

/** The settings that a training program depends on, as in `glgpt.training.program.Recipe`. */
export interface OfferRecipe {
  batch: number;
  context: number;
  accumulate: 1;
  precision?: "f32" | "f16";
  betas: readonly [number, number];
}

/** The default settings of a run. */
export interface OfferSettings {
  steps: number;
  lr: number;
  min_lr: number;
  warmup: number;
  schedule: "cosine" | "linear" | "constant";
}

/** The sizes of a model that have the same names in every family, such as `d_head`. */
export interface OfferShape {
  d_head: number;
}

/** A parameter's names and shape, and whether its texture holds the transpose. */
export interface OfferedParameter {
  name: string;
  stored: string;
  shape: readonly number[];
  transposed: boolean;
}

/** The files of the programs for one kernel (the block of a matrix product that one fragment computes). */
export interface OfferedProgram {
  kernel: string;
  draw_buffers: number;
  file: string;
  generate: string;
  capture: string;
  interventions: string;
}

/** The models that a page can train (`sizes`), and the texts to train on. */
export interface TrainingDocument {
  schema: 6;
  texts: readonly BundledText[];
  books: readonly ListedBook[];
  look: number;
  sizes: readonly Offer[];
}
