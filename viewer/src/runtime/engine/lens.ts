// The logit lens: predicts the next token from each block's output as if that block were the last one. Plays the
// program's entry `lens`.

import { writeIds } from "./chunks";
import { unpack } from "./layout";
import type { Model } from "./model";
import { must } from "../gl/errors";
import { alternatives, type Candidate } from "./sampling";

export interface Block {
  /** Name of the activation: `embed`, `h.0.resid_post` .. */
  name: string;
  /** The most likely next tokens. */
  top: Candidate[];
  /** Euclidean norm of the residual stream, and of its change since the previous block. */
  norm: number;
  change: number;
}

const LIKELIEST = 6;

/** Returns the predictions at token `t` of `ids`, from the embedding and from the output of each block. */
export async function lens(model: Model, ids: readonly number[], t: number): Promise<Block[]> {
  const { player } = model;
  if (model.split && !model.placement.movable) return across(model, ids, t);
  await player.prepare("lens");
  if (t > 0) await model.cache.fill(ids.slice(0, t));
  writeIds(player, ids, { start: t, valid: 1, size: 1 });
  player.set("pos", t);
  player.play("lens");
  model.cache.forget(t); // other passes than those of `decode` wrote token t's keys and values
  const entry = must(model.programs.generate.entries["lens"], "entry lens");
  const names = model.names.stream(model.placement.blocks);
  const read = async (name: string) => {
    const view = must(entry.outputs[name], `output ${name}`);
    return unpack(view, await player.read(view.texture));
  };
  const found = await Promise.all(names.map((name) => Promise.all([read(name), read(`lens.${name}`)])));
  return names.map((name, i) => block(name, ...found[i]!, found[i - 1]?.[0]));
}

function block(name: string, state: Float32Array, logits: Float32Array, before?: Float32Array): Block {
  const { top } = alternatives(logits, LIKELIEST, 0);
  return { name, top, norm: length(state), change: before ? length(state, before) : 0 };
}

/** Returns the predictions of a split model. The side that has the head (page or server) computes all logits. */
async function across(model: Model, ids: readonly number[], t: number): Promise<Block[]> {
  const { n_embd, vocab_size } = model.manifest.config;
  const names = model.manifest.split!.stream;
  const found = await model.activations.read(ids.slice(0, t + 1), names);
  const states = names.map((name) => found.get(name)!.data.subarray(t * n_embd, (t + 1) * n_embd));
  const rows = new Float32Array(names.length * n_embd);
  states.forEach((state, i) => rows.set(state, i * n_embd));
  const { data: logits } = (
    model.split!.settings.head === "page"
      ? await model.activations.capture.head(rows, ["logits"])
      : await model.split!.look(rows, names.length, [], true, true)
  ).get("logits")!;
  return names.map((name, i) =>
    block(name, states[i]!, logits.subarray(i * vocab_size, (i + 1) * vocab_size), states[i - 1]),
  );
}

function length(x: Float32Array, from?: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += (x[i]! - (from?.[i] ?? 0)) ** 2;
  return Math.sqrt(sum);
}
