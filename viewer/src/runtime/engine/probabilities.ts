// Computes the probabilities that a model gives to the tokens of a text.

import { must, PageError } from "../gl/errors";
import type { Model } from "./model";
import { alternatives, type Token } from "./sampling";

/**
 * Returns the probability of token `at` of `ids`, the `count` most likely tokens at this position, and in `level` the
 * log of the softmax's denominator.
 */
export async function probabilities(
  model: Model,
  ids: readonly number[],
  at: number,
  count: number,
): Promise<Token & { level: number }> {
  const id = must(ids[at], `token ${at}`);
  const logits = await logitsAfter(model, model.context.window(ids.slice(0, at)));
  const { top, ...own } = alternatives(logits, count, id);
  return { id, ...own, top, level: logits[top[0]!.id]! - Math.log(top[0]!.p) };
}

async function logitsAfter(model: Model, ids: readonly number[]): Promise<Float32Array> {
  if (model.split && !model.placement.movable) return model.splitGenerator.logits(ids);
  await model.cache.fill(ids);
  model.cache.again(ids);
  return model.sampling.logits();
}

/**
 * Returns the natural logarithm of the probability of each token from token `from` on, given the earlier tokens and the
 * current interventions. Stops when `going` returns false; the remaining values are 0. Rejects with PageError for
 * invalid arguments.
 */
export async function logProbabilities(
  model: Model,
  ids: readonly number[],
  from: number,
  going: () => boolean = () => true,
): Promise<Float32Array> {
  model.checkIds(ids);
  if (!(Number.isInteger(from) && from >= 1 && from <= ids.length)) {
    throw new PageError(`from is ${from}; it must be an integer from 1 to the number of ids, ${ids.length}.`);
  }
  const found = new Float32Array(ids.length - from);
  for (let at = from; at < ids.length && going(); at++) {
    const { p = 0 } = await probabilities(model, ids, at, 1);
    found[at - from] = Math.log(p);
  }
  return found;
}
