// The types of glgpt/page/documents. Written by scripts/generate_schema.py.

import type { Config, Family, ListedActivation, ListedFile, RecordingFiles, Tuning } from "./manifest";

/** The tensor that holds a parameter in the files of a checkpoint's folder, such as a safetensors file. */
export interface CheckpointTensor {
  name: string;
  shape: readonly number[];
  transposed: boolean;
}

/** The tensor that holds a parameter in a GGUF file. */
export interface FileTensor {
  name: string;
  shape: readonly number[];
  transposed: boolean;
  exchanged: readonly [number, number, number, number] | null;
  shift: number;
}

/** The bytes of textures of the program that generates text: of those with weights, and of all. */
export interface MixBytes {
  weights: number;
  all: number;
}

/** A mix (the choice of a storage format for each weight) for which the shape has programs. */
export interface PageMix {
  name: string;
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k" | "q2_k";
  formats: Record<string, "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k" | "q2_k">;
  bytes: MixBytes;
  recordings: readonly RecordingFiles[];
}

/** The fields of manifest.json that do not depend on a model's weights. */
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

/** A parameter of a shape, and the tensors that hold it: see `glgpt.page.player.expected`. */
export interface ShapeParameter {
  name: string;
  checkpoint: CheckpointTensor;
  /** The rows of the tensor that hold the parameter: [first, end), end excluded; null: all rows */
  rows: readonly [number, number] | null;
  /** Rows and columns of the texture's matrix before heads are padded */
  matrix: readonly [number, number];
  /** Five numbers: the axis of the texture that consists of heads (0: rows); the number of heads; the width of a head without padding; its width with padding; the number of kinds of heads, such as queries and keys, that alternate in the checkpoint (1: no alternation) */
  heads: readonly [number, number, number, number, number] | null;
  product: boolean;
  gguf: FileTensor | null;
}

/** The content of the file of a shape. */
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
