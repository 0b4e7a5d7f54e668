// Limits how often something is done.

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
