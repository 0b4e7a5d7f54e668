// Tests the reader, which copies framebuffers from the device to the CPU. The device is simulated: each test decides
// when the device's fences pass.

import { afterEach, expect, test, vi } from "vitest";
import type { Device } from "../src/runtime/gl/device";
import { Reader } from "../src/runtime/gl/readback";
import { pause } from "../src/runtime/gl/wait";

/** Simulates a context in which each framebuffer holds a number. Reads return the number. */
class Drawing {
  readonly fences: { passed: boolean }[] = [];
  fetches = 0;
  buffers = 0;
  flushes = 0;
  lost = false;
  private bound: { bytes: Uint8Array } | null = null;
  private framebuffer = 0;

  readonly gl = {
    createBuffer: () => {
      this.buffers++;
      return { bytes: new Uint8Array() };
    },
    deleteBuffer: () => this.buffers--,
    bindBuffer: (_: unknown, buffer: { bytes: Uint8Array } | null) => (this.bound = buffer),
    bufferData: (_: unknown, bytes: number) => (this.bound!.bytes = new Uint8Array(bytes)),
    bindFramebuffer: (_: unknown, framebuffer: number) => (this.framebuffer = framebuffer),
    readBuffer: () => {},
    readPixels: (...[, , width, height, , , offset]: number[]) => {
      this.bound!.bytes.fill(this.framebuffer, offset, offset! + 16 * width! * height!);
    },
    getBufferSubData: (_: unknown, from: number, into: Uint8Array) => {
      this.fetches++;
      into.set(this.bound!.bytes.subarray(from, from + into.length));
    },
    fenceSync: () => {
      const fence = { passed: false };
      this.fences.push(fence);
      return this.lost ? null : fence;
    },
    flush: () => this.flushes++,
    getSyncParameter: (fence: { passed: boolean }) => fence.passed,
    getQueryParameter: (query: { passed: boolean }) => query.passed,
    deleteSync: () => {},
    SIGNALED: true,
  };
  readonly reader = Reader.of({ gl: this.gl, generation: 0, lost: false, sleep: pause } as unknown as Device);

  /** Reads a framebuffer that holds this number. */
  async read(holds: number, bytes = 16): Promise<Uint8Array> {
    const into = new Uint8Array(bytes);
    await this.reader.read([holds], [0, 0, bytes / 16, 1], false, into);
    return into;
  }

  async pass(): Promise<void> {
    for (let i = 0; i < 3; i++) await pause();
    this.fences.forEach((fence) => (fence.passed = true));
  }
}

afterEach(() => void vi.restoreAllMocks());

test("reads that begin in one task share a fence and a copy to the CPU", async () => {
  const drawing = new Drawing();
  const reads = [drawing.read(3), drawing.read(4, 48), drawing.read(5)];
  const passed = drawing.reader.passed();
  expect(drawing.fences).toHaveLength(0);
  await drawing.pass();
  expect((await Promise.all(reads)).map((bytes) => [...new Set(bytes)])).toEqual([[3], [4], [5]]);
  await passed;
  expect([drawing.fences.length, drawing.fetches]).toEqual([1, 1]);
});

test("later reads have separate fences, and only buffers of a medium size are kept", async () => {
  const drawing = new Drawing();
  for (const [holds, bytes, kept] of [
    [1, 16, 0],
    [2, 8192, 1],
    [3, 16, 1],
    [4, 8192, 1],
    [5, (1 << 20) + 16, 1],
  ] as const) {
    const read = drawing.read(holds, bytes);
    await drawing.pass();
    expect([...new Set(await read)]).toEqual([holds]);
    expect(drawing.buffers).toBe(kept);
  }
  expect(drawing.fences).toHaveLength(5);
});

test("a fence that is due soon is polled with flushes", async () => {
  let now = 0;
  vi.spyOn(performance, "now").mockImplementation(() => (now += 0.1));
  const drawing = new Drawing();
  const read = drawing.read(1);
  for (let polls = 0; polls < 10; polls++) await pause();
  expect(drawing.flushes).toBeGreaterThan(1); // setting the fence flushes once
  await drawing.pass();
  await read;
});

test("a wait for a query needs no fence, and ends after earlier reads", async () => {
  const drawing = new Drawing();
  const done: string[] = [];
  const query = { passed: true };
  const read = drawing.read(1).then(() => done.push("read"));
  const answered = drawing.reader.answered(query).then(() => done.push("answered"));
  expect(drawing.fences).toHaveLength(1); // that of the read
  await drawing.pass();
  await Promise.all([read, answered]);
  query.passed = false;
  const later = drawing.reader.answered(query).then(() => done.push("later"));
  for (let polls = 0; polls < 5; polls++) await pause();
  expect(done).toEqual(["read", "answered"]);
  query.passed = true;
  await later;
  expect(drawing.fences).toHaveLength(1);
});

test("a read after `close` waits for a new fence", async () => {
  const drawing = new Drawing();
  const before = drawing.reader.passed();
  expect(drawing.reader.passed()).toBe(before);
  drawing.reader.close();
  const after = drawing.read(7);
  let done = false;
  void after.then(() => (done = true));
  expect(drawing.fences).toHaveLength(1);
  drawing.fences[0]!.passed = true;
  await before;
  await pause();
  expect(done).toBe(false);
  await drawing.pass();
  expect([...new Set(await after)]).toEqual([7]);
});

test("large reads, and reads that do not fit the shared buffer, have separate buffers", async () => {
  const drawing = new Drawing();
  const sizes = [8192, ...new Array<number>(5).fill(4096)];
  const reads = sizes.map((bytes, i) => drawing.read(i + 1, bytes));
  await drawing.pass();
  const found = await Promise.all(reads);
  expect(found.map((bytes) => [bytes.length, ...new Set(bytes)])).toEqual(sizes.map((bytes, i) => [bytes, i + 1]));
  expect([drawing.fences.length, drawing.fetches]).toEqual([1, 3]);
});

test("an error rejects the waiting reads, but no later ones", async () => {
  const drawing = new Drawing();
  const { getBufferSubData } = drawing.gl;
  drawing.gl.getBufferSubData = () => {
    throw new Error("no memory");
  };
  const broken = drawing.read(1);
  const heard = expect(broken).rejects.toThrow("no memory");
  await drawing.pass();
  await heard;
  drawing.gl.getBufferSubData = getBufferSubData;
  const read = drawing.read(2);
  await drawing.pass();
  expect([...new Set(await read)]).toEqual([2]);
});

test("a lost context rejects the waiting reads", async () => {
  const drawing = new Drawing();
  const early = drawing.read(1);
  drawing.reader.close();
  drawing.lost = true;
  const late = drawing.read(2);
  const heard = Promise.allSettled([early, late]);
  await pause();
  drawing.fences[0]!.passed = true;
  const results = await heard;
  expect(results.at(-1)!.status).toBe("rejected");
});
