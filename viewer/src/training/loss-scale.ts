// What a training in halves multiplies its loss with, so that its gradients fit them. The cases in
// tests/page/shared_cases.json hold that glgpt/training/loss_scale.py gives the same.

/** A power of two, and how many steps were taken with it. */
export interface Scale {
  value: number;
  steps: number;
}

export const FIRST: Scale = { value: 2 ** 16, steps: 0 };
const LEAST = 1;
const MOST = 2 ** 24;
const GROW_AFTER = 2000; // steps without an overflow

/** That of the step after one that fitted. */
export function afterStep({ value, steps }: Scale): Scale {
  return steps + 1 < GROW_AFTER ? { value, steps: steps + 1 } : { value: Math.min(2 * value, MOST), steps: 0 };
}

/** That to take a step again with whose gradients overflowed; null where it is as small as it gets. */
export function afterOverflow({ value }: Scale): Scale | null {
  return value <= LEAST ? null : { value: Math.max(value / 2, LEAST), steps: 0 };
}

/** A scale that a file holds, if it is one. */
export function known(scale: Scale | undefined): Scale | null {
  return scale && scale.value > 0 && Number.isFinite(scale.value) && Number.isInteger(scale.steps) ? scale : null;
}
