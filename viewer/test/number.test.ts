// Tests the numbers that fields and links of the page accept, and how fields show them.

import { expect, it } from "vitest";
import { TrainParams } from "../src/app/features/train/params";
import { SettingsStore } from "../src/app/features/train/settings";
import { readParams } from "../src/app/stores/link";
import { fitted, numberText } from "../src/app/ui/number";
import type { TrainingIndex } from "../src/runtime/engine/manifest";

it("rounds an entered number if the field has integers, and clamps it to the range", () => {
  expect(fitted(2.6, { min: 1, step: 1 })).toBe(3);
  expect(fitted(0.2, { min: 1, max: 9, step: 1 })).toBe(1);
  expect(fitted(9.7, { min: 1, max: 9, step: 1 })).toBe(9);
  expect(fitted(0.0025, { min: 0, step: "any" })).toBe(0.0025);
});

it("reads integers of a link as integers, and ignores negative numbers", () => {
  const settings = new SettingsStore();
  const params = new TrainParams(settings);
  settings.index.value = { sizes: [], texts: [] } as unknown as TrainingIndex;
  readParams(params.all, new URLSearchParams("steps=20.5&warmup=2.9&evalEvery=7.2&sampleEvery=-1&lr=0.0025"));
  params.apply();
  const { steps, warmup, evalEvery, sampleEvery, lr } = settings.schedule;
  expect([steps, warmup, evalEvery, sampleEvery, lr].map(({ value }) => value)).toEqual([20, 2, 7, 50, 0.0025]);
});

it("shows a number without the rounding errors of a calculation, and integers exactly", () => {
  const numbers = [0.1 * 0.003, 0.0006 / 10, 0.0025, 1e-13, 120, Number.MAX_SAFE_INTEGER];
  expect(numbers.map(numberText)).toEqual(["0.0003", "0.00006", "0.0025", "1e-13", "120", "9007199254740991"]);
});
