// Shared by the benchmark's tasks: fetches files that run.py serves, posts results to it, and measures times.

import { Glgpt } from "../../viewer/src/api";
import * as rareCalls from "../../viewer/src/rare-calls";
import type { Source } from "../../viewer/src/runtime/engine/source";
import type { Player } from "../../viewer/src/runtime/gl/player";

const TARGET = 250; // target ms of a measured series of plays (a play runs an entry's passes once)

async function fetched(name: string): Promise<Response> {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
}

export const json = async (name: string): Promise<unknown> =>
  (await fetched(name)).json();
export const bytes = async (name: string): Promise<ArrayBuffer> =>
  (await fetched(name)).arrayBuffer();

export async function post(
  kind: "progress" | "result" | "failure",
  what: unknown,
): Promise<void> {
  document.querySelector("pre")!.textContent = JSON.stringify(what, null, 1);
  await fetch(kind, { method: "POST", body: JSON.stringify(what) });
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2
    ? sorted[half]!
    : (sorted[half - 1]! + sorted[half]!) / 2;
}

export interface Contender {
  engine: string;
  time: (count: number) => Promise<number>;
}

/**
 * Returns each contender's milliseconds per play, the median of the rounds. A round measures each contender once: the
 * time of one play, and the time of n + 1 plays (n <= `most`). The difference of these two times, divided by n, does
 * not contain the time of the readback.
 */
export async function slopes(
  contenders: Contender[],
  rounds: number,
  most: number,
): Promise<number[]> {
  const counts: number[] = [];
  for (const { time } of contenders) {
    await time(2); // compiles
    const rough = Math.max(0.05, (await time(5)) / 5);
    counts.push(Math.min(most, Math.max(2, Math.ceil(TARGET / rough))));
  }
  const found: number[][] = contenders.map(() => []);
  for (let round = 0; round < rounds; round++) {
    for (const [i, { time }] of contenders.entries()) {
      const once = await time(1);
      found[i]!.push(((await time(1 + counts[i]!)) - once) / counts[i]!);
    }
  }
  return found.map(median);
}

const SURE = 0.85; // `peakOf` is sure if the second highest sample is at least this share of the highest

/**
 * Returns the highest sample as the peak rate, since other work on the device and a low clock rate can only reduce a
 * sample. `sure` is true if another sample is close to the highest, so that the highest is not an error of the timer.
 */
export function peakOf(samples: readonly number[]): {
  rate: number;
  sure: boolean;
} {
  const [rate = 0, second = 0] = [...samples].sort((a, b) => b - a);
  return { rate, sure: second >= SURE * rate && rate > 0 };
}

/** Returns a function that plays an entry `count` times, waits by reading a result, and returns the milliseconds. */
export function timer(
  player: Player,
  entry: string,
  texture: string,
): Contender["time"] {
  return async (count) => {
    const start = performance.now();
    for (let i = 0; i < count; i++) {
      player.play(entry);
      player.device.gl.flush(); // without a flush, a driver may skip draws whose output the next play overwrites
    }
    await player.read(texture, 0, 1);
    return performance.now() - start;
  };
}

/**
 * Returns the page's `Glgpt` object as on a second visit: all shaders are compiled, and the kernel is the one that the
 * probe measured to be the fastest on this device.
 */
export async function warmedUp(source: Source): Promise<Glgpt> {
  const first = new Glgpt(rareCalls, source);
  await first.warmUp();
  if (!first.info().guessed) return first;
  first.model.close();
  const second = new Glgpt(rareCalls, source);
  await second.warmUp();
  return second;
}
