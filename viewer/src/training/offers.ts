// Loads the list of texts and offers with which the page can train, and chooses the programs for this device. An offer
// is a model that the page can train: a size and a tokenizer.

import { parseProgram, type Offer, type Recording, type TrainingIndex } from "../runtime/engine/manifest";
import type { Model } from "../runtime/engine/model";
import { productMs } from "../runtime/engine/probe";
import { parseTraining } from "../runtime/engine/training-index";
import { must, PageError } from "../runtime/gl/errors";
import { check } from "../runtime/gl/player";
import type { Program } from "../runtime/gl/program";

const SHARE = 0.6; // FLOP/s of a step relative to a matrix product's; measured: 0.5 on an H200, 0.7 on software OpenGL

export class Offers {
  private listed: TrainingIndex | null = null;

  constructor(
    /** Returns the page's model. */
    private readonly model: () => Model,
    /** Resolves when the page has measured its device or has stopped trying. */
    private readonly measured: () => Promise<void>,
  ) {}

  /** Loads the list of offers and texts, once. */
  async ready(): Promise<TrainingIndex> {
    const { loader, manifest } = this.model();
    if (!manifest.training) throw new PageError("This page was exported without training; use glgpt export --train.");
    return (this.listed ??= parseTraining(await loader.json(manifest.training), manifest.training));
  }

  /** Returns the list, which `ready` has loaded. */
  get index(): TrainingIndex {
    return must(this.listed, "training.json");
  }

  /**
   * Returns the first offer of the size `preset` with `tokenizer`. Without `preset`, takes the first size in the list;
   * without `tokenizer`, any. Throws PageError if the list has no such offer.
   */
  offer(preset?: string, tokenizer?: string): Offer {
    const { sizes } = this.index;
    const named = sizes.filter((s) => s.name === (preset ?? sizes[0]!.name));
    const found = named.find((s) => !tokenizer || s.tokenizer === tokenizer);
    if (found) return found;
    const known = sizes.map((s) => `${s.name} with ${s.tokenizer}`).join(", ");
    const wanted = `${preset ?? sizes[0]!.name} with ${tokenizer ?? "any tokenizer"}`;
    throw new PageError(`This page cannot train ${wanted}; it can train ${known}.`);
  }

  /** Estimates a training's FLOP/s on this device from the time that the probe measured; 0: no probe was run. */
  async rate(): Promise<number> {
    if (!this.model().kernels.probe) await this.measured();
    const { loader, kernels, recording, options } = this.model();
    const ms = productMs(kernels.probe ?? {}, recording, options.fetch);
    if (!ms) return 0;
    const { entries } = parseProgram(await loader.json(recording.product), recording.product);
    const flops = entries["probe"]!.passes.reduce((sum, p) => sum + p.flops, 0);
    return (SHARE * flops) / (ms / 1000);
  }

  /** Returns a text that comes with the page. */
  async bundled(name: string): Promise<string> {
    const { texts } = await this.ready();
    const found = texts.find((text) => text.name === name);
    if (!found) {
      throw new PageError(`There is no text ${name}; expected one of ${texts.map((text) => text.name).join(", ")}.`);
    }
    return (await this.model().loader.packed(found.file)) as string;
  }

  /** Returns the file names of the bundled texts, and of each offer's programs for a recording's kernel. */
  async files({ kernel }: Recording = this.model().recording): Promise<string[]> {
    const { sizes, texts } = await this.ready();
    const played = sizes.map((offer) => this.suiting(offer, kernel));
    return [
      ...played.flatMap(({ file, generate, capture, interventions }) => [file, generate, capture, interventions]),
      ...texts.map(({ file }) => file),
    ];
  }

  /**
   * Returns an offer's programs for one kernel. Of the programs that this device can play, takes those for the kernel
   * `kept`, with which a training began; without these, those for the kernel of the page's model; else those that the
   * offer lists last. Throws PageError if this device can play none.
   */
  suiting(offer: Offer, kept?: string): Offer["programs"][number] {
    const { device, recording, modelOptions } = this.model();
    const buffers = Math.min(device.limits.drawBuffers, modelOptions.drawBuffers ?? Infinity);
    const fitting = offer.programs.filter((p) => p.draw_buffers <= buffers);
    const named = (kernel?: string) => fitting.find((p) => p.kernel === kernel);
    const found = named(kept) ?? named(recording.kernel) ?? fitting.at(-1);
    if (!found) {
      const least = Math.min(...offer.programs.map((p) => p.draw_buffers));
      const what = `This device renders to ${buffers} textures at once; training needs ${least}.`;
      throw new PageError(`${what} Update the browser and the graphics driver, or use another device.`);
    }
    return found;
  }

  /** Loads an offer's training program, chosen by `suiting`. Throws PageError if the device cannot run it. */
  async program(offer: Offer, kept?: string): Promise<{ program: Program; kernel: string }> {
    const { device, loader } = this.model();
    const chosen = this.suiting(offer, kept);
    const program = parseProgram(await loader.packed(chosen.file), chosen.file);
    check(program, device);
    return { program, kernel: chosen.kernel };
  }
}
