// Tests the timers of a hidden page.

import { expect, test, vi } from "vitest";
import { sleep } from "../src/runtime/gl/wait";

/** Runs the worker's code as a worker would, in this thread. */
class Runner {
  static source = new Blob();
  onmessage: ((event: { data: unknown }) => void) | null = null;

  async postMessage(data: unknown): Promise<void> {
    const code = `let onmessage; ${await Runner.source.text()}; return onmessage`;
    // eslint-disable-next-line @typescript-eslint/no-implied-eval -- a worker's source text is tested
    const worker = new Function("postMessage", code) as (post: (data: unknown) => void) => (event: object) => void;
    worker((answer) => this.onmessage?.({ data: answer }))({ data });
  }
}

test("timers of a hidden page end after their own times", async () => {
  vi.useFakeTimers();
  vi.stubGlobal("Worker", Runner);
  vi.spyOn(URL, "createObjectURL").mockImplementation((source) => {
    Runner.source = source as Blob;
    return "";
  });
  const ended: number[] = [];
  for (const ms of [100, 10, 50]) void sleep(ms, true).then(() => ended.push(ms));
  await vi.advanceTimersByTimeAsync(20);
  expect(ended).toEqual([10]);
  await vi.advanceTimersByTimeAsync(100);
  expect(ended).toEqual([10, 50, 100]);
  vi.useRealTimers();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});
