// Chooses the fetch (the GLSL function that reads texels) and the recording (a variant of the model's program). Until a
// driver has been measured, the choice is the default for this kind of GPU. The measurement runs once per driver, when
// the page is idle, and the next visit uses its results.

import type { Recording, Tuning } from "./manifest";
import type { Program } from "../gl/program";
import type { Device, Options } from "../gl/device";
import { must, PageError } from "../gl/errors";
import { Player } from "../gl/player";
import { browserStorage } from "../io/storage";

const FETCHES = ["texelFetch", "textureLod"] as const;
const ROUNDS = 4;
const MAX_ROUNDS = 10; // maximum rounds, for a machine whose times vary
const FILL = 20; // minimum ms that repeats add to a run, because a wait for the device may end up to 4 ms late
const MAX_REPEATS = 2048; // maximum repeats
const BITS = 0x3c003c00; // the bits of all inputs of a probe; no format reads them as zeros
const VERSION = 10; // version of the stored measurements

type Fetch = Options["fetch"];

/**
 * Milliseconds of the probes: programs with one matrix product each. A key is the label of a kernel ("4x8", or
 * "4x8-contiguous" for recordings with contiguous columns) or the layout of one-row products ("strided" or
 * "contiguous"), followed by a fetch, such as "4x8 texelFetch". A choice with only one option is not measured.
 */
export type Measured = Readonly<Record<string, number>>;

export interface Chosen {
  recording: Recording;
  fetch: Fetch;
  /** The measurements; null: the choice is a guess. */
  measured: Measured | null;
}

/** The options that a device can choose from. */
export interface Choices {
  device: Device;
  recordings: readonly Recording[];
  storage: Options["storage"];
  tuning: Tuning;
  forced: Fetch | undefined;
}

/**
 * Returns the recordings that a device with this many draw buffers can play. Of the recordings with the same layout
 * (`rows`), returns only those that decode a token fastest. These are the recordings with `pairs` (pairs of pixels that
 * add up their sums: see `Device.pairs`); else those with blending, which take fewer passes; else those without
 * blending.
 */
export function playable(
  recordings: readonly Recording[],
  buffers: number,
  { blends, pairs }: Pick<Device, "blends" | "pairs">,
): Recording[] {
  const rank = (r: Pick<Recording, "blends" | "pairs">) => (!r.blends ? 0 : r.pairs ? 2 : 1);
  const supported = rank({ blends, pairs });
  const fitting = recordings.filter((r) => r.draw_buffers <= buffers && rank(r) <= supported);
  return fitting.filter((r) => fitting.every((other) => other.rows !== r.rows || rank(other) <= rank(r)));
}

/**
 * Chooses the layout of one-row products (by `tuning.panels_pay`), then the fastest kernel and fetch for this layout.
 * Without measurements, returns the default (`guess`).
 */
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
 * Runs the probes whose results are not stored yet. Then `keep` caches the files of the fastest recording for the next
 * visit, and the results are stored. Stops and resolves to null if `going` returns false. `going` must return false
 * while the device has other work, because the other work and the measurement would slow each other down.
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
  browserStorage.write(keyOf(choices), measured);
  return measured;
}

/** True if this browser stores measurements. Otherwise each visit begins with a guess. */
export const canRemember = () => browserStorage.works;

/**
 * Returns the files of the probes to measure next, by the probes' names: first those of one-row products; when these
 * are measured, those of the kernels for the chosen layout. Returns an empty map if no probe is needed.
 */
function missing(
  recordings: readonly Recording[],
  fetches: readonly Fetch[],
  measured: Measured,
  panelsPay: number,
): ReadonlyMap<string, string> {
  const lack = (files: ReadonlyMap<string, string>) =>
    files.size * fetches.length > 1 &&
    [...files.keys()].some((name) => fetches.some((fetch) => measured[`${name} ${fetch}`] === undefined));
  const rows = new Map(recordings.map((r) => [r.rows, r.row]));
  if (rows.size > 1 && lack(rows)) return rows;
  const products = new Map(suiting(recordings, fetches, measured, panelsPay).map((r) => [label(r), r.product]));
  return lack(products) ? products : new Map();
}

class Interrupted extends Error {}

const MEASURED_SOFTWARE = /llvmpipe|softpipe|swiftshader/i; // other software drivers were never measured

/**
 * Returns the default for a device without measurements, based on measured devices. Mesa's software drivers and
 * SwiftShader use contiguous columns and `textureLod`; all other drivers use strided columns and `texelFetch`. Of the
 * recordings with these columns, returns the one with the most draw buffers (the first if several have as many).
 */
