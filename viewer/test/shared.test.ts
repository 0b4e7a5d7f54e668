// Checks cases that Python also computes. tests/page/shared_cases.py writes them; pytest checks them in Python.

import { describe, expect, it } from "vitest";
import shared from "../../tests/page/shared_cases.json";
import { CallParser } from "../src/runtime/chat/calls";
import { ChatTemplate, type ChatMessage, type ChatTemplateData } from "../src/runtime/chat/template";
import { callForm, forTemplate, Tools, type Tool, type ToolChoice } from "../src/runtime/chat/tools";
import { rendered, type RenderJob } from "../src/runtime/chat/interpreter";
import { plan, windowStart } from "../src/runtime/engine/chunks";
import { fromBase64 } from "../src/runtime/engine/base64";
import { draft } from "../src/runtime/engine/drafts";
import { packStates, type Wire } from "../src/runtime/engine/split-wire";
import { fromFloat16 } from "../src/runtime/gl/float16";
import { unpack } from "../src/runtime/engine/layout";
import { parseTokenizer } from "../src/runtime/engine/manifest";
import { unpacked, type Packed } from "../src/runtime/engine/packed-program";
import { drawSeed, hash4, Sampler } from "../src/runtime/engine/sampling";
import { Tokenizer } from "../src/runtime/engine/tokenizer";
import { klDivergence, measure } from "../src/runtime/engine/tolerance";
import type { View } from "../src/runtime/gl/program";
import { clean, inspect, type CleaningStep } from "../src/training/cleaning";
import { encode, type Dtype } from "../src/training/exchange";
import { copies } from "../src/training/copies";
import { afterOverflow, afterStep, FIRST, type Scale } from "../src/training/loss-scale";
import { baselines, NGRAMS } from "../src/training/ngrams";
import { chance, figures, noPredictions, ofLogits } from "../src/training/predictions";
import { answers } from "../src/training/task";
import { trainBpe } from "../src/training/bpe";
import { fixedWindows, rateAt, sortedIndex, splitAt, starts, windows, type Rates } from "../src/training/batches";

/** Expects equality. Numbers must be equal to eleven digits. */
function near(found: unknown, expected: unknown): void {
  if (typeof found === "number" && typeof expected === "number")
    expect(Math.abs(found - expected)).toBeLessThanOrEqual(1e-11 * Math.max(1, Math.abs(expected)));
  else if (found && expected && typeof found === "object" && typeof expected === "object") {
    expect(Object.keys(found)).toEqual(Object.keys(expected));
    for (const key of Object.keys(found))
      near((found as Record<string, unknown>)[key], (expected as Record<string, unknown>)[key]);
  } else expect(found).toEqual(expected);
}

