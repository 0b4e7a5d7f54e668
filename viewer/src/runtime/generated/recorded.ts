// The types of viewer/schema/recorded.schema.json. Written by scripts/generate_schema.py.

/** A likely token, with its probability before (`p`) and after (`sampled`) sampling settings are applied. */
export interface Candidate {
  id: number;
  label: string;
  p: number;
  sampled: number;
}

/** The attention weights of every head for the first tokens of the text. */
export interface RecordedAttention {
  /** number of tokens, counted from the start of the text */
  tokens: number;
  /** a byte 255 * weight^0.4 for each layer, head, row (the token that attends) and column; row i ends at column i */
  data: string;
}

/** Pictures of the machine, the page's drawing of the whole model, for several tokens. */
export interface RecordedMachine {
  /** width and height of a cell in texels */
  cell: readonly [number, number];
  /** index of the token that each picture shows, ascending */
  at: readonly number[];
  /** each picture has a byte per texel (127 for zero), row by row from the top; its columns of cells show, from left to right, the embedding, each block, and the logits */
  pictures: readonly string[];
}

/** A token of the text; a generated token also has probabilities and candidates. */
export interface RecordedToken {
  id: number;
  text: string;
  label: string;
  p?: number;
  sampled?: number;
  top?: readonly Candidate[];
}

/** A generation that a page shows until the model can run. */
export interface RecordedDocument {
  schema: 1;
  prompt: string;
  seed: number;
  /** number of tokens of the prompt */
  given: number;
  tokens: readonly RecordedToken[];
  attention: RecordedAttention;
  machine: RecordedMachine;
}
