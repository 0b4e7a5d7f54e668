// Chooses which recording (a variant of the model's program) a model plays, and with which function its shaders fetch
// texels (the fetch). Also measures which choice is fastest, for the next visit.

import { signal } from "@preact/signals-core";
import { Queue } from "../gl/wait";
import type { Recording } from "./manifest";
import type { Program } from "../gl/program";
import { choose, measure, type Choices, type Chosen, type Measured } from "./probe";

export class Kernels {
  private readonly measured = signal<Measured | null>(null);
  /** True if recording and fetch are a guess, because no earlier visit has measured them. */
  guessed = false;
  private choices: Choices | null = null;
  private readonly queue = new Queue();

  /** The measurements from which recording and fetch are chosen, read from a signal; null: none yet. */
  get probe(): Measured | null {
    return this.measured.value;
  }

  /** Chooses recording and fetch for this device. */
  choose(choices: Choices): Chosen {
    const chosen = choose(choices);
    this.choices = choices;
    this.measured.value = chosen.measured;
    this.guessed = chosen.measured === null;
    return chosen;
  }

  /**
   * Measures which recording and fetch are fastest on this device, unless they were measured before. The next visit
   * uses the fastest ones; `keep` caches the files of the fastest recording. The measurement stops when `going` returns
   * false; the promise then resolves to false.
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
