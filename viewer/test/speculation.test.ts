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

test("guesses that would save no time even if all were correct are not checked", () => {
  const guessing = new Guessing();
  expect(guessing.mayPay(1)).toBe(true); // nothing is known yet
  guessing.plainTokens(10, 1);
  guessing.checkedStep(30, 3);
  guessing.plainTokens(10, 1);
  expect([guessing.mayPay(2), guessing.mayPay(3)]).toEqual([false, true]);
  expect([guessing.guesses(TEXT, 2), guessing.guesses(TEXT, 3)]).toEqual([[], [4, 1, 2]]);
  guessing.plainTokens(10, 256);
  expect(guessing.mayPay(2)).toBe(true); // the measured step is too long ago
});

test("a delay of the tokens after a checked step counts as time of the step", () => {
  const guessing = new Guessing();
  const pauses: number[] = [];
  guessing.plainTokens(10, 1);
  for (let check = 0; check < 4; check++) {
    guessing.checkedStep(25, 2);
    expect(guessing.paused).toBe(false);
    guessing.plainTokens(40, 1);
    for (pauses.push(0); guessing.paused; pauses[check]!++) guessing.plainTokens(10, 1);
  }
  expect(pauses).toEqual([16, 32, 64, 128]);
  guessing.checkedStep(0, 0, false); // the first step of a text
  guessing.plainTokens(90, 1);
  expect(guessing.mayPay(0)).toBe(true);
  guessing.checkedStep(35, 3);
  guessing.plainTokens(10, 1);
  expect([guessing.paused, guessing.mayPay(2), guessing.mayPay(3)]).toEqual([false, false, true]); // plain is still 10
});

test("checked steps that pay are not paused by tokens that take a varying time", () => {
  const guessing = new Guessing();
  let paused = 0;
  for (let check = 0; check < 200; check++) {
    guessing.checkedStep(10, 3);
    for (const ms of [2.5, 5.5, 5.5, 2.5].slice(check % 3)) guessing.plainTokens(ms, 1);
    paused += Number(guessing.paused);
  }
  expect(paused).toBe(0);
});
