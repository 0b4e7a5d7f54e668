// Limits how often something is done.

import { effect, untracked, type Signal } from "@preact/signals";

/** Returns a function that runs `work` at most once every `ms` milliseconds; the last call is never lost. */
export function throttled(work: () => void, ms: number): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      work();
    }, ms);
  };
}

/**
 * Shows in `target` the value that `read` returns with its source: another source at once, changes of the same one at
 * most every `ms` milliseconds. Returns how to stop.
 */
export function follow<T>(target: Signal<T>, read: () => { source: unknown; value: T }, ms: number): () => void {
  let shown: unknown;
  const renew = throttled(() => (target.value = untracked(read).value), ms);
  return effect(() => {
    const { source, value } = read();
    if (source === shown) renew();
    else target.value = value;
    shown = source;
  });
}
