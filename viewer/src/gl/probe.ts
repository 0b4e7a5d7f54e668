// Choosing how texels are fetched by measuring once per driver, as the desktop does.

import type { Program } from "../program";
import type { Device, Options } from "./device";
import { Player } from "./player";

const FETCHES = ["texelFetch", "textureLod"] as const;
const TURNS = 4;
const REPEATS = 3;

export interface Chosen {
  fetch: Options["fetch"];
  /** Milliseconds of the probe's product by fetch; empty where the choice was forced. */
  measured: Record<string, number>;
}

export async function chooseFetch(
  device: Device,
  program: Program,
  storage: Options["storage"],
  forced?: Options["fetch"],
): Promise<Chosen> {
  if (forced) return { fetch: forced, measured: {} };
  const key = `glgpt probe 1 ${device.renderer} ${storage} ${device.limits.drawBuffers}`;
  const measured = remembered(key) ?? (await measure(device, program, storage));
  try {
    localStorage.setItem(key, JSON.stringify(measured));
  } catch {
    // a browser that keeps nothing only measures again
  }
  return { fetch: measured["textureLod"]! < measured["texelFetch"]! ? "textureLod" : "texelFetch", measured };
}

function remembered(key: string): Record<string, number> | null {
  try {
    const found = JSON.parse(localStorage.getItem(key) ?? "null") as Record<string, number> | null;
    return found && FETCHES.every((name) => typeof found[name] === "number") ? found : null;
  } catch {
    return null;
  }
}

async function measure(device: Device, program: Program, storage: Options["storage"]): Promise<Record<string, number>> {
  const times: Record<string, number> = {};
  const players = FETCHES.map((fetch) => [fetch, new Player(device, program, { fetch, storage })] as const);
  const output = Object.values(program.entries["probe"]!.outputs)[0]!.texture;
  try {
    for (const [, player] of players) await player.prepare("probe");
    const run = async (player: Player, repeats: number): Promise<number> => {
      await player.read(output, 0, 1);
      const start = performance.now();
      for (let i = 0; i < repeats; i++) player.play("probe");
      await player.read(output, 0, 1);
      return performance.now() - start;
    };
    for (let turn = 0; turn < TURNS; turn++) {
      for (const [fetch, player] of players) {
        const once = await run(player, 1); // the difference leaves out what a read costs
        const ms = ((await run(player, 1 + REPEATS)) - once) / REPEATS;
        if (turn) times[fetch] = Math.min(times[fetch] ?? Infinity, Math.max(ms, 0.001));
      }
    }
  } finally {
    for (const [, player] of players) player.close();
  }
  return times;
}
