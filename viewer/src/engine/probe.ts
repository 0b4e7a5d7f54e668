// Choosing how texels are fetched and which recording is played, by measuring once per driver.

import type { Recording, Tuning } from "./manifest";
import type { Program } from "../gl/program";
import type { Device, Options } from "../gl/device";
import { PageError } from "../gl/errors";
import { Player } from "../gl/player";

const FETCHES = ["texelFetch", "textureLod"] as const;
const ROUNDS = 4;
const MOST_ROUNDS = 10; // on a machine that is not steady
const FILL = 20; // milliseconds that repeats should add, since a wait for the device may end up to 4 too late
const MOST = 2048;
const BITS = 0x3c003c00; // of what is multiplied: not zero in any format
const VERSION = 9; // of what a remembered probe means

type Fetch = Options["fetch"];

export interface Chosen {
  recording: Recording;
  fetch: Fetch;
  /** Milliseconds of the probes by "kernel fetch", "kernel-contiguous fetch" and "rows fetch"; of those that leave a choice. */
  measured: Record<string, number>;
}

/** How one-row products take their columns (by `tuning.panels_pay`), then the fastest kernel recorded for that and its fetch. */
export async function choose(
  device: Device,
  recordings: readonly Recording[],
  load: (file: string) => Promise<Program>,
  storage: Options["storage"],
  tuning: Tuning,
  forced?: Fetch,
): Promise<Chosen> {
  const fetches = forced ? [forced] : FETCHES;
  const key = `glgpt probe ${VERSION} ${device.renderer} ${storage} ${recordings.map(label).join()}`;
  const measured = remembered(key);
  const complete = async (files: ReadonlyMap<string, string>): Promise<void> => {
    const names = [...files.keys()].flatMap((name) => fetches.map((fetch) => `${name} ${fetch}`));
    if (names.length === 1 || names.every((name) => typeof measured[name] === "number")) return;
    Object.assign(measured, await measure(device, files, load, storage, fetches, tuning.steady));
  };
  const rows = new Map(recordings.map((r) => [r.rows, r.row]));
  if (rows.size > 1) await complete(rows);
  await complete(new Map(suiting(recordings, fetches, measured, tuning.panels_pay).map((r) => [label(r), r.product])));
  try {
    localStorage.setItem(key, JSON.stringify(measured));
  } catch {
    // a browser that keeps nothing only measures again
  }
  return { ...pick(recordings, fetches, measured, tuning.panels_pay), measured };
}

const label = ({ kernel, rows }: Recording) => kernel + (rows === "contiguous" ? "-contiguous" : "");

type Measured = Readonly<Record<string, number>>;

/** The recordings whose one-row products are faster. */
function suiting(
  recordings: readonly Recording[],
  fetches: readonly Fetch[],
  measured: Measured,
  panelsPay: number,
): readonly Recording[] {
  const row = (columns: string) => Math.min(...fetches.map((fetch) => measured[`${columns} ${fetch}`] ?? 0));
  const contiguous = recordings.filter((r) => r.rows === "contiguous");
  const strided = recordings.filter((r) => r.rows === "strided");
  const pays = contiguous.length && row("contiguous") < panelsPay * row("strided");
  return !strided.length || pays ? contiguous : strided;
}

export function pick(
  recordings: readonly Recording[],
  fetches: readonly Fetch[],
  measured: Measured,
  panelsPay: number,
): Pick<Chosen, "recording" | "fetch"> {
  const fitting = suiting(recordings, fetches, measured, panelsPay);
  const all = fitting.flatMap((recording) => fetches.map((fetch) => ({ recording, fetch })));
  const product = (c: (typeof all)[number]) => measured[`${label(c.recording)} ${c.fetch}`] ?? 0;
  return all.reduce((a, b) => (product(b) < product(a) ? b : a));
}

function remembered(key: string): Record<string, number> {
  try {
    return { ...(JSON.parse(localStorage.getItem(key) ?? "null") as Record<string, number> | null) };
  } catch {
    return {};
  }
}

/** Fills what a probe multiplies: reading zeros would wait, since a lost context gives these too. */
function fill(player: Player): void {
  for (const { name, role, width, height, layers } of Object.values(player.program.textures)) {
    if (role !== "state") continue;
    const layer = new Uint8Array(new Uint32Array(4 * width * height).fill(BITS).buffer);
    for (let i = 0; i < layers; i++) player.write(name, i, 0, height, layer);
  }
}

async function measure(
  device: Device,
  files: ReadonlyMap<string, string>,
  load: (file: string) => Promise<Program>,
  storage: Options["storage"],
  fetches: readonly Fetch[],
  steadyRatio: number,
): Promise<Record<string, number>> {
  const times: Record<string, number> = {};
  const { generation } = device;
  const players: [string, Player, string][] = [];
  const shared = new Map<string, ReadonlyMap<string, WebGLTexture>>(); // inputs, by the shapes that they have
  try {
    for (const [name, file] of files) {
      const program = await load(file);
      const form = JSON.stringify(Object.values(program.textures).filter((t) => t.role === "state"));
      for (const fetch of fetches) {
        const player = new Player(device, program, { fetch, storage }, shared.get(form));
        if (!shared.has(form)) {
          shared.set(form, player.shared(["state"]));
          fill(player);
        }
        await player.prepare("probe");
        players.push([`${name} ${fetch}`, player, Object.values(program.entries["probe"]!.outputs)[0]!.texture]);
      }
    }
    const run = async (player: Player, output: string, repeats: number): Promise<number> => {
      await player.read(output, 0, 1);
      const start = performance.now();
      for (let i = 0; i < repeats; i++) player.play("probe");
      await player.read(output, 0, 1);
      return performance.now() - start;
    };
    const repeats = new Map<string, number>();
    for (const [name, player, output] of players) {
      player.play("probe"); // warms up
      const found = await player.read(output, 0, 1);
      device.still(generation); // else these may be the zeros of a lost context
      if (found.every((value) => value === 0)) throw new PageError(`The probe of ${name} computed zeros.`);
      let n = 4;
      const once = Math.min(await run(player, output, 1), await run(player, output, 1));
      const fills = async () => (await run(player, output, 1 + n)) - once >= FILL;
      while (n < MOST && !((await fills()) && (await fills()))) n *= 2; // weights may come meanwhile, which holds a run up
      repeats.set(name, n);
    }
    // Other work only ever adds time: the least of each length, and only then their difference, which leaves out what
    // a read costs. The least difference would be that of a short run which was held up.
    const runs = players.map(() => ({ once: [] as number[], more: [] as number[] }));
    for (let round = 0, steady = false; round < ROUNDS || (round < MOST_ROUNDS && !steady); round++) {
      for (const [i, [name, player, output]] of players.entries()) {
        runs[i]!.once.push(await run(player, output, 1));
        runs[i]!.more.push(await run(player, output, 1 + repeats.get(name)!));
      }
      steady = runs.every(({ more }) => {
        const [least, second] = more.sort((a, b) => a - b);
        return second! < steadyRatio * least!;
      });
    }
    for (const [i, [name]] of players.entries()) {
      const { once, more } = runs[i]!;
      times[name] = Math.max(0.0001, (Math.min(...more) - Math.min(...once)) / repeats.get(name)!);
    }
  } finally {
    for (const [, player] of players.reverse()) player.close();
  }
  return times;
}
