// Measures the time of each pass: by timer queries if they are reliable, else by the time that further plays of the
// pass add.

import type { Model } from "./model";
import { must } from "../gl/errors";
import { pause } from "../gl/wait";
import type { Entry } from "../gl/program";

const REPEATS = 12;
const ROUNDS = 3;
const LATEST = 2000; // maximum ms to wait for a query

interface TimerQueries {
  TIME_ELAPSED_EXT: number;
  GPU_DISJOINT_EXT: number;
}

export interface Timing {
  how: "timer queries" | "the slope over repeats";
  /** Microseconds of each pass. */
  us: number[];
}

/** Plays an entry for the last token of `ids` and times its passes. */
export async function timePasses(
  model: Model,
  ids: readonly number[],
  entry: Entry,
  onProgress: (done: number, total: number) => void,
): Promise<Timing> {
  const { gl, software } = model.device;
  await model.player.prepare(entry.name);
  await model.cache.rewind(ids, entry.name);
  // Software drivers report the time of recording commands, not of drawing.
  const extension = software ? null : (gl.getExtension("EXT_disjoint_timer_query_webgl2") as TimerQueries | null);
  const queried = extension && (await byQueries(model, entry, extension));
  return queried ?? { how: "the slope over repeats", us: await bySlope(model, entry, onProgress) };
}

async function byQueries(model: Model, entry: Entry, ext: TimerQueries): Promise<Timing | null> {
  const { gl } = model.device;
  const best = new Array<number>(entry.passes.length).fill(Infinity);
  for (let round = 0; round < ROUNDS; round++) {
    const queries = entry.passes.map((_, i) => {
      const query = gl.createQuery();
      gl.beginQuery(ext.TIME_ELAPSED_EXT, query);
      model.player.play(entry.name, i, i + 1);
      gl.endQuery(ext.TIME_ELAPSED_EXT);
      return query;
    });
    gl.flush();
    const since = performance.now();
    const last = queries.at(-1)!;
    while (!gl.getQueryParameter(last, gl.QUERY_RESULT_AVAILABLE)) {
      if (performance.now() - since > LATEST || model.device.lost) return null;
      await model.device.sleep(2);
    }
    const disjoint = gl.getParameter(ext.GPU_DISJOINT_EXT) as boolean;
    queries.forEach((query, i) => {
      const ns = gl.getQueryParameter(query, gl.QUERY_RESULT) as number;
      if (!disjoint) best[i] = Math.min(best[i]!, ns / 1000);
      gl.deleteQuery(query);
    });
  }
  return best.every(Number.isFinite) && best.some((us) => us > 0) ? { how: "timer queries", us: best } : null;
}

async function bySlope(
  model: Model,
  entry: Entry,
  onProgress: (done: number, total: number) => void,
): Promise<number[]> {
  const { player, device } = model;
  const us: number[] = [];
  for (const [i, pass] of entry.passes.entries()) {
    const [texture] = pass.outputs[0]!;
    const { role, height } = must(player.program.textures[texture], `texture ${texture}`);
    // A read of zeros waits longer (see Reader in gl/readback.ts), so read a row with other values. Partial sums may
    // begin with rows of zeros, and caches may end with rows of zeros.
    const row = role === "scratch" ? height - 1 : 0;
    player.play(entry.name, i, i + 1);
    const run = async (times: number): Promise<number> => {
      await player.read(texture, row, 1);
      const start = performance.now();
      for (let k = 0; k < times; k++) {
        player.play(entry.name, i, i + 1);
        device.gl.flush(); // without a flush, a driver may drop a draw that a later draw overwrites
      }
      await player.read(texture, row, 1);
      return performance.now() - start;
    };
    let best = Infinity;
    for (let round = 0; round < ROUNDS; round++) {
      const once = await run(1);
      best = Math.min(best, (await run(1 + REPEATS)) - once);
    }
    us.push(Math.max(0, (1000 * best) / REPEATS));
    onProgress(i + 1, entry.passes.length);
    await pause();
  }
  return us;
}
