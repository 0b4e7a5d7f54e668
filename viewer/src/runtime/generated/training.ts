// The types of viewer/schema/training.schema.json. Written by scripts/generate_schema.py.

import type { Activations, Family } from "./manifest";

export type Size = number;

export interface Offer {
  name: string;
  tokenizer: string;
  digest: string;
  config: {
    vocab_size: Size;
    n_positions: Size;
    n_embd: Size;
    n_layer: Size;
    n_head: Size;
  };
  shape: {
    d_head: Size;
  };
  activations: Activations;
  family: Family;
  checkpoint: Record<string, unknown>;
  recipe: {
    batch: Size;
    context: Size;
    accumulate: 1;
    precision?: "f32" | "f16";
    betas: readonly [number, number];
  };
  settings: {
    steps: Size;
    lr: number;
    min_lr: number;
    warmup: number;
    schedule: "cosine" | "linear" | "constant";
  };
  count: Size;
  bytes: Size;
  flops: Size;
  parameters: readonly {
    name: string;
    shape: readonly Size[];
    stored: string;
    transposed: boolean;
  }[];
  programs: readonly {
    kernel: string;
    draw_buffers: Size;
    file: string;
    generate: string;
    capture: string;
    interventions: string;
  }[];
}

export interface TrainingDocument {
  schema: 6;
  texts: readonly {
    name: string;
    title: string;
    about: string;
    source: string;
    file: string;
    bytes: Size;
  }[];
  books: readonly {
    title: string;
    author: string;
    url: string;
  }[];
  look: Size;
  sizes: readonly Offer[];
}
