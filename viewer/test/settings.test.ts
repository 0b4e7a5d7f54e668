// Tests the sampling settings of the page and of its functions if a model recommends settings, and which entries and
// textures a link may select.

import { beforeEach, expect, it } from "vitest";
import type { Glgpt } from "../src/api";
import { passes } from "../src/app/features/passes/store";
import { textures } from "../src/app/features/textures/store";
import { readParams } from "../src/app/stores/link";
import { models } from "../src/app/stores/model";
import { settings } from "../src/app/stores/settings";
import { CompletionError, sampling } from "../src/completion-request";
import { TEXT_SAMPLING } from "../src/runtime/generated/sampling";

/** Selects a model with these recommended settings, or without recommendations. */
function select(recommended?: object): void {
  const config = { n_positions: 64 };
  const model = { manifest: { prompts: [], config, sampling: recommended }, split: null, tokenizer: null };
  models.engine = { model, encode: () => [], decode: () => "" } as unknown as Glgpt;
  models.phase.value = "ready";
}

const own = { temperature: 0.3, top_k: 20, top_p: 0.8 };

beforeEach(() => {
  select();
  settings.useRecommended();
  settings.temperature.value = TEXT_SAMPLING.temperature;
});

it("takes the settings of the model that replaces another, except those that the visitor changed", () => {
  settings.topP.value = 0.5;
  select(own);
  settings.adopt("own", "file");
  expect([settings.temperature.value, settings.topK.value, settings.topP.value]).toEqual([0.3, 20, 0.5]);
  select();
  settings.adopt("file", "own");
  const { temperature } = TEXT_SAMPLING;
  expect([settings.temperature.value, settings.topK.value, settings.topP.value]).toEqual([temperature, 0, 0.5]);
});

it("keeps the settings of a link", () => {
  settings.temperature.value = 1.5;
  select(own);
  settings.useRecommended((key) => key === "k");
  expect([settings.temperature.value, settings.topK.value]).toEqual([1.5, 0]);
});

it("uses the recommended settings that a request for a completion omits", () => {
  const recommended = { temperature: 0.3, topK: 20, topP: 0.8, minP: null };
  const messages = [{ role: "user" as const, content: "a" }];
  expect(sampling({ messages, seed: 1 }, recommended, 128)).toMatchObject(recommended);
  expect(sampling({ messages, temperature: 1, top_p: 0 }, recommended, 128)).toMatchObject({
    temperature: 0, // greedy
    topK: 20,
    topP: null,
  });
  expect(() => sampling({ messages, temperature: -5, top_p: 0 }, recommended, 128)).toThrow(CompletionError);
});

it("ignores an entry or a texture of a link if its name is a property of every JavaScript object", () => {
  const link = new URLSearchParams({ entry: "constructor", texture: "__proto__" });
  readParams([...passes.params, ...textures.params], link);
  expect([passes.entry.value, textures.texture.value]).toEqual(["decode", "embed"]);
});
