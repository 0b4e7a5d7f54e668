// Generates several continuations of one prompt in a batch.

import { ContextLost } from "../gl/device";
import { must, PageError } from "../gl/errors";
import { Player } from "../gl/player";
import type { Run } from "./generate";
import { parseProgram } from "./manifest";
import type { Model } from "./model";
import { Sampler, type Token } from "./sampling";
import { Several } from "./several";
import { Speculation } from "./speculation";

export interface BatchOptions {
  /** Indices of the texts that are not continued. */
  over: ReadonlySet<number>;
}

export class BatchGenerator {
  private several: Several | null = null;
  private opening: Promise<Several> | null = null;
  private closings = 0;

  constructor(private readonly model: Model) {}

  /** Number of texts in a batch; 0 if the model in its current state supports no batches. */
  get texts(): number {
    const { recording, interventions, placement, manifest } = this.model;
    return recording.several && !interventions.active && !placement.server ? (manifest.tuning.texts ?? 0) : 0;
  }

  /**
   * Generates several continuations of one prompt, with the seeds `seed`, `seed` + 1, …. Each iteration yields one
   * token per text, or null for a text that has ended or is in `over`. The tokens equal those of
   * `TextGenerator.generate` (generate.ts) with the same seed, but a text ends when the context or the batch's caches
   * are full. If the graphics context is lost and restored, generation starts again and skips the tokens already
   * yielded.
   */
  async *generate(ids: readonly number[], run: Run, options: BatchOptions): AsyncGenerator<(Token | null)[]> {
    const { model } = this;
    model.check(ids);
    for (let given = 0; !run.signal?.aborted;) {
      try {
        let at = 0;
        for await (const tokens of this.once(ids, run, options)) {
          if (at++ < given) continue;
          given++;
          yield tokens;
        }
        return;
      } catch (error) {
        if (!(error instanceof ContextLost) && !model.device.lost) throw error;
        await model.recover(run.signal);
      }
    }
  }

  private async *once(ids: readonly number[], run: Run, { over }: BatchOptions): AsyncGenerator<(Token | null)[]> {
    const { model } = this;
    const several = await this.opened();
    if (run.signal?.aborted) return;
    const texts = Array.from({ length: several.size }, (_, i) => ({
      ids: [...ids],
      sampler: new Sampler({ ...run.sampling, seed: run.sampling.seed + i }),
      ended: false,
    }));
    const count = Math.min(run.tokens, several.room(ids.length));
    for (let step = 0; step < count; step++) {
      if (step === 0) {
        await model.cache.prepare(ids);
        await model.sampling.prepare(texts[0]!.sampler);
        model.cache.prefill(ids);
      }
      if (step === 1) several.begin(ids.length);
      if (step > 0)
        several.step(
          step - 1,
          texts.map((text) => text.ids.at(-1)!),
        );
      const drawn = texts.map(async ({ sampler, ended }, i) => {
        if (ended || over.has(i) || sampler.adjusts) return null;
        if (step > 0) several.take(i);
        return model.sampling.choose(sampler, step);
      });
      await Promise.allSettled(drawn);
      const tokens: (Token | null)[] = [];
      for (const [i, text] of texts.entries()) {
        let token = await drawn[i]!;
        if (!token && !text.ended && !over.has(i)) {
          if (step > 0) several.take(i);
          token = await model.sampling.fromRow(text.ids, text.sampler, step);
        }
        if (run.eos !== false && token && model.ends(token.id)) token = null;
        if (token) text.ids.push(token.id);
        else text.ended = true;
        tokens.push(token);
      }
      yield tokens;
      if (run.signal?.aborted || tokens.every((token) => !token)) return;
    }
  }

  /** Returns an object that checks guessed tokens; null if the model in its current state supports no batches. */
  async speculation(): Promise<Speculation | null> {
    if (!this.texts) return null;
    const several = await this.opened();
    await several.player.prepare("restore_1");
    return new Speculation(this.model, several);
  }

  /** Returns the textures and shaders of a batch, created on first use. */
  private async opened(): Promise<Several> {
    const { recording, interventions, placement } = this.model;
    const { several: name } = recording;
    if (!name) throw new PageError("This model was exported without support for several texts at once.");
    if (interventions.active)
      throw new PageError("Parts of the model are changed; restore them to write several texts.");
    if (placement.server) throw new PageError("A model that runs on a server writes one text at a time.");
    if (this.several ?? this.opening) return this.several ?? this.opening!;
    const opening = this.open(name).finally(() => this.opening === opening && (this.opening = null));
    return (this.opening = opening);
  }

  /** True while the batch's textures and shaders are created, even if the call that needed them has ended. */
  get opens(): boolean {
    return this.opening !== null;
  }

  private async open(name: string): Promise<Several> {
    const { device, loader, options, whole, drawFlops, manifest } = this.model;
    const { closings } = this;
    const program = parseProgram(await loader.packed(name), name);
    const main = must(whole, "the whole model").player;
    const player = new Player(device, program, options, main.shared(["weight", "state"]), drawFlops);
    player.playsConcurrently = true;
    if (device.full) {
      player.close();
      throw new PageError("This device does not have enough memory for several texts at once.");
    }
    try {
      await player.prepare(...Several.played(Object.keys(program.entries)));
      if (closings !== this.closings) throw new ContextLost(); // `close` was called while the shaders compiled
    } catch (error) {
      if (!this.model.stale) player.close();
      throw error;
    }
    return (this.several = new Several(player, manifest.config.n_positions));
  }

  /** Bytes of the textures that only the batch uses. */
  get bytes(): number {
    return this.several?.bytes ?? 0;
  }

  /** Deletes the textures, which are created again when needed. `lost`: true if a lost context deleted them already. */
  close(lost = this.model.stale): void {
    if (!lost) this.several?.close();
    this.several = this.opening = null;
    this.closings++;
  }
}
