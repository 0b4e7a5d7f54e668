// Compares the speed of glgpt's page with that of tfjs on one device. Measures matrix products, and GPT-2 with a KV
// cache; with `run.py --train`, measures training steps instead (train.ts). `run.py` serves this page and receives the
// results.

import { Device } from "../../viewer/src/runtime/gl/device";
import { Player } from "../../viewer/src/runtime/gl/player";
import { unpack } from "../../viewer/src/runtime/engine/layout";
import { parseProgram } from "../../viewer/src/runtime/engine/manifest";
import { HttpSource } from "../../viewer/src/runtime/engine/source";
import { bytes, json, median, post, slopes, timer, warmedUp, type Contender } from "./page";
import { startTfjs, TfGpt2, TfProduct, type Config } from "./tfjs";
import { train, type TrainTask } from "./train";

interface Task {
  rounds: number;
  only: "products" | "model" | null;
  dtype: "f32" | "f16" | "q8" | "q4"; // of the page's model; products are always measured in f32 and f16
  shape: [number, number];
  rows: number[];
  prompt: number;
  context: number;
  config: Config & { vocab_size: number };
}

interface Row {
  name: string;
  shape: string;
  engine: string;
  ms: number;
  gflops?: number;
}

const FETCHES = ["texelFetch", "textureLod"] as const;
const DECODED = 16; // tokens that a measured generation decodes: half before the given context length, half after
const KEPT = 512e6; // maximum bytes of the products' results that are in memory at once

async function products(
  device: Device,
  task: Task,
  m: number,
): Promise<{ rows: Row[]; apart: Record<string, number> }> {
  const [k, n] = task.shape;
  const shape = `[${m},${k}]x[${k},${n}]`;
  const kernel = device.limits.drawBuffers >= 8 ? "4x8" : "4x4";
  const [x, w] = [`x.${m}`, "w"].map(async (name) => new Float32Array(await bytes(`products/${name}.plain`)));
  const theirs = new TfProduct(await x!, await w!, m, k, n);
  const expected = await theirs.result();
  const contenders: Contender[] = [{ engine: "tfjs", time: (count) => theirs.time(count) }];
  const players: Player[] = [];
  const apart: Record<string, number> = {};
  for (const dtype of ["f32", "f16"]) {
    const base = `products/${kernel}.${dtype}.`;
    const program = parseProgram(await json(`${base}${m}.json`), base);
    const view = Object.values(program.entries["probe"]!.outputs)[0]!;
    for (const fetch of FETCHES) {
      const player = new Player(device, program, { fetch, storage: device.storage });
      players.push(player);
      for (const [texture, file] of [
        ["x", `${base}x.${m}`],
        ["w", `${base}w`],
      ] as const) {
        const { height, layers, width } = player.spec(texture);
        const data = new Uint8Array(await bytes(file));
        const size = height * width * 16;
        for (let i = 0; i < layers; i++) player.write(texture, i, 0, height, data.subarray(i * size, (i + 1) * size));
      }
      await player.prepare("probe");
      const time = timer(player, "probe", view.texture);
      contenders.push({ engine: `glgpt ${dtype} ${fetch}`, time });
      await time(1);
      const found = unpack(view, await player.read(view.texture));
      const worst = found.reduce((most, value, i) => Math.max(most, Math.abs(value - expected[i]!)), 0);
      apart[`${shape} ${dtype}`] = Math.max(worst, apart[`${shape} ${dtype}`] ?? 0);
    }
  }
  const ms = await slopes(contenders, task.rounds, Math.floor(KEPT / (4 * m * n)));
  theirs.close();
  for (const player of players) player.close();
  const row = (engine: string, time: number): Row => ({
    name: "matmul",
    shape,
    engine,
    ms: time,
    gflops: (2 * m * k * n) / time / 1e6,
  });
  // For each dtype, reports the time with the faster of the two `FETCHES`, which the page would choose, too.
  const rows = [row("tfjs", ms[0]!), row("glgpt f32", least(ms[1]!, ms[2]!)), row("glgpt f16", least(ms[3]!, ms[4]!))];
  return { rows, apart };
}

function least(a: number, b: number): number {
  return Math.min(a, b);
}

/** The sampling settings with which the page's model is measured. tfjs's model (`TfGpt2`) is always greedy. */
const SAMPLED = {
  "+ temp 0.8": { temperature: 0.8 },
  "+ top-k 40": { temperature: 0.8, topK: 40 },
  "+ top-p 0.9": { temperature: 0.8, topP: 0.9 },
  "+ shown": { temperature: 0.8, topP: 0.9, alternatives: 8 }, // the Text view's settings
};

