// Scores a trained model, with the same results as `glgpt eval --suite` within rounding.

import { ofLogits, figures, noPredictions, sizeOf, targetsOf, type Figures } from "./predictions";
import { fixedWindows, splitAt } from "./batches";
import type { Offer } from "../runtime/engine/manifest";
import type { Model } from "../runtime/engine/model";
import { parseTokenizer } from "../runtime/engine/manifest";
import { must, PageError } from "../runtime/gl/errors";
import { pause } from "../runtime/gl/wait";
import type { Copies } from "./copies";
import type { Plan } from "./plan";
import type { Answers } from "./task";
import { tokenBytes } from "./tokenise";
import ScoreWorker from "./score-worker?worker&inline";
import type { Counted, Judged, ScoreJob, ScoreSaid } from "./score-worker";

export const SCORED = 8192; // maximum tokens that are scored, in windows spread evenly over the held-back text
const BESIDE = 2048; // maximum tokens on which the page's model is scored, within `HEAD` characters (score-worker.ts)
export const WRITTEN = 512; // tokens of the sample that is searched for copies
export type ScoreProgress = (what: string, share: number | null) => void;

/** Metrics of each predictor on the held-back text, the model first. The names are those of the desktop's JSON. */
export interface Score {
  step: number;
  window: number;
  tokens: number;
  bytes: number;
  figures: Figures[];
  sample: string;
  copies: Copies | null;
  task: Answers | null;
}

/**
 * Returns the starts of the windows that are scored, and the positions of their targets. Throws PageError if the
 * held-back text is too short.
 */
export function scored({ validation, offer }: Pick<Plan, "validation" | "offer">): {
  first: number[];
  targets: Int32Array;
} {
  const { context } = offer.recipe;
  if (validation.length <= context) {
    const { length } = validation;
    throw new PageError(
      `The held-back text has ${length} tokens, too few for a context of ${context}; use a longer text.`,
    );
  }
  const first = fixedWindows(validation.length, context, SCORED);
  return { first, targets: targetsOf(first, context) };
}

function work<T>(job: ScoreJob, progress: (share: number) => void, signal?: AbortSignal): Promise<T> {
  const worker = new ScoreWorker();
  return new Promise<T>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<ScoreSaid>) => {
      if ("progress" in data) progress(data.progress);
      else resolve(data.done as T);
    };
    worker.onerror = (event) => reject(new PageError(`The score cannot be computed: ${event.message}`));
    signal?.addEventListener("abort", () => reject(new PageError("Stopped.")));
    worker.postMessage(job);
  }).finally(() => worker.terminate());
}

/** Returns the metrics of chance and of n-gram models of the training text, on the scored windows. */
export async function baselineFigures(
  plan: Pick<Plan, "train" | "validation" | "offer">,
  bytes: readonly Uint8Array[],
  progress: (share: number) => void = () => {},
): Promise<Figures[]> {
  const { targets } = scored(plan);
  const { train, validation, offer } = plan;
  const size = sizeOf(validation, targets, bytes);
  const vocab = offer.config.vocab_size;
  return (await work<Counted>({ kind: "count", train, ids: validation, targets, vocab, size }, progress)).figures;
}

/**
 * Returns the metrics of `baselineFigures` for a training that has not started and whose tokens are the bytes of
 * `text`. Returns none if the text is too short.
 */
export async function baselinesAhead(text: string, share: number, offer: Offer): Promise<Figures[]> {
  const bytes = new TextEncoder().encode(text);
  const at = splitAt(bytes, share);
  const [train, validation] = [Uint16Array.from(bytes.subarray(0, at)), Uint16Array.from(bytes.subarray(at))];
  if (validation.length <= offer.recipe.context) return [];
  return baselineFigures({ train, validation, offer }, tokenBytes(null));
}

/**
 * Measures how much the sample copies from the training text. If the text is a toy task (see task.ts), also scores the
 * model's answers. Both results are null if the training was given ids instead of a text.
 */
export function judged(plan: Plan, bytes: readonly Uint8Array[], sample: string, ranks: Int32Array): Promise<Judged> {
  const { text, share, validation, offer } = plan;
  if (text === null) return Promise.resolve({ copies: null, task: null });
  const { first } = scored(plan);
  const { context } = offer.recipe;
  return work<Judged>(
    { kind: "judge", text, share, sample, ids: validation, first, context, ranks, bytes: [...bytes] },
    () => {},
  );
}

/**
 * Returns the metrics of the page's model on the beginning of the held-back text, in that model's tokens. Returns null
 * if the model has no tokenizer, or if the text is missing or too short.
 */
export async function otherFigures(
  plan: Plan,
  model: Model,
  progress: (share: number) => void,
): Promise<Figures | null> {
  const { manifest, loader, tokenizer } = model;
  if (!manifest.tokenizer || !tokenizer || plan.text === null) return null;
  const data = parseTokenizer(await loader.json(manifest.tokenizer), manifest.tokenizer);
  const ids = await work<number[]>({ kind: "tokens", text: plan.text, share: plan.share, data }, () => {});
  if (ids.length < 2) return null;
  const context = Math.min(manifest.config.n_positions, ids.length - 1);
  const first = fixedWindows(ids.length, context, BESIDE);
  const targets = targetsOf(first, context);
  const found = noPredictions(targets.length);
  for (const [i, start] of first.entries()) {
    const window = ids.slice(start, start + context);
    const logits = must((await model.activations.capture.run(window, ["logits"])).get("logits"), "logits").data;
    await pause(); // the page can draw before `ofLogits`, which takes long
    ofLogits(logits, ids.slice(start + 1, start + context + 1), found, i * context);
    progress((i + 1) / first.length);
    await pause();
  }
  const lengths = Array.from({ length: manifest.config.vocab_size }, (_, id) => tokenizer.tokenBytes(id));
  return figures("embedded", found, sizeOf(ids, targets, lengths));
}

const COLUMNS = ["nats_per_token", "perplexity", "bits_per_byte", "top_1", "top_5", "calibration_error"] as const;

/** Returns CSV with a line per step and predictor. The columns after `step` are those of `glgpt eval --suite --csv`. */
export function asCsv(scores: readonly Score[]): string {
  const copied = scores.some(({ copies }) => copies) ? (["known_words", "longest_copy", "copied_runs"] as const) : [];
  const task = scores.some((score) => score.task) ? ["exact_match"] : [];
  const lines = [["step", "predictor", ...COLUMNS, ...copied, ...task]];
  for (const { step, figures: rows, copies, task: answers } of scores) {
    for (const row of rows) {
      const own =
        row.name === "model"
          ? [...copied.map((key) => copies?.[key]), ...task.map(() => answers?.exact_match)]
          : [...copied, ...task].map(() => null);
      lines.push([step, row.name, ...COLUMNS.map((key) => row[key]), ...own].map((value) => String(value ?? "")));
    }
  }
  return lines.map((line) => `${line.join()}\n`).join("");
}
