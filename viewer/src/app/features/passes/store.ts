// The selection of the Passes view, and playing up to it.

import { signal } from "@preact/signals";
import type { Model } from "../../../runtime/engine/model";
import type { Entry } from "../../../runtime/gl/program";
import { generation } from "../../stores/generation";
import { param, parseText, parseWhole } from "../../stores/link";

export const entry = signal("");
/** The pass of the entry, from 0; clamped to its last pass. */
export const pass = signal(Infinity);

/** Returns the index of the selected pass of an entry. */
export const passOf = ({ passes }: { passes: readonly unknown[] }) => Math.min(pass.value, passes.length - 1);

/** Plays passes 0 to `last` of an entry for the last token of the text. */
export async function playTo(model: Model, { name }: Entry, last: number): Promise<void> {
  await model.player.prepare(name);
  model.cache.rewind(generation.readIds.value, name);
  if (last >= 0) model.player.play(name, 0, last + 1);
}

export const params = [
  param({ key: "entry", signal: entry, parse: parseText, default: () => "decode" }),
  param({
    key: "pass",
    signal: pass,
    parse: (text) => parseWhole(text) ?? 0,
    format: (value) => (Number.isFinite(value) ? String(value) : null),
    default: () => Infinity,
  }),
];
