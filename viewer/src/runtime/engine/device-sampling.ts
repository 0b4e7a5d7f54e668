// Chooses the next token from the logits on the device, there if it can decide, else in the page.

import { must } from "../gl/errors";
import { unpack } from "./layout";
import type { Model } from "./model";
import { alternatives, certain, chosen, MAX_ALTERNATIVES, Sampler, samplingOptions, type Token } from "./sampling";

export class DeviceSampling {
  /** The sampler of the last text. */
  last = new Sampler(samplingOptions({ temperature: 0.8, topP: 0.9, seed: 1 }));

  constructor(private readonly model: Model) {}

  /** Returns the token that the device chooses from its logits, with `top` alternatives; null if it cannot decide. */
  async choose(sampler: Sampler, step: number, top = 0): Promise<Token | null> {
    const { player } = this.model;
    const rows = top > MAX_ALTERNATIVES ? this.logits() : null;
    const entry = sampler.entry ?? (top && !rows ? "sample" : null);
    if (entry) {
      this.setScalars(sampler, step);
      player.play(entry);
    }
    const [texels, logits] = await Promise.all([player.read("token"), rows]);
    const found = chosen(texels, sampler);
    if (found.undecided) return null;
    if (!top) return { id: found.id };
    if (!logits) return { id: found.id, ...found.weighed(top) };
    const draw = sampler.greedy ? certain(found.id) : sampler.draw(logits, step);
    return { id: found.id, ...alternatives(logits, top, found.id, draw) };
  }

  /** Sets the scalars of the entries that sample. */
  setScalars(sampler: Sampler, step: number): void {
    const scalars = sampler.scalars(step, this.model.manifest.config.vocab_size);
    for (const [name, value] of Object.entries(scalars)) this.model.player.set(name, value);
  }

  /** Samples the token after `text` in the page, from the logits on the device. */
  async fromRow(text: readonly number[], sampler: Sampler, step: number, top = 0): Promise<Token> {
    const logits = await this.logits();
    const draw = sampler.draw(sampler.adjusted(logits, text), step);
    this.model.cache.write(draw.id);
    return { id: draw.id, ...(top ? alternatives(logits, top, draw.id, draw) : {}) };
  }

  /** Reads the logits of the last token. */
  async logits(): Promise<Float32Array> {
    const { player, programs } = this.model;
    const view = must(programs.generate.views["logits"], "view logits");
    return unpack(view, await player.read(view.texture));
  }
}
