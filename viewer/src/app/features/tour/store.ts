// The open card of the tour.

import { signal } from "@preact/signals";
import { param, parseWhole, unlessEmpty } from "../../stores/link";

class TourStore {
  /** The number of the open card, counted from 1; 0: no card is open. */
  readonly card = signal(0);
  /** True if that card was opened alone, not as part of the tour. */
  readonly alone = signal(false);
  /** True if the link names a card and no view: the card then opens its view as soon as the model is ready. */
  readonly moves = signal(false);

  readonly params = [
    param({ key: "tour", signal: this.card, parse: parseWhole, format: unlessEmpty, default: () => 0 }),
    param({
      key: "view",
      signal: this.moves,
      parse: () => false,
      format: () => null,
      default: () => this.card.value > 0,
    }),
  ];

  /** Opens a card. `alone` opens it on its own, not as part of the tour. */
  open(number: number, alone = false): void {
    this.alone.value = alone;
    this.card.value = number;
  }

  close(): void {
    this.card.value = 0;
  }
}

export const tour = new TourStore();
