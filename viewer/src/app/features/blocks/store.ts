// The selection of the Blocks view.

import { signal } from "@preact/signals";
import { route } from "../../stores/route";

/** The row that is described while no cell is pointed at: 0 for the embedding, then the blocks; null: the last. */
export const row = signal<number | null>(null);

/** Opens the view at the output of a block. */
export function showBlock(block: number): void {
  route.show("blocks");
  row.value = block + 1;
}
