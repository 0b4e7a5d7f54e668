// Does slow parts of scoring in a worker: counts n-grams, finds copies, scores the answers of a toy task (see task.ts),
// and tokenizes the held-back text for the page's model.

import type { TokenizerSchema } from "../runtime/generated/tokenizer";
import { Tokenizer } from "../runtime/engine/tokenizer";
import { splitAt, type Ids } from "./batches";
import { copies, type Copies } from "./copies";
import { baselines, NGRAMS } from "./ngrams";
import { chance, figures, type Figures } from "./predictions";
import { answers, isTask, questions, type Answers } from "./task";

const HEAD = 1 << 16; // maximum characters, from the start of the held-back text, on which the page's model is scored

export type ScoreJob =
  | { kind: "count"; train: Ids; ids: Ids; targets: Int32Array; vocab: number; size: number }
  | {
      kind: "judge";
      text: string;
      /** The share of the text's bytes that was held back, from the end of the text. */
      share: number;
      sample: string;
      ids: Ids;
      first: number[];
      context: number;
      ranks: Int32Array;
      bytes: Uint8Array[];
    }
  | { kind: "tokens"; text: string; share: number; data: TokenizerSchema };

export interface Counted {
  figures: Figures[];
}

export interface Judged {
  copies: Copies | null;
  task: Answers | null;
}

export type ScoreSaid = { progress: number } | { done: Counted | Judged | number[] };

const say = (said: ScoreSaid) => postMessage(said);

function parts(text: string, share: number): [string, string] {
  const bytes = new TextEncoder().encode(text);
  const at = splitAt(bytes, share);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return [decoder.decode(bytes.subarray(0, at)), decoder.decode(bytes.subarray(at))];
}

addEventListener("message", ({ data: job }: MessageEvent<ScoreJob>) => {
  if (job.kind === "count") {
    const { train, ids, targets, vocab, size } = job;
    const found = baselines(train, vocab, ids, targets, (progress) => say({ progress }));
    say({
      done: {
        figures: [chance(vocab, targets.length, size), ...NGRAMS.map((name) => figures(name, found[name], size))],
      },
    });
    return;
  }
  const [train, held] = parts(job.text, job.share);
  if (job.kind === "tokens") {
    const head = Array.from(held.slice(0, 2 * HEAD))
      .slice(0, HEAD)
      .join("");
    say({ done: new Tokenizer(job.data).encode(head) });
    return;
  }
  const { sample, ids, first, context, ranks, bytes } = job;
  const windows = first.map((start, i) => ({
    tokens: Array.from(ids.subarray(start, start + context + 1), (id) => bytes[id]!),
    hits: Array.from(ranks.subarray(i * context, (i + 1) * context), (rank) => rank === 0),
  }));
  const task = isTask(train) ? answers(windows, questions(train)) : null;
  say({ done: { copies: copies(sample, train), task } });
});
