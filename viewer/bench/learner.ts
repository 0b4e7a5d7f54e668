// What is raced in training: learners that begin with the same weights and see the same windows of the same text.

import { starts, type Ids } from "../src/training/batches";
import type { Tensors } from "../src/training/files";

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

/** A race's text, and the learning rate of every step. */
export interface Course {
  ids: Ids;
  seed: number;
  lr: number;
}

export interface Learner {
  readonly engine: string;
  /** Takes that many steps more, and resolves with their losses (nats a token) when the last one's work is done. */
  take(steps: number): Promise<number[]>;
  /** Bytes of all its textures; null where it does not say. */
  bytes(): number | null;
  close(): void;
}

export type Weights = Tensors;

/** The first ids of a step's windows. */
export function firstIds({ ids, seed }: Course, { recipe: { batch, context } }: Shape, step: number): number[] {
  return starts(seed, step, batch, ids.length - context);
}

/** A step's ids, window by window, and the targets that follow each. */
export function batch(course: Course, shape: Shape, step: number): { inputs: Int32Array; targets: Int32Array } {
  const { context } = shape.recipe;
  const at = firstIds(course, shape, step).flatMap((first) => Array.from({ length: context }, (_, i) => first + i));
  return { inputs: Int32Array.from(at, (i) => course.ids[i]!), targets: Int32Array.from(at, (i) => course.ids[i + 1]!) };
}
