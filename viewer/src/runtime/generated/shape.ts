// The types of glgpt/page/documents. Written by scripts/generate_schema.py.

import type { Config, Family, ListedActivation, ListedFile, RecordingFiles, Tuning } from "./manifest";

/** The tensor of a checkpoint's folder that holds a parameter. */
export interface CheckpointTensor {
  name: string;
  shape: readonly number[];
  transposed: boolean;
}

/** The tensor of a GGUF file that holds a parameter. */
export interface FileTensor {
  name: string;
  shape: readonly number[];
  transposed: boolean;
  exchanged: readonly [number, number, number, number] | null;
  shift: number;
}

/** The bytes of the weights' textures, and of all. */
export interface MixBytes {
  weights: number;
  all: number;
}

/** A mix of types that the shape has programs for. */
export interface PageMix {
  name: string;
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k";
  formats: Record<string, "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k">;
  bytes: MixBytes;
  recordings: readonly RecordingFiles[];
}

/** The manifest's fields that do not depend on the weights. */
export interface ShapeManifest {
  schema: 3;
  glgpt: string;
  parameters: number;
  config: Config;
  tuning: Tuning;
  activations: readonly ListedActivation[];
  family: Family;
  patterns: readonly string[];
}

/** A parameter of a shape: see `glgpt.page.player.expected`. */
export interface ShapeParameter {
  name: string;
  checkpoint: CheckpointTensor;
  /** The first row of the tensor that is the parameter's, and the end of its rows; null: all */
  rows: readonly [number, number] | null;
  /** Rows and columns of the texture before heads are padded */
  matrix: readonly [number, number];
  /** Axis of the texture (0: rows), heads, their width without and with padding, and kinds of heads in turn */
  heads: readonly [number, number, number, number, number] | null;
  product: boolean;
  gguf: FileTensor | null;
}

/** The content of a shape's file. */
export interface ShapeDocument {
  schema: 1;
  manifest: ShapeManifest;
  parameters: readonly ShapeParameter[];
  tied: Record<string, string>;
  buffers: string;
  prefix: string;
  mixes: readonly PageMix[];
  files: Record<string, ListedFile>;
}
