// The selection of the Passes view. Plays an entry (a recorded list of passes) up to a pass.

import { signal } from "@preact/signals";
import type { Model } from "../../../runtime/engine/model";
import type { Entry } from "../../../runtime/gl/program";
import { generation } from "../../stores/generation";
import { param, parseKey, parseWhole } from "../../stores/link";

class PassStore {
  readonly entry = signal("");
  /** The index of the selected pass in the entry, from 0; a greater index than the last selects the last pass. */
  readonly pass = signal(Infinity);

  readonly params = [
    param({ key: "entry", signal: this.entry, parse: parseKey, default: () => "decode" }),
    param({
      key: "pass",
      signal: this.pass,
      parse: (text) => parseWhole(text) ?? 0,
      format: (value) => (Number.isFinite(value) ? String(value) : null),
      default: () => Infinity,
    }),
  ];

  /** Selects a pass of an entry; by default, the last pass. */
  select(entry: string, pass = Infinity): void {
    this.entry.value = entry;
    this.pass.value = pass;
  }

  /** Returns the index of the selected pass of an entry. */
  of({ passes }: { passes: readonly unknown[] }): number {
    return Math.min(this.pass.value, passes.length - 1);
  }

  /** Plays passes 0 to `last` of an entry for the last tokens of the text: as many tokens as the entry computes. */
  async playTo(model: Model, { name }: Entry, last: number): Promise<void> {
    await model.player.prepare(name);
    await model.cache.fillWithQueries(generation.readIds.value);
    await model.cache.rewind(generation.readIds.value, name);
    if (last >= 0) model.player.play(name, 0, last + 1);
  }
}

export const passes = new PassStore();
