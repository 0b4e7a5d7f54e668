// What of the Text view is unfolded.

import { signal } from "@preact/signals";

/** True if the machine is unfolded. */
export const machine = signal(true);
