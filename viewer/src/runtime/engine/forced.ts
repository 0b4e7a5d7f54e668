// Checks the tokens that a constraint forces, such as the keys of an object, several at once. This needs the batch
// program, which computes several tokens at once. The program and its caches are created in the background when a text
// first has forced tokens.

import type { Allowed, Matcher } from "../constraints/grammars";
import { ContextLost } from "../gl/device";
import type { Stretch } from "./generate";
import type { Model } from "./model";
import type { Token } from "./sampling";
import type { Speculation, SpeculationStats } from "./speculation";

const unable = new WeakSet<Model>(); // models whose batch program the device could not create

export class ForcedTokens {
  private speculation: Speculation | null = null;
  private asked: boolean;

  /** `wanted`: false if forced tokens are to be generated one by one. */
  constructor(
    private readonly model: Model,
    wanted: boolean,
  ) {
    this.asked = !wanted || unable.has(model);
  }

  /** The counts of guesses; null until the batch program is open. */
  get stats(): SpeculationStats | null {
    return this.speculation?.stats ?? null;
  }

  /**
   * Returns the next tokens, as `Speculation.forced` does. Returns an empty list if no token is forced, while the batch
   * program is not open, or if checking forced tokens is slower than decoding.
   */
  async step(stretch: Stretch, taken: number, allowed: Allowed, matcher: Matcher): Promise<Token[]> {
    if (!this.asked && allowed.forced) this.open();
    return (await this.speculation?.forced(stretch, taken, allowed, matcher)) ?? [];
  }

  /** Adds the time of a token that was not guessed. */
  plainToken(ms: number): void {
    this.speculation?.guessing.plainTokens(ms, 1);
  }

  private open(): void {
    this.asked = true;
    const { model } = this;
    const { generation } = model.device;
    model.batch.speculation().then(
      (speculation) => (this.speculation = speculation),
      (error: unknown) => {
        // Returns if the program was closed while it opened: the device has not failed. A lost context counts as a
        // failure, because the device may have too little memory.
        if (error instanceof ContextLost && generation === model.device.generation && !model.device.lost) return;
        unable.add(model);
        console.warn("tokens that a constraint forces are checked one by one:", error);
      },
    );
  }
}
