// The types of viewer/schema/player.schema.json. Written by scripts/generate_schema.py.

/** The fields by which a page recognises that a config.json has a shape. */
export interface ConfigFields {
  /** for each field: its name, the values that it may have, and true if a file may lack the field */
  values: readonly (readonly [string, unknown, boolean])[];
  rope: Record<string, unknown> | null;
}

/**
 * The metadata by which a page recognises that a GGUF file has a shape. Keys are without the architecture's prefix,
 * such as "llama.".
 */
export interface GgufKeys {
  architecture: string;
  /** for each key: its name, its value, and true if a file may lack the key */
  values: readonly (readonly [string, unknown, boolean])[];
  /** for each optional key: its name, and its only allowed value; null: the key must be absent */
  neutral: readonly (readonly [string, unknown])[];
  divisors: readonly number[] | null;
}

/** A shape: the file that describes it, and the fields by which a page recognises model files of this shape. */
export interface ShapeEntry {
  bytes: number;
  sha256: string;
  name: string;
  folder: string;
  parameters: number;
  /** maximum positions: of the page's caches, then of the model */
  positions: readonly [number, number];
  /** true if the model has a table of learned position embeddings */
  learned: boolean;
  vocab: number;
  gguf: GgufKeys | null;
  config: ConfigFields;
}

/** The size and SHA-256 of a file that player.json refers to. */
export interface ShapeFile {
  bytes: number;
  sha256: string;
}

/** The shapes for which a page without weights has programs. */
export interface PlayerDocument {
  schema: 1;
  glgpt: string;
  /** For each storage format, the types of GGUF whose values the format holds without a change */
  holds: Record<string, readonly string[]>;
  /** The file of GLSL source lines from which all programs' shaders are assembled */
  sources: ShapeFile;
  shapes: readonly ShapeEntry[];
}
