// The settings of a training: its step of the tab, data set, size, tokenizer and schedule.

import { signal } from "@preact/signals";
import type { Offer, Schedule, TrainingIndex } from "../../../runtime/engine/manifest";

/** The steps of the tab. */
export const STAGES = ["data", "tokens", "train", "write", "score"] as const;
export type Stage = (typeof STAGES)[number];

/** The step that is shown. */
export const stage = signal<Stage>("data");
export const index = signal<TrainingIndex | null>(null);
/** The name of the selected data set; empty: the visitor's own text. */
export const set = signal("");
export const preset = signal("");
export const tokenizer = signal("");
export const schedule = {
  steps: signal(0),
  lr: signal(0),
  min_lr: signal(0),
  warmup: signal(0),
  seed: signal(0),
  evalEvery: signal(50),
  sampleEvery: signal(50),
};
export const shape = signal<Schedule>("cosine");

/** Selects a size and its default schedule. */
export function choose(offer: Offer): void {
  preset.value = offer.name;
  tokenizer.value = offer.tokenizer;
  const { steps, lr, min_lr, warmup } = offer.settings;
  schedule.steps.value = steps;
  schedule.lr.value = lr;
  schedule.min_lr.value = min_lr;
  schedule.warmup.value = warmup;
  shape.value = offer.settings.schedule;
}

export function offer(): Offer | undefined {
  return index.value?.sizes.find((s) => s.name === preset.value && s.tokenizer === tokenizer.value);
}
