// Tests requests of chat completions.

import { describe, expect, it } from "vitest";
import type { Glgpt } from "../src/api";
import type { ChatCompletionRequest } from "../src/completion-request";
import { Completions, StopTexts } from "../src/completions";
import { ConstraintError } from "../src/runtime/constraints/constraint";

describe("stop texts", () => {
  /** Returns the shown text of an answer that arrives in pieces, and whether a stop text ended it. */
  function shown(stops: readonly string[], pieces: readonly string[]): [string, boolean] {
    const texts = new StopTexts(stops);
    const found = pieces.map((piece) => texts.push(piece)).join("");
    return [texts.found ? found : found + texts.flush(), texts.found];
  }

  it.each([
    [["abcd", "c"], "abcd", "", true],
    [["abcd", "c"], "xabcx", "xab", true],
    [["abcd", "c"], "abc", "ab", true],
    [["abcd", "c"], "ab", "ab", false],
    [["ab", "yab"], "xyab", "x", true],
    [[], "abc", "abc", false],
  ])("%j end %s at the same place, however it is split", (stops, text, expected, found) => {
    for (let first = 0; first <= text.length; first++) {
      for (let second = first; second <= text.length; second++) {
        const pieces = [text.slice(0, first), text.slice(first, second), text.slice(second)];
        expect(shown(stops, pieces), pieces.join("|")).toEqual([expected, found]);
      }
    }
  });
});

describe("a request that cannot be answered", () => {
  const messages = [{ role: "user" as const, content: "a" }];
  const model = {
    chatTemplate: { ids: () => Promise.resolve([1]), mentions: () => false },
    manifest: { model: "m", config: { n_positions: 64, vocab_size: 128 } },
  };
  const write = async (prepare: () => Promise<unknown>) => {
    await prepare();
    throw new ConstraintError("no look-around");
  };
  const glgpt = { usable: () => Promise.resolve(), model, write } as unknown as Glgpt;
  const refused = (request: object) => new Completions(glgpt).create({ messages, ...request } as ChatCompletionRequest);

  it.each([
    ["logit_bias", { logit_bias: { 128: 1 } }],
    ["tools", { tools: { type: "function", function: { name: "f" } } }],
    ["tools", { tools: "f" }],
    ["guided_regex", { guided_regex: "(?=a)" }],
  ])("is refused with %s as the field at fault", async (param, request) => {
    await expect(refused(request)).rejects.toMatchObject({ status: 400, param });
  });

  it("is refused before the first chunk of a stream", async () => {
    const chunks = await refused({ guided_regex: "(?=a)", stream: true });
    const first = (chunks as AsyncIterable<unknown>)[Symbol.asyncIterator]().next();
    await expect(first).rejects.toMatchObject({ status: 400, param: "guided_regex" });
  });
});
