// Writes texts with the current parameters of a training.

import { starts } from "./batches";
import { encodeText } from "./bpe";
import type { Plan } from "./plan";
import { WRITTEN } from "./score";
import type { Trainer } from "./trainer";

/** The settings of a sample. */
export interface SampleOptions {
  prompt: string;
  tokens: number;
  temperature: number;
}

export interface Sample {
  step: number;
  prompt: string;
  text: string;
}

export class Writer {
  constructor(
    private readonly plan: Plan,
    /** The bytes of each token. */
    readonly bytes: readonly Uint8Array[],
    private readonly trainer: () => Trainer,
  ) {}

  /** Writes a sample after `step` steps. When the context is full, keeps only the last `context / 2` tokens in it. */
  async sample(
    step: number,
    { prompt, tokens, temperature }: SampleOptions,
    onText: (text: string) => void,
  ): Promise<Sample> {
    const { seed, offer } = this.plan;
    const ids = this.encode(prompt);
    const given = ids.length;
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const entry: Sample = { step, prompt, text: "" };
    while (ids.length - given < tokens) {
      const window = ids.slice(-Math.max(1, Math.floor(offer.recipe.context / 2)));
      const wanted = Math.min(tokens - (ids.length - given), offer.recipe.context - window.length);
      const drawn = starts(seed, step, 1, 2 ** 31)[0]! + ids.length;
      for await (const id of this.trainer().generate(window, Math.max(1, wanted), { temperature, seed: drawn })) {
        ids.push(id);
        entry.text += decoder.decode(this.bytes[id], { stream: true });
        onText(entry.text);
      }
    }
    return entry;
  }

  /**
   * Writes the sample in which a score looks for copies of the training text. The text depends only on the model;
   * `glgpt/scoring/suite.py` writes the same text.
   */
  async compose(progress: (done: number) => void): Promise<string> {
    const { context } = this.plan.offer.recipe;
    const ids = this.encode("\n");
    const given = ids.length;
    const end = this.plan.bpe ? 0 : -1;
    let ended = false;
    while (!ended && ids.length - given < WRITTEN) {
      const window = ids.slice(-Math.max(1, Math.floor(context / 2)));
      const wanted = Math.max(1, Math.min(WRITTEN - (ids.length - given), context - window.length));
      for await (const id of this.trainer().generate(window, wanted, { temperature: 0.8, seed: ids.length })) {
        ended = id === end;
        if (ended) break;
        ids.push(id);
      }
      progress(ids.length - given);
    }
    return this.decode(ids.slice(given));
  }

  encode(text: string): number[] {
    const ids = Array.from(encodeText(text, this.plan.bpe));
    return ids.length ? ids : [this.plan.train[0]!];
  }

  decode(ids: Iterable<number>): string {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let text = "";
    for (const id of ids) text += decoder.decode(this.bytes[id], { stream: true });
    return text + decoder.decode();
  }
}
