// The types of viewer/schema/reference.schema.json. Written by scripts/generate_schema.py.

export type Positive = number;

export type Ids = readonly number[];

export type Floats = string;

export interface ReferenceDocument {
  schema: 2;
  prompt: string | null;
  ids: Ids;
  greedy: Ids;
  device: string;
  tolerance: {
    relative: Positive;
    single: Positive;
    floor: Positive;
    kl: Positive;
  };
  logits: {
    first: number;
    data: Floats;
  };
  activations: Record<string, Floats>;
}
