// The types of viewer/schema/reference.schema.json. Written by scripts/generate_schema.py.

/** The fields of a tolerance that a page needs. */
export interface PageTolerance {
  relative: number;
  single: number;
  floor: number;
  kl: number;
}

/** The logits from token `first` on, as float32. */
export interface ReferenceLogits {
  first: number;
  data: string;
}

/** A run on the desktop that a page repeats: a prompt, its greedy continuation, logits and activations. */
export interface ReferenceDocument {
  schema: 2;
  prompt: string | null;
  ids: readonly number[];
  greedy: readonly number[];
  device: string;
  tolerance: PageTolerance;
  logits: ReferenceLogits;
  activations: Record<string, string>;
}
