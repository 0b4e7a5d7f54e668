// Trains vocabularies and measures their tokenization, in a worker.

import { PageError } from "../runtime/gl/errors";
import type { Bpe, Cut } from "./bpe";
import VocabularyWorker from "./vocabulary-worker?worker&inline";

export type VocabularyJob =
  { kind: "train"; text: string; share: number; size: number } | { kind: "measure"; text: string; bpe: Bpe };

function work<T>(job: VocabularyJob): Promise<T> {
  const worker = new VocabularyWorker();
  return new Promise<T>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<T>) => resolve(data);
    worker.onerror = (event) => reject(new PageError(`The text cannot be tokenized: ${event.message}`));
    worker.postMessage(job);
  }).finally(() => worker.terminate());
}

/** Trains a vocabulary on a text, leaving out the last `share` of it. A short text gives fewer than `size` tokens. */
export const vocabularyOf = (text: string, share: number, size: number) =>
  work<Bpe>({ kind: "train", text, share, size });

export const cutOf = (text: string, bpe: Bpe) => work<Cut>({ kind: "measure", text, bpe });
