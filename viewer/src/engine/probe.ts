// Choosing how texels are fetched and which recording is played: by measuring once per driver, and until then by what
// devices of its kind like. Nobody waits for the measurement: it is made when the page rests, for the next visit.

import type { Recording, Tuning } from "./manifest";
import type { Program } from "../gl/program";
import type { Device, Options } from "../gl/device";
import { must, PageError } from "../gl/errors";
import { Player } from "../gl/player";

const FETCHES = ["texelFetch", "textureLod"] as const;
const ROUNDS = 4;
const MOST_ROUNDS = 10; // on a machine that is not steady
const FILL = 20; // milliseconds that repeats should add, since a wait for the device may end up to 4 too late
const MOST = 2048;
const BITS = 0x3c003c00; // of what is multiplied: not zero in any format
const VERSION = 10; // of what a remembered probe means

type Fetch = Options["fetch"];

/** Milliseconds of the probes by "kernel fetch", "kernel-contiguous fetch" and "rows fetch"; of those that leave a choice. */
export type Measured = Readonly<Record<string, number>>;

export interface Chosen {
  recording: Recording;
  fetch: Fetch;
  /** Null: the choice is a guess. */
  measured: Measured | null;
}

/** What a device may choose among, and where it remembers what it measured. */
export interface Choices {
  device: Device;
  recordings: readonly Recording[];
  storage: Options["storage"];
  tuning: Tuning;
  forced: Fetch | undefined;
}

/** How one-row products take their columns (by `tuning.panels_pay`), then the fastest kernel recorded for that and its fetch. */
export function choose(choices: Choices): Chosen {
  const { device, recordings, tuning } = choices;
  const fetches = fetchesOf(choices);
  const measured = remembered(keyOf(choices));
  if (!missing(recordings, fetches, measured, tuning.panels_pay).size) {
    return { ...pick(recordings, fetches, measured, tuning.panels_pay), measured };
  }
  return { ...guess(recordings, fetches, device.renderer), measured: null };
}

/**
 * Measures what is not remembered, and remembers it once `keep` has what the next visit then plays. Null where `going`
 * answered no meanwhile: whoever uses the device for something else disturbs the measurement, and is disturbed by it.
 */
export async function measure(
  choices: Choices,
  load: (file: string) => Promise<Program>,
  keep: (recording: Recording) => Promise<void>,
  going: () => boolean,
): Promise<Measured | null> {
  const { recordings, tuning } = choices;
  const fetches = fetchesOf(choices);
  const measured = { ...remembered(keyOf(choices)) };
  const check = () => {
    if (!going()) throw new Interrupted();
  };
  try {
    for (;;) {
      const files = missing(recordings, fetches, measured, tuning.panels_pay);
      if (!files.size) break;
      Object.assign(measured, await times(choices, files, load, check));
    }
  } catch (error) {
    if (error instanceof Interrupted) return null;
    throw error;
  }
  await keep(pick(recordings, fetches, measured, tuning.panels_pay).recording);
  if (canRemember()) localStorage.setItem(keyOf(choices), JSON.stringify(measured));
  return measured;
}

/** Whether this browser keeps what is measured; one that keeps nothing begins each visit with a guess. */
export function canRemember(): boolean {
  try {
    localStorage.setItem("glgpt kept", "");
    localStorage.removeItem("glgpt kept");
    return true;
  } catch {
    return false;
  }
}

/** The files of the probes that the choice still needs, by name: first those of one-row products, then of the kernels that suit. */
function missing(
  recordings: readonly Recording[],
  fetches: readonly Fetch[],
  measured: Measured,
  panelsPay: number,
): ReadonlyMap<string, string> {
  const lack = (files: ReadonlyMap<string, string>) =>
    files.size * fetches.length > 1 && [...files.keys()].some((name) => fetches.some((fetch) => measured[`${name} ${fetch}`] === undefined));
  const rows = new Map(recordings.map((r) => [r.rows, r.row]));
  if (rows.size > 1 && lack(rows)) return rows;
  const products = new Map(suiting(recordings, fetches, measured, panelsPay).map((r) => [label(r), r.product]));
  return lack(products) ? products : new Map();
}

class Interrupted extends Error {}

const MESA_SOFTWARE = /llvmpipe|softpipe/i;

/**
 * What a device that has measured nothing most likely likes: what measured ones chose. Mesa's software drivers take contiguous
 * columns and `textureLod`; all others strided columns and `texelFetch`. Of kernels, the first of those that take the most
 * draw buffers.
 */
export function guess(recordings: readonly Recording[], fetches: readonly Fetch[], renderer: string): Pick<Chosen, "recording" | "fetch"> {
  const mesa = MESA_SOFTWARE.test(renderer);
  const rows = mesa ? "contiguous" : "strided";
  const suited = recordings.filter((r) => r.rows === rows);
  const among = suited.length ? suited : recordings;
  const fetch = mesa ? "textureLod" : "texelFetch";
  return {
    recording: among.reduce((a, b) => (b.draw_buffers > a.draw_buffers ? b : a)),
    fetch: fetches.includes(fetch) ? fetch : fetches[0]!,
  };
}

