// Applies interventions (changes of activations) to a model, and owns the program that supports them.

import { signal } from "@preact/signals-core";
import { Player } from "../gl/player";
import { must, PageError, reason } from "../gl/errors";
import {
  parseIntervention,
  patched,
  resolve,
  streamBehind,
  writeInterventions,
  type Intervention,
  type ResolvedIntervention,
} from "./interventions";
import { parseProgram } from "./manifest";
import { queriesOf, type Model, type Played } from "./model";

export class ActiveInterventions {
  private readonly applied = signal<readonly string[]>([]);
  /** The program that supports interventions, recorded without fused passes; null: not created yet. */
  program: Played | null = null;

  constructor(private readonly model: Model) {}

  /** The active interventions in text form (see `parseIntervention`), read from a signal. */
  get parts(): readonly string[] {
    return this.applied.value;
  }

  /** True if any interventions are active. */
  get active(): boolean {
    return this.parts.length > 0;
  }

  /** Applies these interventions and removes all others. Empties the caches. */
  async apply(parts: readonly string[]): Promise<void> {
    const { model } = this;
    const resolved: ResolvedIntervention[] = [];
    for (const change of parts.map(parseIntervention))
      resolved.push(...resolve(model.manifest, change, await this.valuesFor(change)));
    if (parts.length) this.program ??= await this.open();
    const now = must(parts.length ? this.program : model.whole, "the model");
    if (parts.length) writeInterventions(now.player, model.manifest, resolved);
    model.play(now);
    this.applied.value = [...parts];
  }

  /**
   * Applies the active interventions again, after a lost context, to the rebuilt model. If the context is lost again,
   * rejects, and the interventions stay active. On any other failure, removes them and throws PageError.
   */
  async applyAgain(): Promise<void> {
    const { parts } = this;
    try {
      await this.apply(parts);
    } catch (error) {
      if (this.model.stale) throw error; // the model will be built again
      this.applied.value = [];
      throw new PageError(
        `The graphics context was lost, and ${parts.join(", ")} could not be changed again: ${reason(error)}. ` +
          "The model is unchanged now; apply the changes again.",
      );
    }
  }

  private async open(): Promise<Played> {
    const { device, loader, options, recording, whole, drawFlops, compilation } = this.model;
    if (!recording.interventions)
      throw new PageError("This page was exported without support for changes to the model.");
    const generate = parseProgram(await loader.packed(recording.interventions), recording.interventions);
    const { player: main } = must(whole, "the whole model");
    const { generation } = device;
    const player = new Player(device, generate, options, main.shared(), drawFlops, queriesOf(this.model, generate));
    try {
      await player.prepare(...compilation.first);
    } catch (error) {
      if (device.isCurrent(generation)) player.close();
      throw error;
    }
    player.play("prepare");
    return { player, generate };
  }

  /**
   * Returns the vector that an intervention adds or inserts; null if it has none. For steering, this is the difference
   * between the residual stream at the last tokens of two texts (zeros for an empty text). For a patch, this is the
   * part's output in another text. The unchanged model computes these vectors.
   */
  private async valuesFor({ part, steering, patch }: Intervention): Promise<Float32Array | null> {
    const { manifest } = this.model;
    if (patch) return this.rowOf("other text", patched(manifest, part).name, patch.text, patch.position);
    if (!steering) return null;
    const name = streamBehind(manifest, part);
    const { towards, away } = steering;
    const to = towards ? await this.rowOf("text to steer towards", name, towards) : null;
    const from = away ? await this.rowOf("text to steer away from", name, away) : null;
    return (to ?? from!).map((_, i) => (to?.[i] ?? 0) - (from?.[i] ?? 0));
  }

  /**
   * Returns an activation at a position of a text, or at its last token if the text is shorter. `what` names the text
   * in an error message.
   */
  private async rowOf(what: string, name: string, text: string, position = Infinity): Promise<Float32Array> {
    const { model } = this;
    const ids = must(model.tokenizer, "a tokenizer").prompt(text);
    model.check(ids, what);
    const { shape, data } = must((await model.activations.capture.run(ids, [name])).get(name), name);
    const [rows = 1, width = 1] = shape;
    const row = Math.min(position, rows - 1);
    return data.slice(row * width, (row + 1) * width);
  }

  /** Bytes of the textures that only the program with interventions needs. */
  get bytes(): number {
    return this.program?.player.ownBytes() ?? 0;
  }
}
