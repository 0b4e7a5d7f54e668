// What each block's output would say if it were the last one's, from the entry `lens`.

import { writeIds } from "./chunks";
import { unpack } from "./layout";
import type { Model } from "./model";
import { must } from "../gl/errors";
import { alternatives, type Candidate } from "./sampling";

export interface Block {
  /** Name of the intermediate: `embed`, `h.0.resid_post` .. */
  name: string;
  /** The likeliest tokens behind this one. */
  top: Candidate[];
  /** Length of the residual stream, and of what was added to it since the block before. */
  norm: number;
  change: number;
}

const LIKELIEST = 6;

/** Every state of the residual stream of token `t` of `ids`. */
export async function lens(model: Model, ids: readonly number[], t: number): Promise<Block[]> {
  const { player } = model;
  await player.prepare("lens");
  if (t > 0) model.fill(ids.slice(0, t));
  writeIds(player, ids, { start: t, valid: 1, size: 1 });
  player.set("pos", t);
  player.play("lens");
  model.cached.length = Math.min(model.cached.length, t); // its keys and values came by another way than usual
  const entry = must(model.programs.generate.entries["lens"], "entry lens");
  const names = Object.keys(entry.outputs).filter((name) => `lens.${name}` in entry.outputs);
  const read = async (name: string) => {
    const view = must(entry.outputs[name], `output ${name}`);
    return unpack(view, await player.read(view.texture));
  };
  const found = await Promise.all(names.map((name) => Promise.all([read(name), read(`lens.${name}`)])));
  return names.map((name, i) => {
    const [state, logits] = found[i]!;
    const before = found[i - 1]?.[0];
    const { top } = alternatives(logits, LIKELIEST, 0);
    return { name, top, norm: length(state), change: before ? length(state, before) : 0 };
  });
}

function length(x: Float32Array, from?: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += (x[i]! - (from?.[i] ?? 0)) ** 2;
  return Math.sqrt(sum);
}
