// Chooses the next token from the logits: on the device, or in the page if the device cannot decide. The device
// compares only some of the tokens (candidates). If the choice may depend on other tokens, the device cannot decide.

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
  type Draw,
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

  /** Returns the entry that samples or lists likely tokens; null if the best token, which `decode` finds, is enough. */
  private entry(sampler: Sampler, top: number): string | null {
    return sampler.entry ?? (top && top <= MAX_ALTERNATIVES ? "sample" : null);
  }

  /** Compiles the shaders that choose tokens on the device. */
  async prepare(sampler: Sampler, top = 0): Promise<void> {
    const entry = this.entry(sampler, top);
    if (entry && !sampler.adjusts) await this.model.player.prepare(entry);
  }

  /** True if the page chooses the token, because `sampler` changes the logits or the shaders are not compiled yet. */
  inPage(sampler: Sampler, top = 0): boolean {
    const entry = this.entry(sampler, top);
    return sampler.adjusts || (entry !== null && !this.model.player.isPrepared(entry));
  }

  /** Returns the token that the device chooses, with `top` alternatives; null if the device cannot decide. */
  async choose(sampler: Sampler, step: number, top = 0): Promise<Token | null> {
    const { player } = this.model;
    const entry = this.entry(sampler, top);
    const rows = top > MAX_ALTERNATIVES ? this.logits() : null;
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
   * Returns the token that the device chooses from those that a constraint allows; null if the device cannot decide or
   * lacks the program (`MaskedSampling.ready`). The `top` alternatives are those of the model without the constraint.
   */
  async chooseAllowed(sampler: Sampler, step: number, allowed: Allowed, top = 0): Promise<Token | null> {
    if (!this.masked.ready) return null;
    const rows = top ? this.logits() : null;
    const [id, logits] = await Promise.all([this.masked.choose(sampler, step, allowed), rows]);
    if (id === null) return null;
    if (!logits) return { id };
    const draw = sampler.greedy ? certain(id) : sampler.draw(sampler.adjusted(logits, [], allowed), step, allowed);
    return { id, ...alternatives(logits, top, id, draw) };
  }

  /**
   * True if the page reads only a token's texel to learn what `chooseAllowed` chooses. False if the page reads all
   * logits, as for alternatives: that read would also wait for commands that are issued after it.
   */
  readsOnlyToken(sampler: Sampler, top = 0): boolean {
    return this.masked.ready && !sampler.adjusts && !top;
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
    return this.taken(logits, sampler.draw(sampler.adjusted(logits, text, allowed), step, allowed), top);
  }

  /** Samples in the page the token that the device would choose, and starts compiling the device's sampling shaders. */
  async early(sampler: Sampler, step: number, top = 0): Promise<Token> {
    const logits = await this.logits();
    const { device } = this.model;
    this.prepare(sampler, top).catch((error: unknown) => device.lost || console.warn("compiling:", error));
    return this.taken(logits, sampler.drawAsDevice(logits, step), top);
  }

  /** Writes the token that the page chose to the texture that the device reads. Returns it with `top` alternatives. */
  private taken(logits: Float32Array, draw: Draw, top: number): Token {
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
