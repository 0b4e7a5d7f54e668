// The types of viewer/schema/recorded.schema.json. Written by scripts/generate_schema.py.

/** A likely token, with its probability by the model and the one after sampling settings. */
export interface Candidate {
  id: number;
  label: string;
  p: number;
  sampled: number;
}

/** The attention over the first tokens. */
export interface RecordedAttention {
  /** number of first tokens covered */
  tokens: number;
  /** bytes 255 * weight^0.4 of the pairs on and below the diagonal, [layers][heads][rows][columns] */
  data: string;
}

/** Pictures of the machine as it computes some of the tokens. */
export interface RecordedMachine {
  /** width and height of a cell in texels */
  cell: readonly [number, number];
  /** the token of each picture, ascending */
  at: readonly number[];
  /** bytes, 127 for zero, rows from the top: a column of cells for the embedding, each block and the logits */
  pictures: readonly string[];
}

/** A token of the text; one that was generated has probabilities and candidates. */
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
