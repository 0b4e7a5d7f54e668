// Chooses the next token from the logits on the device, there if it can decide, else in the page.

import type { Allowed } from "../constraints/grammars";
import { must } from "../gl/errors";
import { unpack } from "./layout";
import { MaskedSampling } from "./masked-sampling";
import type { Model } from "./model";
import {
  alternatives,
  certain,
  chosen,
  MAX_ALTERNATIVES,
  Sampler,
  samplingOptions,
  type AllowedIds,
  type Token,
} from "./sampling";

export class DeviceSampling {
  /** The sampler of the last text. */
  last = new Sampler(samplingOptions({ temperature: 0.8, topP: 0.9, seed: 1 }));

  /** Chooses tokens that a constraint allows. */
  readonly masked: MaskedSampling;

  constructor(private readonly model: Model) {
    this.masked = new MaskedSampling(model);
  }

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

  /**
   * Returns the token that the device chooses from those that a constraint allows, with `top` of the model's own
   * alternatives; null if it cannot decide.
   */
  async chooseAllowed(sampler: Sampler, step: number, allowed: Allowed, top = 0): Promise<Token | null> {
    if (!this.masked.ready) return null;
    const rows = top ? this.logits() : null;
    const [texels, logits] = await Promise.all([this.masked.choose(sampler, step, allowed), rows]);
    const { id, undecided } = chosen(texels, sampler);
    if (undecided) return null;
    if (!logits) return { id };
    const draw = sampler.greedy ? certain(id) : sampler.draw(sampler.adjusted(logits, [], allowed), step, allowed);
    return { id, ...alternatives(logits, top, id, draw) };
  }

  /** Sets the scalars of the entries that sample. */
  setScalars(sampler: Sampler, step: number): void {
    const scalars = sampler.scalars(step, this.model.manifest.config.vocab_size);
    for (const [name, value] of Object.entries(scalars)) this.model.player.set(name, value);
  }

  /** Samples the token after `text` in the page, from the logits on the device. */
  async fromRow(
    text: readonly number[],
    sampler: Sampler,
    step: number,
    top = 0,
    allowed: AllowedIds | null = null,
  ): Promise<Token> {
    const logits = await this.logits();
    const draw = sampler.draw(sampler.adjusted(logits, text, allowed), step, allowed);
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
