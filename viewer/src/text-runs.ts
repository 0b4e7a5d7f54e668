// Generates one text, or several side by side, for the scriptable object.

import { checkLimits, samplingOf } from "./options";
import type { Continuation, ContinuationsOptions, Generated, GenerateOptions } from "./options";
import type { Model } from "./runtime/engine/model";
import type { SpeculationStats } from "./runtime/engine/speculation";

/** The parts of the scriptable object that generating a text needs. */
export interface Writer {
  model: Model;
  encode: (text: string) => number[];
  /** Runs `work`; if the model is in training, between two training steps. */
  lend: <T>(work: () => Promise<T>) => Promise<T>;
  /** Called with the ids of the prompt and of the text so far. */
  onIds: (ids: number[]) => void;
  /** True if the object was disposed of. */
  disposed: () => boolean;
}

/** Generates a text. Rejects for invalid options. */
export async function writeText(writer: Writer, options: GenerateOptions): Promise<Generated> {
  const { tokens = 100, stop, onToken, eos = true, alternatives = 0, signal } = options;
  checkLimits(tokens, stop, alternatives);
  const sampling = samplingOf(options);
  const prompt = options.ids ? Array.from(options.ids) : writer.encode(options.prompt ?? "");
  const { model } = writer;
  const matcher = options.constraint
    ? await model.matcher(options.constraint, signal).catch((error: unknown) => {
        if (signal?.aborted) return null; // `generator.generate` returns at once if `signal` is aborted
        throw error;
      })
    : null;
  const speculation = { checkedSteps: 0, guessedTokens: 0, acceptedTokens: 0 };
  const decoder = model.tokenizer?.stream();
  const ids: number[] = [];
  let text = "";
  let stopped = "tokens" as Generated["stopped"];
  const start = performance.now();
  let [first, last] = [start, start]; // times of the first and the last token
  const write = async () => {
    if (model.stale) await model.recover(signal); // `generator.generate` recovers from a context lost later
    model.follow();
    // For a model in training, `lend` calls `write` again after a lost context; `ids` then holds the tokens so far.
    const rest = {
      sampling,
      eos,
      alternatives,
      ...(matcher ? { matcher } : {}),
      ...(options.speculate === undefined ? {} : { speculate: options.speculate }),
      onGuesses: (stats: SpeculationStats) => add(speculation, stats),
      ...(signal ? { signal } : {}),
      tokens: tokens - ids.length,
      drawn: (options.drawn ?? 0) + ids.length,
    };
    for await (const token of model.generator.generate([...prompt, ...ids], rest)) {
      last = performance.now();
      if (!ids.length) first = last;
      ids.push(token.id);
      writer.onIds([...prompt, ...ids]);
      const piece = decoder ? decoder.push(token.id) : ` ${token.id}`;
      text += piece;
      onToken?.({ ...token, text: piece });
      const found = stop ? text.indexOf(stop) : -1;
      if (found >= 0) {
        text = text.slice(0, found);
        stopped = "text";
        break;
      }
      if (writer.disposed()) break;
    }
  };
  await untilDisposed(writer, () => writer.lend(write));
  const end = performance.now();
  if (stopped !== "text") text += decoder?.flush() ?? "";
  if (signal?.aborted || writer.disposed()) stopped = "aborted";
  else if (stopped === "tokens" && (ids.length < tokens || (await matcher?.allowed) === null)) stopped = "eos";
  return {
    ids,
    text,
    prefillMs: (ids.length ? first : end) - start,
    decodeMs: last - first,
    seed: sampling.seed,
    stopped,
    ...(options.speculate || speculation.checkedSteps ? { speculation } : {}),
  };
}

/** Generates several texts side by side. Rejects for invalid options. */
export async function writeTexts(writer: Writer, options: ContinuationsOptions): Promise<Continuation[]> {
  const { tokens = 100, stop, onTexts, eos = true, signal } = options;
  checkLimits(tokens, stop);
  const sampling = samplingOf(options);
  const { model } = writer;
  const ids = options.ids ? Array.from(options.ids) : writer.encode(options.prompt ?? "");
  const decoders = Array.from({ length: model.batch.texts }, () => model.tokenizer?.stream());
  const texts = decoders.map((_, i): Continuation => ({
    ids: [],
    text: "",
    seed: sampling.seed + i,
    stopped: "tokens",
  }));
  const over = new Set<number>();
  await untilDisposed(writer, async () => {
    if (model.stale) await model.recover(signal);
    model.follow();
    const run = { tokens, sampling, eos, ...(signal ? { signal } : {}) };
    for await (const found of model.batch.generate(ids, run, { over })) {
      for (const [i, text] of texts.entries()) {
        const token = found[i];
        if (!token) {
          if (!over.has(i)) text.stopped = "eos";
          over.add(i);
          continue;
        }
        text.ids.push(token.id);
        text.text += decoders[i]?.push(token.id) ?? ` ${token.id}`;
        const at = stop ? text.text.indexOf(stop) : -1;
        if (at < 0) continue;
        [text.text, text.stopped] = [text.text.slice(0, at), "text"];
        over.add(i);
      }
      onTexts?.(texts);
      if (writer.disposed()) break;
    }
  });
  texts.forEach((text, i) => {
    if (text.stopped !== "text") text.text += decoders[i]?.flush() ?? "";
    if (text.stopped === "tokens" && text.ids.length < tokens)
      text.stopped = signal?.aborted || writer.disposed() ? "aborted" : "context";
  });
  return texts;
}

/** Runs `work`. Ignores its error if the scriptable object was disposed of while `work` ran. */
async function untilDisposed(writer: Writer, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!writer.disposed()) throw error;
  }
}

/** Adds the counts of a part of a text to the counts of the whole text. */
function add(all: SpeculationStats, part: SpeculationStats): void {
  for (const name of ["checkedSteps", "guessedTokens", "acceptedTokens"] as const) all[name] += part[name];
}
