// The types of viewer/schema/player.schema.json. Written by scripts/generate_schema.py.

export interface PlayerDocument {
  schema: 1;
  glgpt: string;
  /** Format of a texture -> GGUF's types that it holds without a change of any value */
  holds: Record<string, readonly string[]>;
  /** The file of lines that the shaders of all programs share */
  sources: {
    bytes: number;
    sha256: string;
  };
  shapes: readonly {
    name: string;
    folder: string;
    bytes: number;
    sha256: string;
    parameters: number;
    /** positions of the page's caches, and of the model */
    positions: readonly [number, number];
    /** true if positions are a learned table */
    learned: boolean;
    vocab: number;
    gguf: null | {
      architecture: string;
      /** key, value, whether a file may lack it */
      values: readonly (readonly [unknown, unknown, unknown])[];
      /** further keys, and the only value that a file may have; null: none */
      neutral: readonly (readonly [unknown, unknown])[];
      divisors: null | readonly number[];
    };
    config: {
      /** field, values that mean the same, whether a file may lack it */
      values: readonly (readonly [unknown, unknown, unknown])[];
      rope: null | Record<string, unknown>;
    };
  }[];
}
