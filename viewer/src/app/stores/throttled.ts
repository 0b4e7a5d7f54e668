// Limits how often a function runs, or a signal is updated.

import { effect, untracked, type Signal } from "@preact/signals";

/** Returns a function whose calls run `work` at most once every `ms` milliseconds, and always after the last call. */
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
 * Keeps `target` equal to the `value` that `read` returns: updates `target` at once if `source` has changed, otherwise
 * at most every `ms` milliseconds. Returns a function that stops the updates.
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
