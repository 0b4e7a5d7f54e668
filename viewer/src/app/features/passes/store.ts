// What the Passes view shares with other views.

import type { Model } from "../../../runtime/engine/model";
import type { Entry } from "../../../runtime/gl/program";
import { readIds } from "../../stores/state";

/** Plays passes 0 to `last` of an entry for the last token of the text. */
export async function playTo(model: Model, entry: Entry, last: number): Promise<void> {
  await model.player.prepare(entry.name);
  model.cache.rewind(readIds.value, entry.name);
  if (last >= 0) model.player.play(entry.name, 0, last + 1);
}
