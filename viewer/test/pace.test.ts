// Tests how passes are divided into slices, on a simulated device that takes known times for its passes.

import { expect, test } from "vitest";
import { Pace } from "../src/runtime/gl/pace";

/** Simulates a device that draws passes in order. `passed` resolves when all passes issued before are done. */
class Drawing {
  now = 0;
  private free = 0; // time at which all issued passes are done
  readonly slices: [number, number][] = [];
  readonly waits: number[] = []; // ms that a frame issued right after each slice would wait
  readonly idle: number[] = [];

  constructor(private readonly ms: readonly number[]) {}

  readonly issue = (first: number, end: number): void => {
    this.idle.push(Math.max(0, this.now - this.free));
    this.free = this.ms.slice(first, end).reduce((sum, t) => sum + t, Math.max(this.now, this.free));
    this.slices.push([first, end]);
    this.waits.push(this.free - this.now);
  };

  readonly passed = async (): Promise<void> => {
    const at = this.free;
    // time passes only after callers have issued their passes
    await new Promise<void>((resolve) => setTimeout(resolve, 0));
    this.now = Math.max(this.now, at);
  };
}

async function steps(ms: readonly number[], flops: readonly number[], count: number): Promise<Drawing> {
  const drawing = new Drawing(ms);
  const pace = new Pace(
    drawing.passed,
    () => {},
    () => drawing.now,
  );
  for (let i = 0; i < count; i++) await pace.play("step", flops, drawing.issue);
  return drawing;
}

test.each([0.02, 1, 7])(
  "passes of about %s ms are all drawn once, in order; once their times are known, no frame waits 50 ms",
  async (each) => {
    const ms = Array.from({ length: 200 }, (_, i) => each * (i % 3 ? 0.2 : 2));
    const { slices, waits } = await steps(ms, ms, 6);
    let at = 0;
    for (const [first, end] of slices) {
      expect(first).toBe(at % 200);
      expect(end).toBeGreaterThan(first);
      at += end - first;
    }
    expect(at).toBe(6 * 200);
    expect(Math.max(...waits.slice(waits.length / 2))).toBeLessThan(50);
  },
);

test("once times are known, short steps are not split, and several are issued before the device is done", async () => {
  const ms = new Array<number>(100).fill(0.05);
  const { slices, waits } = await steps(ms, ms, 20);
  expect(slices.slice(-5)).toEqual(new Array(5).fill([0, 100]));
  expect(Math.max(...waits.slice(-5))).toBeGreaterThan(10);
});

test("a step whose passes take longer than estimated is split after all", async () => {
  const ms = new Array<number>(50).fill(10); // 500 ms in all
  const { slices, waits } = await steps(ms, new Array<number>(50).fill(1), 4);
  expect(slices.length).toBeGreaterThan(4 * 20);
  expect(Math.max(...waits.slice(60))).toBeLessThan(50);
});

test("short entries that share a promise are one slice of at most 12 ms", async () => {
  const drawing = new Drawing(new Array<number>(20).fill(1)); // 1 ms per pass
  let open: Promise<void> | null = null;
  let fences = 0;
  const passed = () => {
    if (!open) fences++;
    return (open ??= drawing.passed());
  };
  const pace = new Pace(
    passed,
    () => (open = null),
    () => drawing.now,
  );
  for (let i = 0; i < 12; i++) {
    await pace.play("backward", [1, 1, 1, 1, 1], drawing.issue);
    await pace.play("update", [1, 1, 1], drawing.issue);
  }
  expect(fences).toBeLessThanOrEqual(12); // for 24 entries, which take 96 ms
  expect(fences).toBeGreaterThanOrEqual(8);
});

test("a lost context rejects a play that waits, and the next play works again", async () => {
  const drawing = new Drawing([10, 10, 10, 10, 10, 10]);
  let lost = true;
  const passed = () =>
    drawing.passed().then(() => {
      if (lost) throw new Error("lost");
    });
  const pace = new Pace(
    passed,
    () => {},
    () => drawing.now,
  );
  const flops = [1, 1, 1, 1, 1, 1];
  await expect(
    (async () => {
      for (let i = 0; i < 50; i++) await pace.play("step", flops, drawing.issue);
    })(),
  ).rejects.toThrow("lost");
  lost = false;
  await pace.play("step", flops, drawing.issue);
});
