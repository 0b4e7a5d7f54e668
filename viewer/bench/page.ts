// What the bench's tasks share: files of the folder that run.py serves, its ear, and how things are timed.

import { Glgpt } from "../src/api";
import type { Source } from "../src/engine/source";
import type { Player } from "../src/gl/player";

const TARGET = 250; // ms that a measured series of plays should take

async function fetched(name: string): Promise<Response> {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response;
}

export const json = async (name: string): Promise<unknown> => (await fetched(name)).json();
export const bytes = async (name: string): Promise<ArrayBuffer> => (await fetched(name)).arrayBuffer();

export async function post(kind: "progress" | "result" | "failure", what: unknown): Promise<void> {
  document.querySelector("pre")!.textContent = JSON.stringify(what, null, 1);
  await fetch(kind, { method: "POST", body: JSON.stringify(what) });
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}

export interface Contender {
  engine: string;
  time: (count: number) => Promise<number>;
}

/** Milliseconds of one play each, by turns: the slope over a series, so that what a readback costs is left out. */
export async function slopes(contenders: Contender[], rounds: number, most: number): Promise<number[]> {
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

const SURE = 0.85; // of the best sample that the second best must reach

/**
 * The peak among samples of a rate: the best, since other work on the machine and a clock that is still low only ever
 * take from it. `sure`: whether a second sample comes close, so that the best is no accident of the timer.
 */
export function peakOf(samples: readonly number[]): { rate: number; sure: boolean } {
  const [rate = 0, second = 0] = [...samples].sort((a, b) => b - a);
  return { rate, sure: second >= SURE * rate && rate > 0 };
}

/** Milliseconds of so many plays of an entry, whose end is known by reading a texture of it. */
export function timer(player: Player, entry: string, texture: string): Contender["time"] {
  return async (count) => {
    const start = performance.now();
    for (let i = 0; i < count; i++) {
      player.play(entry);
      player.device.gl.flush(); // else a driver may leave out what the next play overwrites
    }
    await player.read(texture, 0, 1);
    return performance.now() - start;
  };
}

/** The page's object as at a second visit: all shaders compiled, and the recording that this device was measured to run fastest. */
export async function warmedUp(source: Source): Promise<Glgpt> {
  const first = new Glgpt(source);
  await first.warmUp();
  if (!first.info().guessed) return first;
  first.model.close();
  const second = new Glgpt(source);
  await second.warmUp();
  return second;
}