/** Reads a safetensors file, one tensor at a time, and adds each tensor to tfjs's model. */
async function load(model: TfGpt2, name: string): Promise<void> {
  const range = async (from: number, to: number) => {
    const response = await fetch(name, { headers: { Range: `bytes=${from}-${to - 1}` } });
    if (response.status !== 206) throw new Error(`${name}: ${response.status}`);
    return response.arrayBuffer();
  };
  const start = 8 + Number(new DataView(await range(0, 8)).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(await range(8, start))) as Record<
    string,
    { shape: number[]; data_offsets: [number, number] }
  >;
  for (const [weight, { shape, data_offsets }] of Object.entries(header)) {
    if (weight === "__metadata__") continue;
    model.add(weight, shape, new Float32Array(await range(start + data_offsets[0], start + data_offsets[1])));
  }
}

async function models(task: Task): Promise<{ rows: Row[]; tokens: Record<string, number[]>; info: object }> {
  const ours = await warmedUp(new HttpSource(new URL(`${task.dtype}/`, location.href)));
  const theirs = new TfGpt2(task.config);
  await load(theirs, "checkpoint/model.safetensors");
  await post("progress", "prefill and decode");
  const contenders = {
    tfjs: (ids: number[], tokens: number) => theirs.generate(ids, tokens),
    [`glgpt ${task.dtype}`]: (ids: number[], tokens: number) => ours.generate({ ids, tokens, temperature: 0 }),
  };
  const times: Record<string, { prefill: number[]; decode: number[] }> = {};
  const sampled: Record<string, number[]> = {};
  const said: Record<string, number[]> = {};
  for (let round = -1; round < task.rounds; round++) {
    // Each round has other ids, so that the page cannot reuse the KV cache of an earlier round. Round -1 compiles the
    // shaders, and its times are not recorded.
    const id = (i: number) => (7919 * (i + 1) + 104729 * (round + 2)) % task.config.vocab_size;
    const ids = (count: number) => Array.from({ length: count }, (_, i) => id(i));
    for (const [engine, generate] of Object.entries(contenders)) {
      const time = (times[engine] ??= { prefill: [], decode: [] });
      const { prefillMs } = await generate(ids(task.prompt), 1);
      const { decodeMs, ids: found } = await generate(ids(task.context - DECODED / 2), DECODED + 1);
      said[engine] = [...(said[engine] ?? []), ...found];
      if (round < 0) continue;
      time.prefill.push(prefillMs);
      time.decode.push(decodeMs / DECODED);
    }
    for (const [name, more] of Object.entries(SAMPLED)) {
      const options = { ids: ids(task.context - DECODED / 2), tokens: DECODED + 1, seed: round + 1, ...more };
      const { decodeMs } = await ours.generate(options);
      if (round >= 0) (sampled[name] ??= []).push(decodeMs / DECODED);
    }
  }
  const rows: Row[] = [];
  for (const [engine, { prefill, decode }] of Object.entries(times)) {
    rows.push({ name: "prefill", shape: `${task.prompt} tokens`, engine, ms: median(prefill) });
    rows.push({ name: "decode", shape: `context ${task.context}`, engine, ms: median(decode) });
  }
  for (const [name, found] of Object.entries(sampled)) {
    rows.push({ name, shape: `context ${task.context}`, engine: `glgpt ${task.dtype}`, ms: median(found) });
  }
  return { rows, tokens: said, info: ours.info() };
}

async function main(): Promise<void> {
  const task = (await json("task.json")) as Task | TrainTask;
  if ("sizes" in task) return post("result", await train(task));
  await startTfjs();
  const device = new Device();
  const rows: Row[] = [];
  const apart: Record<string, number> = {};
  for (const m of task.only === "model" ? [] : task.rows) {
    await post("progress", `products of ${m} rows`);
    const found = await products(device, task, m);
    rows.push(...found.rows);
    Object.assign(apart, found.apart);
  }
  const result = { renderer: device.renderer, browser: navigator.userAgent, rows, apart };
  if (task.only !== "products") {
    await post("progress", "loading the models");
    const { rows: more, tokens, info } = await models(task);
    rows.push(...more);
    Object.assign(result, { tokens, info });
  }
  await post("result", result);
}

main().catch((error: unknown) =>
  post("failure", error instanceof Error ? `${error.message}\n${error.stack ?? ""}` : error),
);
