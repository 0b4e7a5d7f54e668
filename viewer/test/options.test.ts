// Tests the check of the options that a caller passes to the object `globalThis.glgpt`.

import { describe, expect, it } from "vitest";
import { checkOptions } from "../src/runtime/engine/options";

const NAMES = { prompt: true, tokens: true, topK: true } as const;

describe("options", () => {
  it("are accepted by their names", () => {
    expect(() => checkOptions("generate", {}, {})).not.toThrow();
    expect(() => checkOptions("generate", { prompt: "a", tokens: 1 }, { ...NAMES })).not.toThrow();
  });

  it("that do not exist are refused, with the name of the option that was probably meant", () => {
    const refusal = (options: object) => () => checkOptions("generate", options, NAMES);
    expect(refusal({ max_tokens: 1 })).toThrow("generate has no option max_tokens: did you mean tokens?");
    expect(refusal({ top_k: 1 })).toThrow("generate has no option top_k: did you mean topK?");
    expect(refusal({ colour: 1 })).toThrow("generate has no option colour: it takes prompt, tokens, topK.");
    const wrong = () => checkOptions("generate", 5 as unknown as object, NAMES);
    expect(wrong).toThrow("generate takes an object of options, not a number.");
  });
});
