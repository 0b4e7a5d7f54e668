// The parts of the Text view that are unfolded.

import { signal } from "@preact/signals";

/** True if the machine is unfolded. */
export const machine = signal(true);
