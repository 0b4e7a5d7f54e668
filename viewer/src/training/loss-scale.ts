// Chooses the loss scale: the loss is multiplied by it, so that gradients stay within the range of f16. The cases in
// tests/page/shared_cases.json check that glgpt/training/loss_scale.py chooses the same scales.

/** A loss scale (`value`, a power of two), and the number of steps taken with it. */
export interface Scale {
  value: number;
  steps: number;
}

export const FIRST: Scale = { value: 2 ** 16, steps: 0 };
const MIN_SCALE = 1;
const MAX_SCALE = 2 ** 24;
const GROW_AFTER = 2000; // steps without an overflow after which the scale doubles

/** Returns the scale after a step without overflow. */
export function afterStep({ value, steps }: Scale): Scale {
  return steps + 1 < GROW_AFTER ? { value, steps: steps + 1 } : { value: Math.min(2 * value, MAX_SCALE), steps: 0 };
}

/** Returns the scale for repeating a step whose gradients overflowed; null if the scale cannot be reduced. */
export function afterOverflow({ value }: Scale): Scale | null {
  return value <= MIN_SCALE ? null : { value: Math.max(value / 2, MIN_SCALE), steps: 0 };
}

/** Returns the scale read from a file if it is valid, else null. */
export function known(scale: Scale | undefined): Scale | null {
  return scale && scale.value > 0 && Number.isFinite(scale.value) && Number.isInteger(scale.steps) ? scale : null;
}
