// Defines the plan of a training, which is made when the training is created. Only the plan's `rates` may change later.

import type { Offer } from "../runtime/engine/manifest";
import type { Ids, Rates } from "./batches";
import type { Bpe } from "./bpe";
import type { Origin } from "./training";

export interface Plan {
  offer: Offer;
  /**
   * The kernel (variant of the matrix product) of the training program. Programs that share the training program's
   * textures must be recorded for the same kernel.
   */
  kernel: string;
  /** The text to train on; null: ids were given instead. */
  text: string | null;
  origin: Origin | null;
  bpe: Bpe | null;
  train: Ids;
  validation: Ids;
  /** The share of the text's bytes that is held back for validation and scoring, from the end of the text. */
  share: number;
  rates: Rates;
  seed: number;
  /** Steps between validations, and between samples; 0: none. */
  evalEvery: number;
  sampleEvery: number;
}
