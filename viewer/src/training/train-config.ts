// Checks the options of a training and adds the missing ones.

import type { Offer, Schedule } from "../runtime/engine/manifest";
import { PageError } from "../runtime/gl/errors";
import { checkRate, type Ids, type Rates } from "./batches";

export interface TrainConfig extends Partial<Rates> {
  /** A size (`preset`) and a tokenizer (`bytes` or `bpe:N`) of one of the page's offers; by default, the first. */
  preset?: string;
  tokenizer?: string;
  /** The share of the text held back for validation (default: 0.1, or 0 for ids). */
  validation?: number;
  evalEvery?: number;
  sampleEvery?: number;
}

const KNOWN = [
  "preset",
  "tokenizer",
  "validation",
  "evalEvery",
  "sampleEvery",
  "steps",
  "lr",
  "min_lr",
  "warmup",
  "schedule",
];

/** Throws PageError for unknown options and for an invalid `validation`, `evalEvery` or `sampleEvery`. */
export function checkConfig(config: TrainConfig): void {
  const unknown = Object.keys(config).find((key) => !KNOWN.includes(key));
  if (unknown) throw new PageError(`config has no option ${unknown}; expected ${KNOWN.join(", ")}.`);
  const { validation = 0, evalEvery = 0, sampleEvery = 0 } = config;
  if (!(validation >= 0 && validation < 1)) throw new PageError(`validation is ${validation}; it must be in [0, 1).`);
  for (const [name, every] of Object.entries({ evalEvery, sampleEvery })) {
    if (!(Number.isInteger(every) && every >= 0)) {
      throw new PageError(`${name} is ${every}; it must be a positive integer, or 0 for never.`);
    }
  }
}

/** Throws PageError unless the text can be encoded. */
export function checkText(text: unknown): void {
  if (typeof text !== "string") throw new PageError("The text to train on must be a string.");
  if (/[\ud800-\udfff]/u.test(text)) throw new PageError("The text holds an unpaired surrogate.");
}

const SCHEDULES: readonly Schedule[] = ["cosine", "linear", "constant"];

/**
 * Returns the requested settings, with the offer's defaults for missing ones. Derives a missing `min_lr` or `warmup` as
 * the desktop does. Throws PageError for invalid settings.
 */
export function rates(offer: Offer, asked: Partial<Rates>): Rates {
  const steps = asked.steps ?? offer.settings.steps;
  const lr = asked.lr ?? offer.settings.lr;
  const found = {
    steps,
    lr,
    min_lr: asked.min_lr ?? lr / 10,
    warmup: asked.warmup ?? Math.min(100, Math.floor(steps / 20)),
    schedule: asked.schedule ?? offer.settings.schedule,
  };
  if (!(Number.isInteger(steps) && steps >= 1))
    throw new PageError(`steps is ${steps}; it must be a positive integer.`);
  checkRate(lr);
  if (!(found.min_lr >= 0 && found.min_lr <= lr)) {
    throw new PageError(`The final learning rate (min_lr) is ${found.min_lr}; it must be from 0 to ${lr}.`);
  }
  if (!(Number.isInteger(found.warmup) && found.warmup >= 0 && found.warmup < steps)) {
    throw new PageError(`Warmup is ${found.warmup} steps; it must be shorter than the training's ${steps} steps.`);
  }
  if (!SCHEDULES.includes(found.schedule))
    throw new PageError(`Schedule ${found.schedule} is not one of ${SCHEDULES.join(", ")}.`);
  return found;
}

/** Returns the ids for training. Throws PageError if an id is outside the vocabulary. */
export function checkedIds(ids: ArrayLike<number>, offer: Offer): Ids {
  const list = Array.from(ids);
  const wrong = list.find((id) => !(Number.isInteger(id) && id >= 0 && id < offer.config.vocab_size));
  if (wrong !== undefined) throw new PageError(`Id ${wrong} is outside the vocabulary of ${offer.config.vocab_size}.`);
  return Uint16Array.from(list);
}

/** Splits ids into the part to train on and the held-back share at the end. */
export function splitIds(ids: Ids, validation: number): { train: Ids; validation: Ids } {
  const at = Math.floor(ids.length * (1 - validation));
  return { train: ids.slice(0, at), validation: ids.slice(at) };
}
