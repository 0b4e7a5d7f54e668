// Tests the default sampling of texts and answers, which glgpt/checkpoint/generation_config.py also computes.

import { describe, expect, it } from "vitest";
import { CHAT_SAMPLING, TEXT_SAMPLING } from "../src/runtime/generated/sampling";
import { ggufSampling, modelSampling, samplingDefaults } from "../src/runtime/engine/sampling-defaults";

describe("sampling of a model", () => {
  it.each([
    [{}, CHAT_SAMPLING],
    [{ top_p: 0.5 }, CHAT_SAMPLING],
    [
      { temperature: 0.6, top_p: 0.9, top_k: -1, min_p: 0 },
      { temperature: 0.6, top_p: 0.9 },
    ],
    [
      { temperature: 0, top_k: 40, min_p: 0.1 },
      { temperature: 0, top_k: 40, min_p: 0.1 },
    ],
  ])("has the settings of the configuration %j", (config, sampling) => {
    expect(modelSampling(config, true)).toEqual(sampling);
    expect(modelSampling(config, false)).toEqual(TEXT_SAMPLING);
  });

  it.each([{ temperature: -1 }, { temperature: "hot" }, { temperature: 1, top_k: 1.5 }])("refuses %j", (config) => {
    expect(() => modelSampling(config, true)).toThrow("; it must be a");
  });

  it("is read from a GGUF file", () => {
    const metadata = new Map<string, unknown>([
      ["general.sampling.temp", 0.7],
      ["general.sampling.top_k", 20],
    ]);
    expect(modelSampling(ggufSampling(metadata), true)).toEqual({ temperature: 0.7, top_k: 20 });
  });

  it("becomes options in which a missing filter is off", () => {
    expect(samplingDefaults({ temperature: 0.6, top_p: 0.9 })).toEqual({
      temperature: 0.6,
      topK: null,
      topP: 0.9,
      minP: null,
    });
  });
});
