// Trains a round of a federation: takes steps from the host's parameters, and makes the update to send back.

import type { Offer } from "../runtime/engine/manifest";
import type { Progress, RoundMessage, Terms, Update } from "../runtime/generated/federation-messages";
import { PageError } from "../runtime/gl/errors";
import { pause } from "../runtime/gl/wait";
import type { Ids } from "./batches";
import { encode, shardStarts } from "./exchange";
import type { Trainer } from "./trainer";

const PROGRESS_INTERVAL_MS = 500; // ms between two progress messages of a round

export interface Round {
  message: RoundMessage;
  /** The parameters from which the round starts. */
  parameters: Float32Array;
  /** True once the host has requested the result so far. */
  wrapUp: boolean;
  update: { said: Update; bytes: Uint8Array<ArrayBuffer> } | null;
  answered: boolean;
}

/** The objects with which a round is trained. */
export interface RoundWork {
  trainer: Trainer;
  offer: Offer;
  ids: Ids;
  terms: Terms;
  /** Returns true once the round must not continue. */
  overtaken: () => boolean;
  /** Called after each step. `due`: true if the host must receive this progress. */
  onStep: (progress: Required<Progress>, due: boolean) => void;
}

/**
 * Trains a round's steps. Resolves to the round's update; null: the round was replaced, the session has ended or the
 * page has left it.
 */
export async function trainRound(round: Round, work: RoundWork): Promise<Round["update"]> {
  const { message } = round;
  const { trainer, ids, terms, overtaken, onStep } = work;
  const { batch, context } = work.offer.recipe;
  trainer.setParameters(round.parameters);
  const began = performance.now();
  let told = 0;
  let sum = 0;
  let results = 0;
  const take = (arrived: readonly { loss: number }[]) => {
    for (const { loss } of arrived) sum += loss;
    results += arrived.length;
  };
  for (const [i, lr] of message.lr.entries()) {
    const first = shardStarts(message.seed, message.step + i + 1, batch, ids.length - context, message.shard);
    take(await trainer.submit(ids, first, lr));
    const now = performance.now();
    const due = now - told > PROGRESS_INTERVAL_MS || i + 1 === message.lr.length;
    if (due) told = now;
    const loss = results && Number.isFinite(sum) ? sum / results : null;
    const rate = (1000 * (i + 1) * batch * context) / (now - began);
    onStep({ type: "progress", step: i + 1, loss, tokens_per_s: rate }, due);
    await pause(); // the page receives messages now, which may end the round
    if (overtaken()) {
      await trainer.drain();
      return null;
    }
    if (round.wrapUp) break;
  }
  take(await trainer.drain());
  const after = await trainer.parameters();
  const loss = sum / results;
  if (!Number.isFinite(loss)) {
    throw new PageError(
      `Round ${message.round}: the loss is not finite on this device. Join with another browser or device; if it is ` +
        "not finite there either, ask the host to start a session with a lower learning rate.",
    );
  }
  const { bytes, scale } = encode(terms.dtype, after, round.parameters);
  const seconds = (performance.now() - began) / 1000;
  const { round: number, attempt } = message;
  const tokens = results * batch * context;
  const done = { type: "update", round: number, attempt, tokens, steps: results, loss, seconds } as const;
  return { said: { ...done, dtype: terms.dtype, scale, bytes: bytes.length }, bytes };
}
