// Trains a tokenizer and encodes a text, in a worker.

import { splitAt, type Ids } from "./batches";
import { BpeError, encodeText, trainBpe, type Bpe } from "./bpe";

export interface Job {
  text: string;
  /** The share of the text's bytes that is held back for validation, from the end of the text. */
  validation: number;
  /** `bytes` or `bpe:N`. `bpe:N` trains a tokenizer of N tokens on the training part, unless `bpe` is given. */
  tokenizer: string;
  bpe?: Bpe | null;
}

export interface Tokenised {
  bpe: Bpe | null;
  train: Ids;
  validation: Ids;
}

export type Said = { done: Tokenised } | { progress: number } | { failed: string };

addEventListener("message", ({ data: job }: MessageEvent<Job>) => {
  const say = (said: Said, moved: Transferable[] = []) => postMessage(said, { transfer: moved });
  try {
    const bytes = new TextEncoder().encode(job.text);
    const at = splitAt(bytes, job.validation);
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const parts = [decoder.decode(bytes.subarray(0, at)), decoder.decode(bytes.subarray(at))] as const;
    const size = job.tokenizer.startsWith("bpe:") ? Number(job.tokenizer.slice(4)) : 0;
    const fresh = size > 0 && !job.bpe;
    let heard = 0;
    const progress = (share: number) => {
      if (share - heard >= 0.01) say({ progress: (heard = share) });
    };
    const half = fresh ? 0.5 : 0;
    const bpe = job.bpe ?? (fresh ? trainBpe(parts[0], size, (n, all) => progress((half * n) / all)) : null);
    const train = encodeText(parts[0], bpe, (n, all) => progress(half + ((1 - half) * n) / all));
    const validation = encodeText(parts[1], bpe);
    say({ done: { bpe, train, validation } }, [train.buffer, validation.buffer]);
  } catch (error) {
    if (!(error instanceof BpeError)) throw error;
    say({ failed: error.message });
  }
});
