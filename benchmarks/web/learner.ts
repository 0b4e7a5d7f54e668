// The interface of the training implementations that are compared. They begin with the same weights, and train on the
// same windows (sequences of `context` tokens) of the same text.

import { starts, type Ids } from "../../viewer/src/training/batches";
import type { Tensors } from "../../viewer/src/training/files";

export interface Shape {
  name: string;
  config: { vocab_size: number; n_embd: number; n_layer: number; n_head: number; layer_norm_epsilon: number };
  recipe: {
    batch: number;
    context: number;
    betas: [number, number];
    eps: number;
    weight_decay: number;
    clip: number;
  };
}

/** The token ids of the text, the seed that selects each step's windows, and the learning rate, which is constant. */
export interface Course {
  ids: Ids;
  seed: number;
  lr: number;
}

export interface Learner {
  readonly engine: string;
  /** Runs `steps` more training steps. Resolves to the losses of these steps (nats per token) after the last step. */
  take(steps: number): Promise<number[]>;
  /** Returns the size in bytes of all textures of the engine; null if the engine does not report it. */
  bytes(): number | null;
  close(): void;
}

export type Weights = Tensors;

/** Returns the positions in the text at which a step's windows begin. */
export function firstIds({ ids, seed }: Course, { recipe: { batch, context } }: Shape, step: number): number[] {
  return starts(seed, step, batch, ids.length - context);
}

/** Returns a step's ids, window by window, and for each id its target: the id that follows it in the text. */
export function batch(course: Course, shape: Shape, step: number): { inputs: Int32Array; targets: Int32Array } {
  const { context } = shape.recipe;
  const at = firstIds(course, shape, step).flatMap((first) => Array.from({ length: context }, (_, i) => first + i));
  const ids = (offset: number) => Int32Array.from(at, (i) => course.ids[i + offset]!);
  return { inputs: ids(0), targets: ids(1) };
}