const fetchesOf = ({ forced }: Choices): readonly Fetch[] => (forced ? [forced] : FETCHES);

const keyOf = ({ device, storage, recordings }: Choices) =>
  `glgpt probe ${VERSION} ${device.renderer} ${storage} ${recordings.map(label).join()}`;

const label = ({ kernel, rows }: Recording) => kernel + (rows === "contiguous" ? "-contiguous" : "");

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

/** Milliseconds of the product that was measured of this recording, else of the fastest one; 0: none was measured. */
export function productMs(measured: Measured, recording: Recording, fetch: Fetch): number {
  const products = Object.entries(measured).filter(([name]) => !/^(strided|contiguous) /.test(name));
  const fastest = products.length ? Math.min(...products.map(([, ms]) => ms)) : 0;
  return measured[`${label(recording)} ${fetch}`] ?? fastest;
}

function remembered(key: string): Measured {
  try {
    const kept = Object.entries((JSON.parse(localStorage.getItem(key) ?? "null") ?? {}) as object);
    return Object.fromEntries(kept.filter((entry): entry is [string, number] => typeof entry[1] === "number"));
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

/** One probe with one fetch, and how long its runs took: those of one play, and those of `repeats` more. */
interface Probe {
  name: string;
  player: Player;
  output: string;
  /** Of the output, one that is computed: the first ones may be empty (PAD in `matvec.frag`). */
  row: number;
  repeats: number;
  once: number[];
  more: number[];
}

/** Milliseconds of each of these probes with each fetch; `check` is called between runs, and may throw. */
async function times(
  choices: Choices,
  files: ReadonlyMap<string, string>,
  load: (file: string) => Promise<Program>,
  check: () => void,
): Promise<Measured> {
  const { device, tuning } = choices;
  const { generation } = device;
  const probes: Probe[] = [];
  try {
    await open(choices, files, load, probes, check);
    for (const probe of probes) {
      await calibrate(probe, device);
      check();
    }
    // Other work only ever adds time: the least of each length, and only then their difference, which leaves out what
    // a read costs. The least difference would be that of a short run which was held up.
    for (let round = 0, steady = false; round < ROUNDS || (round < MOST_ROUNDS && !steady); round++) {
      for (const probe of probes) {
        probe.once.push(await run(probe, 1));
        probe.more.push(await run(probe, 1 + probe.repeats));
        check();
      }
      steady = probes.every(({ more }) => {
        const [least, second] = more.sort((a, b) => a - b);
        return second! < tuning.steady * least!;
      });
    }
    return Object.fromEntries(
      probes.map(({ name, once, more, repeats }) => [name, Math.max(0.0001, (Math.min(...more) - Math.min(...once)) / repeats)]),
    );
  } finally {
    if (!device.lost && generation === device.generation) for (const { player } of probes.reverse()) player.close();
  }
}

/** Adds the probes to a list, so that whoever has it closes them; those of equal shapes share their inputs. */
async function open(
  choices: Choices,
  files: ReadonlyMap<string, string>,
  load: (file: string) => Promise<Program>,
  probes: Probe[],
  check: () => void,
): Promise<void> {
  const { device, storage } = choices;
  const shared = new Map<string, ReadonlyMap<string, WebGLTexture>>();
  for (const [name, file] of files) {
    const program = await load(file);
    const form = JSON.stringify(Object.values(program.textures).filter((t) => t.role === "state"));
    const output = Object.values(must(program.entries["probe"], "entry probe").outputs)[0]!.texture;
    for (const fetch of fetchesOf(choices)) {
      check();
      const player = new Player(device, program, { fetch, storage }, shared.get(form));
      const row = must(program.textures[output], `texture ${output}`).height - 1;
      probes.push({ name: `${name} ${fetch}`, player, output, row, repeats: 0, once: [], more: [] });
      if (!shared.has(form)) {
        shared.set(form, player.shared(["state"]));
        fill(player);
      }
      await player.prepare("probe");
    }
  }
  if (device.full) throw new PageError("This device has no memory to measure its kernels.");
}

/** Finds how many repeats add so much time to a run that waiting for it hides none of that. */
async function calibrate(probe: Probe, device: Device): Promise<void> {
  const { generation } = device;
  const { name, player, output, row } = probe;
  player.play("probe"); // warms up
  const found = await player.read(output, row, 1);
  device.still(generation); // else these may be the zeros of a lost context
  if (found.every((value) => value === 0)) throw new PageError(`The probe of ${name} computed zeros.`);
  const once = Math.min(await run(probe, 1), await run(probe, 1));
  let n = 4;
  const fills = async () => (await run(probe, 1 + n)) - once >= FILL;
  while (n < MOST && !((await fills()) && (await fills()))) n *= 2; // twice in a row, since other work may hold a run up
  probe.repeats = n;
}

/** Milliseconds of so many plays, from one read to the next. */
async function run({ player, output, row }: Probe, plays: number): Promise<number> {
  await player.read(output, row, 1);
  const start = performance.now();
  for (let i = 0; i < plays; i++) player.play("probe");
  await player.read(output, row, 1);
  return performance.now() - start;
}
