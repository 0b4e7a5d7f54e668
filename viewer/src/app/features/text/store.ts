// The parts of the Text view that are unfolded.

import { signal } from "@preact/signals";

class TextStore {
  /** True if the machine (the diagram of the model) is unfolded. */
  readonly machine = signal(true);
}

export const text = new TextStore();
