// The types of viewer/schema/recorded.schema.json. Written by scripts/generate_schema.py.

export type Probability = number;

export interface Candidate {
  id: number;
  label: string;
  p: Probability;
  sampled: Probability;
}

export interface RecordedDocument {
  schema: 1;
  prompt: string;
  /** number of tokens of the prompt */
  given: number;
  tokens: readonly {
    id: number;
    text: string;
    label: string;
    p?: Probability;
    sampled?: Probability;
    top?: readonly Candidate[];
  }[];
  attention: {
    /** number of first tokens covered */
    tokens: number;
    /** bytes 255 * weight^0.4 of the pairs on and below the diagonal, [layers][heads][rows][columns] */
    data: string;
  };
  machine: {
    /** width and height of a cell in texels */
    cell: readonly [number, number];
    /** the token of each picture, ascending */
    at: readonly number[];
    /** bytes, 127 for zero, rows from the top: a column of cells for the embedding, each block and the logits */
    pictures: readonly string[];
  };
}
