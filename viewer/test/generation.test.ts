// Tests the text that the page's views show while a generation ends.

import { beforeEach, expect, it, vi } from "vitest";
import type { Glgpt } from "../src/api";
import { continuations } from "../src/app/stores/continuations";
import { generation } from "../src/app/stores/generation";
import { models } from "../src/app/stores/model";
import { settings } from "../src/app/stores/settings";
import { MODEL, writing, type Options } from "./fake-model";

const tok = (id: number) => ({ id, text: ` ${id}`, label: `${id}`, given: true });
const write = writing(7, " 7");
let frames = new Map<number, () => void>(); // the requested frames, by their number

/** Draws all requested frames, as the browser would. */
function drawFrame(): void {
  const drawn = [...frames.values()];
  frames.clear();
  for (const draw of drawn) draw();
}

beforeEach(() => {
  frames = new Map();
  let count = 0;
  vi.stubGlobal("requestAnimationFrame", (draw: () => void) => {
    frames.set(++count, draw);
    return count;
  });
  vi.stubGlobal("cancelAnimationFrame", (frame: number) => frames.delete(frame));
});

function open(calls: Partial<Record<keyof Glgpt, unknown>>): void {
  models.engine = { model: MODEL, generate: write, ...calls } as unknown as Glgpt;
}

it("is the text that was shown last, although a frame of the stopped generation was due", async () => {
  open({});
  generation.tokens.value = [tok(1)];
  const written = generation.go(2);
  await vi.waitFor(() => expect(frames.size).toBe(1));
  await generation.show([tok(3), tok(4)]);
  await written;
  drawFrame();
  expect(generation.ids.value).toEqual([3, 4]);
});

it("has all continuations, although a frame with fewer tokens was due", async () => {
  const whole = [{ seed: 1, ids: [1, 2], text: " 1 2" }];
  open({
    continuations: ({ onTexts }: { onTexts: (texts: object[]) => void }) => {
      onTexts([{ seed: 1, ids: [1], text: " 1" }]);
      return Promise.resolve(whole);
    },
  });
  await continuations.write();
  expect(continuations.texts.value).toEqual(whole);
  drawFrame();
  expect(continuations.texts.value).toEqual(whole);
});

it("has the tokens of continuations that failed, although no frame had shown them", async () => {
  const begun = [{ seed: 1, ids: [1], text: " 1" }];
  open({
    continuations: ({ onTexts }: { onTexts: (texts: object[]) => void }) => {
      onTexts(begun);
      return Promise.reject(new Error("The device failed."));
    },
  });
  await continuations.write();
  expect([continuations.texts.value, continuations.note.value]).toEqual([begun, "The device failed."]);
  expect(frames.size).toBe(0);
});

it("begins with the prompt, although another text was being written", async () => {
  open({});
  generation.tokens.value = [tok(1), tok(2)];
  void generation.go(2);
  await vi.waitFor(() => expect(frames.size).toBe(1));
  settings.prompt.value = "3 4";
  const written = generation.write();
  await vi.waitFor(() => expect(frames.size).toBe(1));
  await Promise.all([generation.stop(), written]);
  expect(generation.ids.value).toEqual([3, 4, 7]);
});

it("is the text that was requested last, although an earlier generation stops late", async () => {
  vi.useFakeTimers();
  const late = new Promise((resolve) => setTimeout(resolve, 8)); // ends between the timers of the next requests
  open({ generate: (options: Options) => write(options).then((found) => late.then(() => found)) });
  generation.tokens.value = [tok(1)];
  void generation.go(2);
  await vi.advanceTimersByTimeAsync(1);
  void generation.show([tok(2)]);
  await vi.advanceTimersByTimeAsync(3);
  void generation.show([tok(3)]);
  await vi.advanceTimersByTimeAsync(50);
  vi.useRealTimers();
  expect(generation.ids.value).toEqual([3]);
});
