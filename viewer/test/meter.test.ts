// The page looks at tokens as often as costs a small share of the time.

import { describe, expect, it } from "vitest";
import { Meter } from "../src/ui/meter";

/** The longest wait for a look, and how much slower the last of 400 tokens are, where each takes `token` ms and a look `cost` more. */
function run(meter: Meter, token: number, cost: number): { longest: number; slower: number } {
  let [now, last, longest, from] = [0, 0, 0, 0];
  for (let i = 0; i < 400; i++) {
    now += token;
    if (i === 100) [from, longest] = [now, 0];
    if (!meter.due(now)) continue;
    longest = Math.max(longest, now - last);
    last = now;
    now += cost;
  }
  return { longest, slower: (now - from) / (299 * token) - 1 };
}

describe("the meter", () => {
  it.each([
    ["a software driver", 26, 22, 3, 500, 0.05],
    ["a dear look at quick tokens", 4, 15, 1, 8000, 0.05],
    ["slow tokens", 600, 20, 3, 500, 0.05],
  ])("holds %s to its share", (_, token, cost, spread, slowest, most) => {
    const { longest, slower } = run(new Meter(0.04, 40, slowest, spread), token, cost);
    expect(slower).toBeLessThan(most);
    expect(longest).toBeLessThan(slowest + 2 * (token + cost));
  });

  it("looks as often as it may where that costs nothing", () => {
    expect(run(new Meter(0.04, 40, 500, 3), 3, 0.05).longest).toBeLessThan(50);
  });
});
