// Tests which tokens are kept of those that the device chose ahead, while it applied one mask (the set of allowed
// tokens). A test in a browser compares whole texts.

import { expect, test } from "vitest";
import { Allowed, type Matcher } from "../src/runtime/constraints/grammars";
import type { Stretch } from "../src/runtime/engine/generate";
import { GroupSizes } from "../src/runtime/engine/group-sizes";
import type { Model } from "../src/runtime/engine/model";
import { SameMask } from "../src/runtime/engine/same-mask";

const END = 9;
const MASK = new Allowed(new Uint32Array(1), 2, "");
const OTHER = new Allowed(new Uint32Array(1), 1, "");

/**
 * Takes a step that chooses two tokens ahead, from `ids` (null: the device leaves the choice to the page; an error:
 * reading the token fails). The mask changes after the token `changes`. Returns the ids that are kept, the matcher's
 * text, the calls that wrote or decoded a token again, and whether the next group of tokens was issued.
 */
async function step(ids: readonly (number | null | Error)[], changes?: number) {
  const done: string[] = [];
  const text: number[] = [];
  let mask = MASK;
  const matcher = {
    get allowed() {
      return Promise.resolve(mask);
    },
    acceptSame: (tokens: readonly number[]) => {
      const count = tokens.includes(changes!) ? tokens.indexOf(changes!) + 1 : tokens.length;
      text.push(...tokens.slice(0, count));
      if (tokens.includes(changes!)) mask = OTHER;
      return Promise.resolve(count);
    },
  } as unknown as Matcher;
  const model = {
    cache: { decode: () => {}, write: (id: number) => done.push(`write ${id}`), again: () => done.push("again") },
    sampling: {
      readsOnlyToken: () => true,
      chooseAllowed: (_: unknown, i: number) => {
        const id = ids[i] as number | null | Error;
        return id instanceof Error ? Promise.reject(id) : Promise.resolve(id === null ? null : { id });
      },
    },
    reader: { close: () => {} },
    ends: (id: number) => id === END,
    device: { software: false },
    manifest: { tuning: { ahead: 2 } },
  } as unknown as Model;
  const sameMask = new SameMask(model, new GroupSizes(model));
  for (let i = 0; i < 20; i++) sameMask.plainToken(1, MASK); // enough for groups of two
  const stretch = {
    text: [0],
    count: ids.length,
    run: {},
    sampler: { adjusts: false },
    drawn: 0,
  } as unknown as Stretch;
  const kept = await sameMask.step(stretch, 0, MASK, matcher);
  const { ahead } = sameMask;
  await sameMask.drop();
  return { kept: kept.map(({ id }) => id), text, done, ahead };
}

test("tokens under one mask are kept, and the next group is issued", async () => {
  expect(await step([1, 2, 3, 4, 5, 6])).toEqual({ kept: [1, 2], text: [1, 2], done: [], ahead: true });
});

test("tokens after a change of the mask are discarded, also one that ends the text", async () => {
  expect(await step([1, 2, 3, 4], 1)).toEqual({ kept: [1], text: [1], done: ["write 1"], ahead: false });
  expect(await step([1, END, 3, 4], 1)).toEqual({ kept: [1], text: [1], done: ["write 1"], ahead: false });
});

test("a token that ends the text is kept if its mask was valid, and tokens after it are ignored", async () => {
  expect((await step([1, END, 3, 4])).kept).toEqual([1, END]);
  expect((await step([END, new Error("not finite"), 3, 4])).kept).toEqual([END]);
});

test("an undecided token is left to the page", async () => {
  expect(await step([1, null, 3, 4])).toEqual({ kept: [1], text: [1], done: ["write 1"], ahead: false });
  expect(await step([null, 2, 3, 4])).toEqual({ kept: [], text: [], done: ["again"], ahead: false });
});
