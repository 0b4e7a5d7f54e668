// Chooses tokens on the device from those that a constraint allows. The program is `masked_program` of
// glgpt/inference/constraints/masking.py; its mask of allowed tokens is a small texture.

import type { Allowed } from "../constraints/grammars";
import { BitReader } from "../gl/bits";
import { Player } from "../gl/player";
import { LOGIT_STATES } from "./kv-cache";
import { parseProgram } from "./manifest";
import type { Model } from "./model";
import { chosen, type Sampler } from "./sampling";

export class MaskedSampling {
  private player: Player | null = null;
  private main: Player | null = null; // the player whose states `player` shares
  private bits: BitReader | null = null; // null: tokens are read with a fence

  constructor(private readonly model: Model) {}

  /** True if the device can choose. Otherwise, as in a page exported without the program, the page reads the logits. */
  get ready(): boolean {
    return this.player !== null && this.main === this.model.player;
  }

  /**
   * Creates the program's textures and shaders and the bit reader for the current player, if the recording (the variant
   * of the model's programs in use) has the program.
   */
  async prepare(): Promise<void> {
    const { device, loader, manifest, options, player, recording, drawFlops } = this.model;
    if (!recording.masked || this.ready) return;
    this.close();
    const program = parseProgram(await loader.packed(recording.masked), recording.masked);
    const shared = new Map(LOGIT_STATES.map((name) => [name, player.texture(name)]));
    const made = new Player(device, program, options, shared, drawFlops);
    let bits: BitReader | null;
    try {
      await made.prepare(...Object.keys(program.entries));
      bits = await BitReader.open(device, options, manifest.config.vocab_size);
    } catch (error) {
      if (!this.model.stale) made.close();
      throw error;
    }
    [this.player, this.main, this.bits] = [made, player, bits];
  }

  /**
   * Chooses token `step` and writes it to the state `token`. Returns its id, or null if the device cannot decide. The
   * commands are issued before the call returns.
   */
  async choose(sampler: Sampler, step: number, allowed: Allowed): Promise<number | null> {
    const player = this.player!;
    const mask = allowed.mask(player.spec("allowed").width);
    player.write("allowed", 0, 0, 1, new Uint8Array(mask.buffer));
    const scalars = sampler.entry ? sampler.scalars(step, this.model.manifest.config.vocab_size, allowed) : {};
    for (const [name, value] of Object.entries(scalars)) player.set(name, value);
    player.play(`masked_${sampler.entry ?? "best"}`);
    const { id, undecided } = chosen(await (this.bits?.read(player.texture("token")) ?? player.read("token")), sampler);
    return undecided ? null : id;
  }

  /** Bytes of the textures that only this program uses. */
  get bytes(): number {
    return this.player?.ownBytes() ?? 0;
  }

  /**
   * Deletes the textures and the bit reader; `prepare` creates them again. `lost`: true if a lost context deleted them
   * already.
   */
  close(lost = this.model.stale): void {
    if (!lost) {
      this.player?.close();
      this.bits?.close();
    }
    this.player = this.main = this.bits = null;
  }
}
