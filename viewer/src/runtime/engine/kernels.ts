// The recording and the fetch that a model plays, and the measurement that chooses them for the next visit.

import { signal } from "@preact/signals-core";
import { Queue } from "../gl/wait";
import type { Recording } from "./manifest";
import type { Program } from "../gl/program";
import { choose, measure, type Choices, type Chosen, type Measured } from "./probe";

export class Kernels {
  private readonly measured = signal<Measured | null>(null);
  /** True if recording and fetch are a guess, since nothing was measured before this visit. */
  guessed = false;
  private choices: Choices | null = null;
  private readonly queue = new Queue();

  /** The measurements from which recording and fetch are chosen; null: none yet. Reading it subscribes to them. */
  get probe(): Measured | null {
    return this.measured.value;
  }

  /** Chooses for this device. */
  choose(choices: Choices): Chosen {
    const chosen = choose(choices);
    this.choices = choices;
    this.measured.value = chosen.measured;
    this.guessed = chosen.measured === null;
    return chosen;
  }

  /**
   * Measures which recording and fetch are fastest on this device, if they are a guess so far. The next visit uses
   * them, after `keep` has cached their files for it. Resolves to false if `going` stopped the measurement.
   */
  measure(
    load: (file: string) => Promise<Program>,
    keep: (recording: Recording) => Promise<void>,
    going: () => boolean = () => true,
  ): Promise<boolean> {
    return this.queue.run(async () => {
      if (!this.probe && this.choices) this.measured.value = await measure(this.choices, load, keep, going);
      return this.probe !== null;
    });
  }
}