describe("cases shared with Python", () => {
  it.each(shared.chunks)("chunks of $tokens tokens in $context", ({ tokens, context, known, plan: expected }) => {
    const found = plan(tokens, context, known, shared.costs);
    expect(found.map(({ start, valid, size }) => [start, valid, size])).toEqual(expected);
  });

  it.each(shared.packed_programs)("a packed program", ({ known, packed, program }) => {
    expect(unpacked(packed as unknown as Packed, known)).toEqual(program);
  });

  it.each(shared.windows)("the window of $tokens tokens in $context", ({ tokens, context, start }) => {
    expect(windowStart(tokens, context)).toBe(start);
  });

  it.each(shared.drafts)("guesses of what follows $ids", ({ ids, most, draft: expected }) => {
    expect(draft(ids, most)).toEqual(expected);
  });

  it.each(shared.layouts)("the layout $view", ({ view, bits, matrix }) => {
    const texels = Uint32Array.from(bits);
    const whole: View = {
      ...view,
      texture: "x",
      tiles: [view.tiles[0]!, view.tiles[1]!],
      dtype: view.dtype as View["dtype"],
    };
    const found = unpack(whole, view.dtype === "f32" ? new Float32Array(texels.buffer) : texels);
    expect(Array.from(found)).toEqual(matrix);
  });

  it.each(shared.tolerances)(
    "a tensor with an error of $excess times its tolerance",
    ({ reference, ours, width, tolerance, relative, excess, at, kl }) => {
      const [there, here] = [Float32Array.from(reference), Float32Array.from(ours)];
      const found = measure(here, there, width, tolerance);
      near({ relative: found.relative, excess: found.excess, at: found.at }, { relative, excess, at });
      near(klDivergence(there, here, width), kl);
    },
  );

  it.each(shared.halves)("the f16 number %i is %d", (bits, value) => {
    expect(fromFloat16(bits!)).toEqual(value ?? NaN);
  });

  it.each(shared.encodings)("bytes of updates and hidden states", ({ values, updates, rows, states }) => {
    const after = Float32Array.from(values);
    for (const { dtype, scale, data } of updates) {
      const found = encode(dtype as Dtype, after, new Float32Array(after.length));
      expect([dtype, found.scale, found.bytes]).toEqual([dtype, scale, fromBase64(data)]);
    }
    const hidden = Float32Array.from(rows.flat());
    for (const [wire, data] of Object.entries(states))
      expect([wire, packStates(hidden, rows.length, wire as Wire)]).toEqual([wire, fromBase64(data)]);
  });

  it.each(shared.randoms)("draws of seed $seed", ({ seed, given, hash }) => {
    expect(drawSeed(seed)).toBe(given);
    expect(hash4([given, 1, 2, 3])).toEqual(hash);
  });

  it.each(shared.samplers)("sampling by $settings", ({ logits, settings, probabilities, ids, entry, scalars }) => {
    const { temperature, top_k: topK, top_p: topP, min_p: minP, seed } = settings;
    const sampler = new Sampler({ temperature, topK, topP, minP, seed });
    const row = Float32Array.from(logits);
    const draws = ids.map((_, step) => sampler.draw(row, step));
    expect(draws.map((draw) => draw.id)).toEqual(ids);
    for (const [id, p] of probabilities.entries()) expect(draws[0]!.sampled(id)).toBeCloseTo(p, 12);
    expect(sampler.entry).toBe(entry);
    if (entry) expect(sampler.scalars(9, 24)).toEqual(scalars);
  });

  it.each(shared.batches)("the batch of seed $seed, step $step", (c) => {
    const ids = Uint16Array.from({ length: 1000 }, (_, i) => (i * 37) % 91);
    const first = starts(c.seed, c.step, c.starts.length, ids.length - c.context);
    expect(first).toEqual(c.starts);
    const { inputs, targets } = windows(ids, first, c.context);
    expect([Array.from(inputs), Array.from(targets)]).toEqual([c.inputs, c.targets]);
    const { order, runs } = sortedIndex(inputs, 91);
    expect([Array.from(order), Array.from(runs)]).toEqual([c.order, c.runs]);
    expect(fixedWindows(ids.length, c.context, 100)).toEqual(c.evaluated);
  });

  it.each(shared.rates)("the learning rates of $settings.schedule", ({ settings, rates }) => {
    rates.forEach((rate, i) => expect(rateAt(settings as Rates, i + 1)).toBeCloseTo(rate, 15));
  });

  it.each(shared.splits)("the split of $text at $last", ({ text, last, bytes }) => {
    expect(splitAt(new TextEncoder().encode(text), last)).toBe(bytes);
  });

  it.each(shared.n_grams)("n-gram models of $vocab tokens", ({ vocab, train, ids, targets, ranks, figures: rows }) => {
    const at = Int32Array.from(targets);
    const found = baselines(Uint16Array.from(train), vocab, Uint16Array.from(ids), at);
    expect(Object.fromEntries(NGRAMS.map((name) => [name, Array.from(found[name].ranks)]))).toEqual(ranks);
    const all = [chance(vocab, at.length, 50), ...NGRAMS.map((name) => figures(name, found[name], 50))];
    all.forEach((row, i) => near(row, rows[i]));
  });

  it("predictions from logits", () => {
    const { logits, targets, size, ranks, figures: row } = shared.predictions;
    const found = noPredictions(targets.length);
    ofLogits(Float32Array.from(logits), targets, found, 0);
    expect(Array.from(found.ranks)).toEqual(ranks);
    near(figures("model", found, size), row);
  });

  it.each(shared.loss_scales)("the loss scale after $runs", ({ runs, after }) => {
    let scale: Scale | null = FIRST;
    const found = runs.map(([fitted, overflows]) => {
      for (let i = 0; scale && i < fitted!; i++) scale = afterStep(scale);
      for (let i = 0; scale && i < overflows!; i++) scale = afterOverflow(scale);
      return scale && [scale.value, scale.steps];
    });
    expect(found).toEqual(after);
  });

  it.each(shared.copies)("copies in $sample", ({ text, sample, copies: expected }) => {
    near(copies(sample, text), expected);
  });

  it.each(shared.tasks)("answers to a task", ({ windows: given, seen, answers: expected }) => {
    const encoder = new TextEncoder();
    const held = given.map(({ tokens, hits }) => ({ tokens: tokens.map((token) => encoder.encode(token)), hits }));
    near(answers(held, new Set(seen)), expected);
  });

  it.each(shared.cleaning)("cleaning up by $steps", ({ documents, steps, text, removed, inspected }) => {
    const found = clean(documents, steps as CleaningStep[]);
    expect([found.text, found.removed]).toEqual([text, removed]);
    near(inspect(text, 0.1), inspected);
  });

  const repeated = (runs: unknown[][]) =>
    runs.map(([unit, times]) => (unit as string).repeat(times as number)).join("");

  it.each(shared.chats.templates)("a chat with the template $name", async ({ template, messages, ids, called }) => {
    const render = (job: RenderJob) => Promise.resolve((rendered(job) as { texts: string[] }).texts);
    const vocabulary = new Tokenizer(parseTokenizer(shared.chats.tokenizer, "tokenizer.json"));
    const data = template as unknown as ChatTemplateData; // TypeScript infers a separate type for each case
    const chat = new ChatTemplate(data, vocabulary, { render, close: () => {} });
    for (const [i, each] of messages.entries()) expect(await chat.ids(each as ChatMessage[])).toEqual(ids[i]);
    if (!called) return;
    const more = shared.chats.called;
    expect(await chat.ids(more.messages as ChatMessage[], true, more.tools)).toEqual(called);
  });

  it.each(shared.functions.calls)("calls in $pieces", ({ pieces, most, parts, count }) => {
    const parser = new CallParser(["weather", "time"], most ?? Infinity);
    expect([...pieces.flatMap((piece) => parser.push(piece)), ...parser.flush()]).toEqual(parts);
    expect(parser.count).toBe(count);
  });

  it("a tool without a function is refused", () => {
    const tool = { type: "function", function: null } as unknown as Tool;
    expect(() => Tools.asked([tool], null, null)).toThrow("tools.0 must be a function");
  });

  it.each(shared.functions.offers)("tools with the choice $choice", ({ tools, choice, found }) => {
    const asked = () => Tools.asked(tools as Tool[], choice as ToolChoice | null, null);
    if (found && "field" in found) {
      expect(asked).toThrow(expect.objectContaining({ field: found.field }));
      return;
    }
    const own = asked();
    expect(own && { forced: own.forced, documents: own.documents(), schema: own.schema("arguments") }).toEqual(found);
  });

  it.each(shared.functions.templates)("messages for the template $source", ({ source, form, messages, written }) => {
    const mentions = (text: string) => source.includes(text);
    const tools = Tools.asked(shared.functions.tools as Tool[], null, null);
    expect(callForm(mentions)).toEqual(form);
    expect(forTemplate(messages as ChatMessage[], tools, mentions)).toEqual(written);
  });

  it.each(shared.tokenizers)("a tokenizer", ({ data, texts, prompt, long }) => {
    const tokenizer = new Tokenizer(parseTokenizer(data, "tokenizer.json"));
    for (const { text, ids, again } of texts) {
      expect(tokenizer.encode(text)).toEqual(ids);
      expect(tokenizer.decode(ids)).toBe(again);
    }
    expect(tokenizer.prompt("to be")).toEqual(prompt);
    for (const { runs, ids: count, sum } of long) {
      const ids = tokenizer.encode(repeated(runs));
      expect([ids.length, ids.reduce((all, id, at) => all + id * (at % 1000), 0)]).toEqual([count, sum]);
    }
  });

  it.each(shared.vocabularies)("a vocabulary of $size tokens", ({ runs, size, merges }) => {
    const { vocab, merges: learnt } = trainBpe(repeated(runs), size);
    expect(learnt.map(([left, right]) => `${vocab[left]} ${vocab[right]}`)).toEqual(merges);
  });
});
