// The types of viewer/schema/player.schema.json. Written by scripts/generate_schema.py.

/** The fields by which a page recognises a config.json. */
export interface ConfigFields {
  /** field, values that mean the same, whether a file may lack it */
  values: readonly (readonly [string, unknown, boolean])[];
  rope: Record<string, unknown> | null;
}

/** The metadata by which a page recognises a GGUF file. */
export interface GgufKeys {
  architecture: string;
  /** key, value, whether a file may lack it */
  values: readonly (readonly [string, unknown, boolean])[];
  /** further keys, and the only value that a file may have; null: none */
  neutral: readonly (readonly [string, unknown])[];
  divisors: readonly number[] | null;
}

/** A shape, by which a page recognises its files. */
export interface ShapeEntry {
  bytes: number;
  sha256: string;
  name: string;
  folder: string;
  parameters: number;
  /** positions of the page's caches, and of the model */
  positions: readonly [number, number];
  /** true if positions are a learned table */
  learned: boolean;
  vocab: number;
  gguf: GgufKeys | null;
  config: ConfigFields;
}

/** The size and SHA-256 of a file of shapes. */
export interface ShapeFile {
  bytes: number;
  sha256: string;
}

/** The shapes for which a page without weights has programs. */
export interface PlayerDocument {
  schema: 1;
  glgpt: string;
  /** Format of a texture -> GGUF's types that it holds without a change of any value */
  holds: Record<string, readonly string[]>;
  /** The file of lines that the shaders of all programs share */
  sources: ShapeFile;
  shapes: readonly ShapeEntry[];
}
