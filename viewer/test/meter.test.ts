// Tests that inspecting tokens takes only a small share of the page's time.

import { describe, expect, it } from "vitest";
import { Meter } from "../src/app/stores/meter";

/**
 * Simulates 600 tokens of `token` ms each; `together` tokens arrive at once. A look (an inspection) adds `cost` ms,
 * spread over the next `spread` tokens. Returns, for the last 400 tokens, the mean and the longest time between looks,
 * and the share by which looks slow the tokens down.
 */
function run(
  meter: Meter,
  token: number,
  cost: number,
  spread = 1,
  together = 1,
): { mean: number; longest: number; slower: number } {
  let [now, last, longest, from, looks] = [0, 0, 0, 0, 0];
  const owed: number[] = [];
  for (let i = 0; i < 600; i++) {
    const more = together - 1 - (i % together);
    now += more === together - 1 ? together * token + (owed.shift() ?? 0) : 0.1;
    if (i === 200) [from, longest, looks] = [now, 0, 0];
    if (!meter.due(more, now)) continue;
    longest = Math.max(longest, now - last);
    last = now;
    looks++;
    for (let k = 0; k < spread; k++) owed[k] = (owed[k] ?? 0) + cost / spread;
  }
  return { mean: (now - from) / looks, longest, slower: (now - from) / (399 * token) - 1 };
}

describe("the meter", () => {
  it.each([
    ["a software driver", 20, 25, 1, 1000, 0.05],
    ["frames that are drawn after several tokens", 20, 40, 6, 1200, 0.05],
    ["an expensive look at quick tokens", 4, 15, 3, 1000, 0.05],
    ["slow tokens", 600, 20, 1, 1000, 0.05],
  ])("limits the share of time that looks take, with %s", (_, token, cost, spread, slowest, most) => {
    const { longest, slower } = run(new Meter(0.035, 40, slowest), token, cost, spread);
    expect(slower).toBeLessThan(most);
    expect(longest).toBeLessThan(slowest + 2 * (token + cost));
  });

  it.each([
    [8, 10, 4],
    [12, 20, 2],
    [4, 15, 8],
    [2.4, 1, 12],
  ])("limits this share for tokens of %s ms, with looks of %s ms, arriving %s at a time", (token, cost, together) => {
    const { longest, slower } = run(new Meter(0.035, 40, 1000), token, cost, 1, together);
    expect(slower - 0.1 / token).toBeLessThan(0.05); // subtracts the 0.1 ms between tokens that arrive together
    expect(longest).toBeLessThan(1000 + 2 * (together * token + cost));
  });

  it("allows a look every 40 ms if looks cost almost nothing, except for occasional pauses", () => {
    const { mean, longest } = run(new Meter(0.035, 40, 1000), 3, 0.05);
    expect(mean).toBeLessThan(50);
    expect(longest).toBeLessThan(160);
  });
});
