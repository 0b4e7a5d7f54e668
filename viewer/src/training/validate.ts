// Computes the loss on held-out text.

import { fixedWindows } from "./batches";
import type { Plan } from "./plan";
import type { Trainer } from "./trainer";

const EVAL_TOKENS = 8192;

/** Returns the loss in nats per token and in bits per byte; null if the held-out text is not longer than a context. */
export async function validate(
  { validation, offer }: Plan,
  trainer: Trainer,
  bytes: readonly Uint8Array[],
): Promise<{ validation: number; bits: number } | null> {
  const { context } = offer.recipe;
  if (validation.length <= context) return null;
  const first = fixedWindows(validation.length, context, EVAL_TOKENS);
  const nats = await trainer.evaluate(validation, first);
  let size = 0;
  for (const at of first) for (let t = 1; t <= context; t++) size += bytes[validation[at + t]!]?.length ?? 0;
  return { validation: nats, bits: (nats * first.length * context) / Math.LN2 / Math.max(1, size) };
}
