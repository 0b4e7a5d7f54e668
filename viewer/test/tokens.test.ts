// Tests the Tokens step, which measures how vocabularies tokenize a text. A later measurement may end earlier.

import { expect, it, vi } from "vitest";
import type { Bpe, Cut } from "../src/training/bpe";

type Measured = (cut: Cut) => void;
const measured = vi.hoisted(() => [] as Measured[]);
vi.mock("../src/training/vocabulary", () => ({
  cutOf: () => new Promise<Cut>((resolve) => measured.push(resolve)),
}));

import { Measurement } from "../src/app/features/train/tokens-store";

it("shows the measurement that was started last", async () => {
  const [first, second] = [{ vocab: ["a"] }, { vocab: ["b"] }] as unknown as [Bpe, Bpe];
  const [one, two] = [{ tokens: 1 }, { tokens: 2 }] as unknown as [Cut, Cut];
  const measurement = new Measurement();
  void measurement.measure("text", first);
  const latest = measurement.measure("text", second);
  measured[1]!(two);
  measured[0]!(one);
  await latest;
  expect(measurement.of(second)).toBe(two);
});
