// The settings of the Train tab: which of its five steps is shown, and the training's data set, model size, tokenizer
// and schedule.

import { signal } from "@preact/signals";
import type { Offer, Schedule, TrainingIndex } from "../../../runtime/engine/manifest";

/** The steps of the tab, not of the training. */
export const STAGES = ["data", "tokens", "train", "write", "score"] as const;
export type Stage = (typeof STAGES)[number];

export class SettingsStore {
  /** The step that is shown. */
  readonly stage = signal<Stage>("data");
  /** The sizes and texts that the page offers; null until they have loaded. */
  readonly index = signal<TrainingIndex | null>(null);
  /** The name of the selected data set; empty: the visitor's own text. */
  readonly set = signal("");
  readonly preset = signal("");
  readonly tokenizer = signal("");
  readonly schedule = {
    steps: signal(0),
    lr: signal(0),
    min_lr: signal(0),
    warmup: signal(0),
    seed: signal(0),
    evalEvery: signal(50),
    sampleEvery: signal(50),
  };
  readonly shape = signal<Schedule>("cosine");

  /** Selects a model size with its tokenizer, and sets the default schedule of this size. */
  readonly choose = (offer: Offer): void => {
    this.preset.value = offer.name;
    this.tokenizer.value = offer.tokenizer;
    const { steps, lr, min_lr, warmup } = offer.settings;
    this.schedule.steps.value = steps;
    this.schedule.lr.value = lr;
    this.schedule.min_lr.value = min_lr;
    this.schedule.warmup.value = warmup;
    this.shape.value = offer.settings.schedule;
  };

  readonly offer = (): Offer | undefined =>
    this.index.value?.sizes.find((s) => s.name === this.preset.value && s.tokenizer === this.tokenizer.value);
}
