// Worker: trains a vocabulary, or measures how a vocabulary tokenizes a text.

import { splitAt } from "./batches";
import { measure, trainBpe } from "./bpe";
import type { VocabularyJob } from "./vocabulary";

addEventListener("message", ({ data: job }: MessageEvent<VocabularyJob>) => {
  if (job.kind === "measure") {
    postMessage(measure(job.text, job.bpe));
    return;
  }
  const bytes = new TextEncoder().encode(job.text);
  const part = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.subarray(0, splitAt(bytes, job.share)));
  postMessage(trainBpe(part, job.size, () => {}, true));
});
