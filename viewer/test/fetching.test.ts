// Tests fetching a text from simulated servers that misbehave.

import { afterEach, describe, expect, it, vi } from "vitest";
import { HttpSource } from "../src/runtime/engine/source";
import { TextFetcher, type FetchOptions } from "../src/training/fetching";

const url = new URL("https://texts.example/a.txt");

/** Returns a body of these parts. If `breaks`, the connection breaks after the last part. */
function body(parts: string[], breaks = false): ReadableStream<Uint8Array> {
  return new ReadableStream({
    pull(controller) {
      const part = parts.shift();
      if (part !== undefined) controller.enqueue(new TextEncoder().encode(part));
      else if (breaks) controller.error(new TypeError("network error"));
      else controller.close();
    },
  });
}

const first = () => new Response(body(["good"], true), { headers: { "Content-Length": "8", ETag: '"one"' } });
const rest = (text: string, range: string | null, headers: Record<string, string> = {}) =>
  new Response(body([text]), {
    status: 206,
    headers: {
      "Content-Length": `${text.length}`,
      ETag: '"one"',
      ...(range ? { "Content-Range": range } : {}),
      ...headers,
    },
  });

const texts = new TextFetcher();

/** Fetches from a server that returns these answers in order and then repeats the last one. */
async function answered(answers: ((stop: AbortSignal) => Response)[], options: FetchOptions = {}): Promise<string> {
  let asked = 0;
  vi.stubGlobal("navigator", { onLine: true });
  vi.stubGlobal("fetch", (_: URL, { signal }: { signal: AbortSignal }) =>
    Promise.resolve(answers[Math.min(asked++, answers.length - 1)]!(signal)),
  );
  return (await texts.fetch(url, { wait: 1, ...options })).text;
}

afterEach(() => vi.unstubAllGlobals());

describe("a text that is resumed", () => {
  it("continues with the following bytes", async () => {
    expect(await answered([first, () => rest(" end", "bytes 4-7/8")])).toBe("good end");
    // A server of another origin may hide Content-Range.
    expect(await answered([first, () => rest(" end", null)])).toBe("good end");
  });

  it.each([
    ["bytes 0-3/8", {}],
    ["bytes 4-7/9", {}],
    ["bytes 4-8/8", {}],
    ["nonsense", {}],
    [null, { "Content-Length": "3" }],
    ["bytes 4-7/8", { ETag: '"two"' }],
  ])("starts again if the server sends other bytes: %s, %o", async (range, headers) => {
    const whole = () => new Response("unchanged", { headers: { ETag: '"two"' } });
    expect(await answered([first, () => rest("EVIL", range, headers), whole])).toBe("unchanged");
  });

  it("ends after its time limit, even if bytes keep arriving", async () => {
    const drips = (stop: AbortSignal) =>
      new Response(
        new ReadableStream({
          async pull(controller) {
            await new Promise((resolve) => setTimeout(resolve, 5));
            if (stop.aborted) controller.error(stop.reason);
            else controller.enqueue(new Uint8Array([120]));
          },
        }),
      );
    await expect(answered([drips], { limit: 60 })).rejects.toThrow("took longer than");
  });
});

describe("a file of an export", () => {
  it("is resumed, and its bytes are counted once", async () => {
    const ranges: (string | null)[] = [];
    vi.stubGlobal("location", new URL("https://texts.example/"));
    vi.stubGlobal("fetch", (_: URL, { headers }: { headers: Headers }) => {
      ranges.push(headers.get("Range"));
      return Promise.resolve(ranges.length > 1 ? rest(" end", "bytes 4-7/8") : first());
    });
    let counted = 0;
    const source = new HttpSource(new URL("https://texts.example/"));
    const bytes = await source.bytes("a.bin", 8, (n) => (counted += n));
    expect([new TextDecoder().decode(bytes), counted, ranges]).toEqual(["good end", 8, [null, "bytes=4-"]]);
  });
});
