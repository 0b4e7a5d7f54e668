// Which card of the tour is open.

import { signal } from "@preact/signals";
import { param, parseWhole, unlessEmpty } from "../../stores/link";

/** The card that is open, from 1; 0: none. */
export const card = signal(0);
/** True if that card was opened alone, not as part of the tour. */
export const alone = signal(false);
/** True if the link names a card and no view: the card then opens its view as soon as the model is ready. */
export const moves = signal(false);

export const params = [
  param({ key: "tour", signal: card, parse: parseWhole, format: unlessEmpty, default: () => 0 }),
  param({ key: "view", signal: moves, parse: () => false, format: () => null, default: () => card.value > 0 }),
];
