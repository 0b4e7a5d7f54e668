// Reads the state from which a training continues, and returns the files of its model.

import { digest } from "../runtime/engine/loader";
import type { Rates } from "./batches";
import { modelFiles, written, type About, type Files } from "./files";
import type { Plan } from "./plan";
import type { Score } from "./score";
import type { StepResult, Trainer } from "./trainer";
import type { Sample } from "./writer";

export interface Point extends StepResult {
  lr: number;
  tokensPerS: number;
  /** Validation loss in nats per token (`validation`) and in bits per byte (`bits`), if the step was validated. */
  validation?: number;
  bits?: number;
}

/** The state from which a training continues. */
export interface Checkpoint {
  step: number;
  state: Uint8Array<ArrayBuffer>;
  about: About | null;
  /** The learning-rate schedule with which a later visit continues. */
  rates?: Rates;
  points: Point[];
  samples: Sample[];
  scores?: Score[];
}

/** Reads the state of a trainer, and the learning-rate schedule with which the training continues. */
export async function readState(
  { offer, rates, seed }: Plan,
  trainer: Trainer,
): Promise<Pick<Checkpoint, "step" | "state" | "about" | "rates">> {
  const step = trainer.steps;
  const state = await trainer.state(rates.lr);
  const { config, recipe } = offer;
  const { lossScale } = trainer;
  const about = { config, recipe, lr: rates.lr, seed, step, ...(lossScale && { loss_scale: lossScale }) };
  return { step, state, about, rates: { ...rates } };
}

/** Returns the files of a model folder that the desktop can load, made from a checkpoint's state. */
export async function filesOf({ text, origin, offer, bpe }: Plan, { state }: Checkpoint): Promise<Files> {
  const files = modelFiles(state, offer, bpe);
  if (text === null || !origin) return files;
  const bytes = new TextEncoder().encode(text);
  return { ...files, "source.json": written({ ...origin, bytes: bytes.length, sha256: await digest(bytes) }) };
}
