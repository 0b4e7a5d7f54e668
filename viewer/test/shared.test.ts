// What both languages compute: tests/page/shared_cases.py writes these cases, and pytest holds that Python still gives them.

import { describe, expect, it } from "vitest";
import shared from "../../tests/page/shared_cases.json";
import { plan } from "../src/engine/chunks";
import { fromHalf } from "../src/engine/formats";
import { unpack } from "../src/engine/layout";
import { parseTokenizer } from "../src/engine/manifest";
import { drawSeed, hash4, Sampler } from "../src/engine/sampling";
import { Tokenizer } from "../src/engine/tokenizer";
import type { View } from "../src/gl/program";
import { fixedWindows, rateAt, sortedIndex, splitAt, starts, windows, type Rates } from "../src/training/batches";

describe("cases shared with Python", () => {
  it.each(shared.chunks)("chunks of $tokens tokens in $context", ({ tokens, context, known, plan: expected }) => {
    const found = plan(tokens, context, known, shared.costs);
    expect(found.map(({ start, valid, size }) => [start, valid, size])).toEqual(expected);
  });

  it.each(shared.layouts)("the layout $view", ({ view, bits, matrix }) => {
    const texels = Uint32Array.from(bits);
    const whole: View = { ...view, texture: "x", tiles: [view.tiles[0]!, view.tiles[1]!], dtype: view.dtype as View["dtype"] };
    const found = unpack(whole, view.dtype === "f16" ? texels : new Float32Array(texels.buffer));
    expect(Array.from(found)).toEqual(matrix);
  });

  it.each(shared.halves)("the half %i is %d", (bits, value) => {
    expect(fromHalf(bits!)).toEqual(value ?? NaN);
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

  it("the tokenizer", () => {
    const tokenizer = new Tokenizer(parseTokenizer(shared.tokenizer.data, "tokenizer.json"));
    for (const { text, ids, again } of shared.tokenizer.texts) {
      expect(tokenizer.encode(text)).toEqual(ids);
      expect(tokenizer.decode(ids)).toBe(again);
    }
  });
});
