// Tests which passes of a prompt's chunks are played.

import { expect, test } from "vitest";
import { KvCache } from "../src/runtime/engine/kv-cache";
import type { Model } from "../src/runtime/engine/model";
import type { Program } from "../src/runtime/gl/program";

const ROLES = { x: "scratch", keys: "state", queries: "state", logits: "state", token: "state" };
// Names each pass of an entry by the texture that it writes. The first four passes compute rows of the caches.
const PASSES = ["x", "queries", "x", "keys", "x", "logits", "token"];

/** Returns a cache with chunks of 4 tokens and of one token, and a list of [played entry, end of the played passes]. */
function cache(passes: readonly string[]): { cache: KvCache; played: [string, number][] } {
  const played: [string, number][] = [];
  const entry = { passes: passes.map((name) => ({ outputs: [[name, 0]] })) };
  const textures = Object.fromEntries(Object.entries(ROLES).map(([name, role]) => [name, { name, role }]));
  const generate = { textures, entries: { prefill_4: entry, decode: entry } } as unknown as Program;
  const player = {
    play: (name: string, first: number, end: number) => played.push([name, first || end]),
    set: () => {},
    spec: () => ({ width: 1 }),
    write: () => {},
  };
  const manifest = { config: { n_positions: 64 }, tuning: { one_token: 3, per_chunk: 1 } };
  const made = new KvCache({ player, manifest, programs: { generate } } as unknown as Model);
  made.known = [4, 1];
  return { cache: made, played };
}

test("every chunk of a prompt but the last ends after the passes that write keys, values and queries", () => {
  const { cache: kv, played } = cache(PASSES);
  kv.prefill(Array.from({ length: 9 }, (_, i) => i));
  expect(played).toEqual([
    ["decode", 4],
    ["prefill_4", 4],
    ["prefill_4", Infinity],
  ]);
  expect(kv.ids).toHaveLength(9);
});

test("chunks of one token end after these passes too, even if the entry's last pass is one of them", () => {
  const { cache: kv, played } = cache([...PASSES, "keys"]);
  kv.known = [1];
  kv.prefill([1, 2, 3]);
  expect(played).toEqual([
    ["decode", 8],
    ["decode", 8],
    ["decode", Infinity],
  ]);
});

test("all passes of a prompt are played while textures are inspected", () => {
  const { cache: kv, played } = cache(PASSES);
  kv.watcher = { wants: () => false, stops: [], look: () => {}, done: () => {}, rest: () => {} };
  kv.prefill([1, 2, 3, 4, 5]);
  expect(played.map(([, end]) => end)).toEqual([Infinity, Infinity]);
});
