// The types of glgpt/page/documents. Written by scripts/generate_schema.py.

import type { View } from "./program";

/** An entry of a program, with packed passes. */
export interface PackedEntry {
  name: string;
  inputs: readonly string[];
  outputs: Record<string, View>;
  ping_pong: readonly (readonly [string, string])[];
  passes: readonly (number | readonly [kind: number, ...names: string[]])[];
}

/** A packed program. */
export interface PackedDocument {
  schema: 2;
  scalars: Record<string, "int" | "float">;
  textures: readonly (readonly [
    string,
    number,
    number,
    number,
    "float" | "half" | "uint",
    "weight" | "state" | "input" | "scratch",
  ])[];
  views: Record<string, View>;
  lines: readonly string[];
  /** runs [first line, number of lines, ..]; the lines of sources.bin come first, then `lines` */
  shaders: Record<string, readonly number[]>;
  kinds: readonly (readonly [
    string,
    readonly string[],
    readonly (readonly [number, number])[],
    readonly [number, number],
    string | null,
    number,
    number,
    number,
    boolean,
    number,
    number,
  ])[];
  entries: readonly PackedEntry[];
}
