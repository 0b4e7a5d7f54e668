// Tests when the page guesses tokens. A browser tests the checks of guesses.

import { expect, test } from "vitest";
import { Guessing } from "../src/runtime/engine/speculation";

const TEXT = [1, 2, 3, 4, 1, 2, 3];

test("guesses continue what followed the text's end before, once a token was measured", () => {
  const guessing = new Guessing();
  expect(guessing.guesses(TEXT, 3)).toEqual([]);
  guessing.plainTokens(10, 1);
  expect(guessing.guesses(TEXT, 3)).toEqual([4, 1, 2]);
  expect(guessing.guesses(TEXT, 0)).toEqual([]);
  expect(guessing.guesses([1, 2, 3], 3)).toEqual([]);
});

test("guessing pauses while it does not pay, twice as long each time", () => {
  const guessing = new Guessing();
  guessing.plainTokens(10, 1);
  const pause = () => {
    let tokens = 0;
    for (; !guessing.guesses(TEXT, 3).length; tokens++) guessing.plainTokens(10, 1);
    return tokens;
  };
  guessing.checkedStep(25, 3);
  expect(pause()).toBe(0);
  guessing.checkedStep(90, 0);
  expect(pause()).toBe(16);
  guessing.checkedStep(90, 1);
  expect(pause()).toBe(32);
  guessing.checkedStep(15, 3);
  guessing.checkedStep(90, 0);
  expect(pause()).toBe(16);
});
