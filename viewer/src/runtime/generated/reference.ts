// The types of viewer/schema/reference.schema.json. Written by scripts/generate_schema.py.

/** The numbers that a page needs: `relative` and `kl` of `Tolerance`, and the constants `SINGLE` and `FLOOR`. */
export interface PageTolerance {
  relative: number;
  single: number;
  floor: number;
  kl: number;
}

/** The logits of the prompt's tokens from index `first` on, as float32 values. */
export interface ReferenceLogits {
  first: number;
  data: string;
}

/** A desktop run that a page repeats: a prompt, its greedy continuation, logits, and last id's activations. */
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
