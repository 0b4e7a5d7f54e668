// Tests when the page checks tokens that a constraint forces, such as the keys of an object, several at once. A test in
// a browser runs the check.

import { expect, test, vi } from "vitest";
import { Allowed, Matcher } from "../src/runtime/constraints/grammars";
import { ForcedTokens } from "../src/runtime/engine/forced";
import type { Stretch } from "../src/runtime/engine/generate";
import type { Model } from "../src/runtime/engine/model";
import { ContextLost } from "../src/runtime/gl/device";

const TOKENS = [{ id: 1 }, { id: 2 }];
const CHECKS = { forced: () => Promise.resolve(TOKENS) };
const NONE = new Uint32Array(1);
const MATCHER = new Matcher({ size: 0, ends: [], bytes: () => [] }, { bits: NONE, forced: "" }, () =>
  Promise.resolve(null),
);

/**
 * Returns a device, a spy that opens the batch program (which checks several tokens at once), and a function that takes
 * the first two steps of a text.
 */
function text(opens: () => Promise<unknown>) {
  const device = { generation: 1, lost: false };
  const model = { device, batch: { speculation: vi.fn(opens) } };
  const steps = async (wanted = true, forced = "forced") => {
    const tokens = new ForcedTokens(model as unknown as Model, wanted);
    const step = () => tokens.step({} as Stretch, 1, new Allowed(NONE, 1, forced), MATCHER);
    const first = await step();
    await new Promise((resolve) => setTimeout(resolve));
    return [first, await step()];
  };
  return { device, asked: model.batch.speculation, steps };
}

test("the batch program opens in the background, and only for a text with forced tokens", async () => {
  const { asked, steps } = text(() => Promise.resolve(CHECKS));
  expect(await steps(false)).toEqual([[], []]);
  expect(await steps(true, "")).toEqual([[], []]);
  expect(asked).not.toHaveBeenCalled();
  expect(await steps()).toEqual([[], TOKENS]);
  expect(asked).toHaveBeenCalledTimes(1);
});

test("a batch program that cannot be opened is not opened again, unless it was closed while it opened", async () => {
  const warned = vi.spyOn(console, "warn").mockImplementation(() => {});
  const closed = text(() => Promise.reject(new ContextLost()));
  expect(await closed.steps()).toEqual([[], []]);
  await closed.steps();
  expect(closed.asked).toHaveBeenCalledTimes(2);
  expect(warned).not.toHaveBeenCalled();
  const lost = text(() => {
    lost.device.generation++;
    return Promise.reject(new ContextLost());
  });
  const full = text(() => Promise.reject(new Error("no memory")));
  for (const { asked, steps } of [lost, full]) {
    await steps();
    expect(await steps()).toEqual([[], []]);
    expect(asked).toHaveBeenCalledTimes(1);
  }
  expect(warned).toHaveBeenCalledTimes(2);
});
