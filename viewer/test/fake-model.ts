// Provides a model and a generation for tests of the page's stores.

/** Holds the options that `writing` reads. */
export interface Options {
  onToken: (token: object) => void;
  signal: AbortSignal;
}

/** Has the properties that the stores read of every model. */
export const MODEL = { cache: { held: () => 0 }, context: { readFrom: () => 0 }, check: () => {}, tokenizer: null };

/** Returns a generation that writes one token and then waits for its signal. */
export function writing(id: number, text: string) {
  return async ({ onToken, signal }: Options) => {
    onToken({ id, text, p: 1, more: 0 });
    if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve));
    return { ids: [id], stopped: "aborted", prefillMs: 1, decodeMs: 1, text };
  };
}
