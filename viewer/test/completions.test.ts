// Tests requests of chat completions.

import { describe, expect, it } from "vitest";
import { StopTexts } from "../src/completions";

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
