// Tests the timers of a hidden page, and waiting for work that a signal may abort.

import { expect, test, vi } from "vitest";
import { sleep, unlessAborted } from "../src/runtime/gl/wait";

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

test("a signal keeps no listener of work that has ended", async () => {
  const { signal } = new AbortController();
  const [added, removed] = [vi.spyOn(signal, "addEventListener"), vi.spyOn(signal, "removeEventListener")];
  expect(await unlessAborted(Promise.resolve(1), signal, () => 2)).toBe(1);
  await expect(unlessAborted(Promise.reject(new Error("no")), signal, () => 2)).rejects.toThrow("no");
  expect(removed.mock.calls).toEqual(added.mock.calls);
  expect(added).toHaveBeenCalledTimes(2);
});

test("aborting a signal ends the wait for work", async () => {
  const stop = new AbortController();
  const never = new Promise<number>(() => {});
  const waiting = unlessAborted(never, stop.signal, () => 2);
  stop.abort();
  expect([await waiting, await unlessAborted(never, stop.signal, () => 3)]).toEqual([2, 3]);
});