export function guess(
  recordings: readonly Recording[],
  fetches: readonly Fetch[],
  renderer: string,
): Pick<Chosen, "recording" | "fetch"> {
  const software = MEASURED_SOFTWARE.test(renderer);
  const rows = software ? "contiguous" : "strided";
  const suited = recordings.filter((r) => r.rows === rows);
  const among = suited.length ? suited : recordings;
  const fetch = software ? "textureLod" : "texelFetch";
  return {
    recording: among.reduce((a, b) => (b.draw_buffers > a.draw_buffers ? b : a)),
    fetch: fetches.includes(fetch) ? fetch : fetches[0]!,
  };
}

const fetchesOf = ({ forced }: Choices): readonly Fetch[] => (forced ? [forced] : FETCHES);

const keyOf = ({ device, storage, recordings }: Choices) =>
  `glgpt probe ${VERSION} ${device.renderer} ${storage} ${recordings.map(label).join()}`;

const label = ({ kernel, rows }: Recording) => kernel + (rows === "contiguous" ? "-contiguous" : "");

/**
 * Returns the recordings with the layout of one-row products to use: contiguous columns if they take less than
 * `panelsPay` times the milliseconds of strided columns, else strided columns.
 */
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

/**
 * Returns the measured milliseconds of this recording's product. If the product was not measured, returns the
 * milliseconds of the fastest product, or 0 if no product was measured.
 */
export function productMs(measured: Measured, recording: Recording, fetch: Fetch): number {
  const products = Object.entries(measured).filter(([name]) => !/^(strided|contiguous) /.test(name));
  const fastest = products.length ? Math.min(...products.map(([, ms]) => ms)) : 0;
  return measured[`${label(recording)} ${fetch}`] ?? fastest;
}

function remembered(key: string): Measured {
  const kept = Object.entries(browserStorage.read(key) ?? {});
  return Object.fromEntries(kept.filter((entry): entry is [string, number] => typeof entry[1] === "number"));
}

/**
 * Fills the inputs of a probe's product with numbers other than 0. Reading a result of zeros would take longer, because
 * `Reader` of gl/readback.ts would wait to find out if the context was lost.
 */
function fill(player: Player): void {
  for (const { name, role, width, height, layers } of Object.values(player.program.textures)) {
    if (role !== "state") continue;
    const layer = new Uint8Array(new Uint32Array(4 * width * height).fill(BITS).buffer);
    for (let i = 0; i < layers; i++) player.write(name, i, 0, height, layer);
  }
}

/**
 * One probe with one fetch. `once`: milliseconds of each run with one play. `more`: milliseconds of each run with 1 +
 * `repeats` plays.
 */
interface Probe {
  name: string;
  player: Player;
  output: string;
  /** The row of the output that is read. */
  row: number;
  repeats: number;
  once: number[];
  more: number[];
}

/** Returns the milliseconds of each probe with each fetch. `check` is called between runs and may throw. */
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
    // Other work can only add time, so take the minimum for each number of plays, then the difference of the two
    // minima. The difference excludes the cost of a read. The minimum of the differences would be too small if a short
    // run was delayed.
    for (let round = 0, steady = false; round < ROUNDS || (round < MAX_ROUNDS && !steady); round++) {
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
      probes.map(({ name, once, more, repeats }) => [
        name,
        Math.max(0.0001, (Math.min(...more) - Math.min(...once)) / repeats),
      ]),
    );
  } finally {
    if (device.isCurrent(generation)) for (const { player } of probes.reverse()) player.close();
  }
}

/** Opens the probes and appends them to `probes`. The caller closes them. Probes of equal shapes share inputs. */
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
  if (device.full) throw new PageError("This device does not have enough memory to measure its kernels.");
}

/** Sets the number of repeats: enough to add `FILL` ms to a run, or `MAX_REPEATS` if that many are not enough. */
async function calibrate(probe: Probe, device: Device): Promise<void> {
  const { generation } = device;
  const { name, player, output, row } = probe;
  player.play("probe"); // warms up
  const found = await player.read(output, row, 1);
  device.still(generation); // a lost context returns zeros
  if (found.every((value) => value === 0)) throw new PageError(`The probe of ${name} computed zeros.`);
  const once = Math.min(await run(probe, 1), await run(probe, 1));
  let n = 4;
  const fills = async () => (await run(probe, 1 + n)) - once >= FILL;
  while (n < MAX_REPEATS && !((await fills()) && (await fills()))) n *= 2; // two runs, since one may be delayed
  probe.repeats = n;
}

/** Returns the milliseconds of this many plays, from one read to the next. */
async function run({ player, output, row }: Probe, plays: number): Promise<number> {
  await player.read(output, row, 1);
  const start = performance.now();
  for (let i = 0; i < plays; i++) player.play("probe");
  await player.read(output, row, 1);
  return performance.now() - start;
}
