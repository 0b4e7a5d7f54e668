// The interface of the compared trainings, which begin with the same weights and see the same windows of the same text.

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

/** The text of a comparison, its seed, and the learning rate of every step. */
export interface Course {
  ids: Ids;
  seed: number;
  lr: number;
}

export interface Learner {
  readonly engine: string;
  /** Takes this many more steps. Resolves to their losses (nats per token) when the last step is done. */
  take(steps: number): Promise<number[]>;
  /** Returns the bytes of all its textures; null if the engine does not report them. */
  bytes(): number | null;
  close(): void;
}

export type Weights = Tensors;

/** Returns the positions at which a step's windows begin. */
export function firstIds({ ids, seed }: Course, { recipe: { batch, context } }: Shape, step: number): number[] {
  return starts(seed, step, batch, ids.length - context);
}

/** Returns a step's ids, window by window, and the target that follows each id. */
export function batch(course: Course, shape: Shape, step: number): { inputs: Int32Array; targets: Int32Array } {
  const { context } = shape.recipe;
  const at = firstIds(course, shape, step).flatMap((first) => Array.from({ length: context }, (_, i) => first + i));
  const ids = (offset: number) => Int32Array.from(at, (i) => course.ids[i + offset]!);
  return { inputs: ids(0), targets: ids(1) };
}
