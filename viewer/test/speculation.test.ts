// Tests when the page guesses tokens. A test in a browser runs the checks of guesses.

import { expect, test } from "vitest";
import { Guessing } from "../src/runtime/engine/speculation";

const TEXT = [1, 2, 3, 4, 1, 2, 3];

test("guesses repeat what followed the text's last tokens earlier in the text, once a token was timed", () => {
  const guessing = new Guessing();
  expect(guessing.guesses(TEXT, 3)).toEqual([]);
  guessing.plainTokens(10, 1);
  expect(guessing.guesses(TEXT, 3)).toEqual([4, 1, 2]);
  expect(guessing.guesses(TEXT, 0)).toEqual([]);
  expect(guessing.guesses([1, 2, 3], 3)).toEqual([]);
});

test("guessing pauses after a check that saved no time, and twice as long after each further one", () => {
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
