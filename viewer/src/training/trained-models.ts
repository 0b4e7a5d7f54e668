// Loads models that were trained in the page or saved as files, so that the page can run them next to its own model.

import { parseProgram, type Manifest, type Offer } from "../runtime/engine/manifest";
import type { Beside, Model, Weights } from "../runtime/engine/model";
import { TEXT_SAMPLING } from "../runtime/generated/sampling";
import { PageError } from "../runtime/gl/errors";
import type { Bpe } from "./bpe";
import { chosenFiles, readModel, type Files, type Loaded } from "./files";
import type { Offers } from "./offers";
import type { Session } from "./session";
import { TrainedVocabulary } from "./tokenise";
import { fitting, putParameters } from "./trainer";

export class TrainedModels {
  constructor(
    /** Returns the page's model. */
    private readonly model: () => Model,
    private readonly offers: Offers,
  ) {}

  /** Reads a saved model and finds the offer with the same configuration. Throws PageError if the page has none. */
  read(files: Files): Loaded & { offer: Offer } {
    const found = readModel(files, this.offers.index.sizes);
    const { config, bpe } = found;
    const same = (offer: Offer) =>
      Object.entries(offer.config).every(([key, value]) => (config[key] ?? value) === value) &&
      (offer.tokenizer === "bytes") === (bpe === null);
    const offer = this.offers.index.sizes.find(same);
    if (offer) return { ...found, offer };
    const fields = ["n_layer", "n_head", "n_embd", "n_positions", "vocab_size"] as const;
    throw new PageError(
      `This page has no program for that model (${fields.map((f) => `${f} ${String(config[f])}`).join(", ")}); ` +
        `it trains ${this.offers.index.sizes.map((s) => `${s.name} with ${s.tokenizer}`).join(", ")}.`,
    );
  }

  /** Returns the session's model, which shares the textures of the training's parameters. */
  async trained(session: Session): Promise<Beside> {
    const { offer, kernel, bpe } = session.plan;
    return this.beside(offer, "mine", bpe, session.weights, kernel);
  }

  /** Returns a saved model. Does not keep the files in memory: `fill` reads them again to fill the model's textures. */
  async saved(files: readonly File[]): Promise<Beside> {
    await this.offers.ready();
    const { offer, bpe, state } = this.read(await chosenFiles(files));
    fitting(offer, state, null, [""]);
    const weights: Weights = {
      own: true,
      shared: () => new Map(),
      version: () => "",
      fill: async (player) => putParameters(player, offer, this.read(await chosenFiles(files)).state),
    };
    return this.beside(offer, files[0]!.name, bpe, weights);
  }

  private async beside(
    offer: Offer,
    model: string,
    bpe: Bpe | null,
    weights: Weights,
    kernel?: string,
  ): Promise<Beside> {
    const { loader, manifest: page } = this.model();
    const chosen = this.offers.suiting(offer, kernel);
    const program = async (name: string) => parseProgram(await loader.packed(name), name);
    const [generate, capture] = await Promise.all([program(chosen.generate), program(chosen.capture)]);
    const { kernel: name, draw_buffers, interventions } = chosen;
    const recording = {
      kernel: name,
      draw_buffers,
      generate: chosen.generate,
      capture: chosen.capture,
      interventions,
      rows: "strided",
      product: "",
      row: "",
    } as const;
    const config = { ...offer.config, ...offer.shape };
    const about = {
      model,
      dtype: "f32",
      stored: null,
      parameters: offer.count,
      trained_on: null,
      recorded: null,
      split: null,
      chat: null,
      chat_template: null,
      sampling: TEXT_SAMPLING,
      head: null,
      config,
    } as const;
    const manifest: Manifest = {
      ...page,
      ...about,
      eos: bpe ? [0] : [],
      recordings: [recording],
      activations: offer.activations,
      family: offer.family,
    };
    return { manifest, programs: { generate, capture }, recording, tokenizer: new TrainedVocabulary(bpe), weights };
  }
}
