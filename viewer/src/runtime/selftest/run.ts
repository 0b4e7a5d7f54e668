// Draws the cases of the self-test on a device, measures its speed, and tests the loss of its context.

import { ContextLost, type Device, type Options } from "../gl/device";
import { reason } from "../gl/errors";
import { Player, type Texels } from "../gl/player";
import { FEW } from "../gl/targets";
import { compare, ENTRY, type Case, type Off, type Suite } from "./suite";

const TOGETHER = 8; // cases whose shaders are compiled at once
const MEASURED_MS = 500; // target ms of one measurement of speed
const EVENT_MS = 3000; // maximum ms until the browser reports that the context is lost, or that it is restored

/** The result of a case. The fields of `Off` describe the case's worst output. */
export interface Result extends Off {
  case: Case;
  status: "passed" | "failed" | "skipped";
  problem: string;
  /** Milliseconds of compiling (a mean: several cases are compiled at once) and of the first draw. */
  ms: number;
  /** True if a second draw gave equal bits. */
  same: boolean;
}

/** Draws every case. `progress` receives the number of finished cases. Throws ContextLost. */
export async function drawAll(
  device: Device,
  cases: readonly Case[],
  progress: (done: number) => void,
): Promise<Result[]> {
  const found: Result[] = [];
  for (let i = 0; i < cases.length; i += TOGETHER) {
    const group = cases.slice(i, i + TOGETHER);
    const before = performance.now();
    const players = await Promise.all(group.map((each) => prepared(device, each)));
    const compiling = (performance.now() - before) / group.length;
    for (const [at, each] of group.entries()) {
      found.push(await drawn(each, players[at]!, compiling));
      progress(found.length);
    }
  }
  return found;
}

const options = (device: Device): Options => ({ fetch: "texelFetch", storage: device.storage });

/** Returns a player with compiled shaders, or why the device cannot draw a case. Throws ContextLost. */
async function prepared(
  device: Device,
  { program, targets }: Case,
): Promise<Player | Pick<Result, "status" | "problem">> {
  if (targets > device.limits.drawBuffers) {
    const problem = `needs ${targets} targets in a pass; this device has ${device.limits.drawBuffers}`;
    return { status: targets > FEW ? "skipped" : "failed", problem }; // every model needs a device with `FEW` targets
  }
  try {
    const player = new Player(device, program, options(device));
    await player.prepare(ENTRY);
    return player;
  } catch (error) {
    if (error instanceof ContextLost || device.lost) throw new ContextLost();
    return { status: "failed", problem: reason(error) };
  }
}

/** Draws a case twice and compares its results with the expected values and with each other. Throws ContextLost. */
async function drawn(
  of: Case,
  player: Player | Pick<Result, "status" | "problem">,
  compiling: number,
): Promise<Result> {
  const none = { case: of, output: "", error: 0, allowed: 0, share: 0, ms: 0, same: true };
  if (!(player instanceof Player)) return { ...none, ...player };
  const begun = performance.now();
  const first = await played(player, of);
  const ms = compiling + performance.now() - begun;
  const second = await played(player, of);
  player.close();
  const offs = of.expected.map((expected, i) => compare(expected, first[i]!));
  const worst = offs.reduce((a, b) => (b.share > a.share ? b : a));
  const same = first.every((texels, i) => equalBits(texels, second[i]!));
  const problem =
    worst.share > 1
      ? `${worst.output} is off by ${worst.error.toPrecision(3)}; ${worst.allowed.toPrecision(3)} is allowed`
      : same
        ? ""
        : "two draws of the same inputs give different bits";
  return { case: of, status: problem ? "failed" : "passed", problem, ms, same, ...worst };
}

/** Uploads the inputs, draws once, and reads the outputs. */
async function played(player: Player, { program, inputs, scalars, expected }: Case): Promise<Texels[]> {
  const given = new Map(inputs);
  for (const { name, width, height, layers, role } of Object.values(program.textures)) {
    const texels = given.get(name) ?? (role === "state" ? new Uint8Array(width * height * layers * 16) : null);
    if (!texels) continue;
    const bytes = texels.byteLength / layers;
    for (let layer = 0; layer < layers; layer++) {
      player.write(name, layer, 0, height, texels.subarray(layer * bytes, (layer + 1) * bytes));
    }
  }
  for (const [name, value] of Object.entries(scalars)) player.set(name, value);
  player.play(ENTRY);
  return Promise.all(expected.map(({ texture }) => player.read(texture)));
}

function equalBits(a: Texels, b: Texels): boolean {
  const [x, y] = [a, b].map(({ buffer, byteOffset, length }) => new Uint32Array(buffer, byteOffset, length));
  return x!.every((bits, i) => bits === y![i]);
}

/** Measures the suite's timed programs. Returns GFLOP/s for matrix products and milliseconds for a token. */
export async function speed(device: Device, suite: Suite): Promise<Record<string, number>> {
  const found: Record<string, number> = {};
  for (const each of suite.json.speed) {
    const player = new Player(device, suite.program(each), options(device));
    await player.prepare(ENTRY);
    for (const [name, value] of Object.entries(each.scalars)) player.set(name, value);
    const timed = async (count: number) => {
      const begun = performance.now();
      for (let i = 0; i < count; i++) player.play(ENTRY);
      await player.passed();
      return (performance.now() - begun) / count;
    };
    await timed(1);
    const ms = await timed(Math.max(1, Math.min(200, Math.round(MEASURED_MS / (await timed(1))))));
    player.close();
    if (each.flops) found[`${each.name} GFLOP/s`] = rounded(each.flops / ms / 1e6);
    else found[`${each.name} ms`] = rounded(ms);
  }
  return found;
}

/** Loses the context, restores it, and draws a case. Returns the outcome as a text for the report. */
export async function loseContext(device: Device, of: Case): Promise<string> {
  const extension = device.gl.getExtension("WEBGL_lose_context");
  if (!extension) return "not tested: the browser lacks WEBGL_lose_context";
  const begun = performance.now();
  extension.loseContext();
  if (!(await within(device, () => device.contextLost.value))) return "failed: no event after the loss";
  extension.restoreContext();
  if (!(await within(device, () => !device.contextLost.value))) return "failed: the context did not come back";
  const ms = Math.round(performance.now() - begun);
  const [again] = await drawAll(device, [of], () => {});
  return again?.status === "passed" ? `recovered in ${ms} ms` : `failed: ${again?.problem}`;
}

async function within(device: Device, condition: () => boolean): Promise<boolean> {
  for (let waited = 0; waited < EVENT_MS; waited += 10) {
    if (condition()) return true;
    await device.sleep(10);
  }
  return condition();
}

/** Rounds to three significant digits. */
export const rounded = (value: number) => Number(value.toPrecision(3));
