// Measures training steps of the page, tfjs and jax-js on one device, in alternating rounds.

import { Player } from "../../viewer/src/runtime/gl/player";
import type { Model } from "../../viewer/src/runtime/engine/model";
import { parseProgram, type Offer } from "../../viewer/src/runtime/engine/manifest";
import { HttpSource } from "../../viewer/src/runtime/engine/source";
import { readSafetensors } from "../../viewer/src/training/files";
import { Trainer } from "../../viewer/src/training/trainer";
import { JaxLearner } from "./jax-train";
import { firstIds, type Course, type Learner, type Shape, type Weights } from "./learner";
import { bytes, json, median, peakOf, post, slopes, timer, warmedUp, type Contender } from "./page";
import { TfLearner } from "./tfjs-train";
import { startTfjs } from "./tfjs";

export interface TrainTask {
  rounds: number;
  /** Number of floating-point operations of the program in fma.json. */
  peak_flops: number;
  lr: number;
  seed: number;
  sizes: (Offer & Shape & { beside: string[] })[];
}

interface Row {
  size: string;
  engine: string;
  /** Milliseconds per step: the median of all rounds. `rounds` has the value of each round. */
  ms: number;
  rounds: number[];
  /** Losses of the first steps. */
  losses: number[];
  /** Size in bytes of all textures of the engine; null if the engine does not report it. */
  bytes: number | null;
}

const FIRST = 4; // number of steps whose losses are compared; the first step compiles the shaders
const TARGET = 1500; // ms that the steps of one engine should take in a round

/** The page's `Trainer`, without the curves, samples and checkpoints of the page's Train tab. */
class OurLearner implements Learner {
  readonly engine = "glgpt";

  private constructor(
    private readonly trainer: Trainer,
    private readonly shape: Shape,
    private readonly course: Course,
  ) {}

  static async open(model: Model, offer: Offer & Shape, course: Course): Promise<OurLearner> {
    const { device, recording, options, manifest } = model;
    const { drawBuffers } = device.limits;
    const chosen = offer.programs.find((p) => p.kernel === recording.kernel && p.draw_buffers <= drawBuffers);
    if (!chosen) throw new Error(`no program of ${offer.name} for ${recording.kernel}`);
    const program = parseProgram(await json(chosen.file), chosen.file);
    const trainer = new Trainer(device, offer, program, options, course.seed, manifest.tuning);
    await trainer.open(true);
    return new OurLearner(trainer, offer, course);
  }

  async weights(): Promise<Weights> {
    const { tensors } = readSafetensors(await this.trainer.state(this.course.lr));
    return new Map([...tensors].filter(([name]) => /\.(weight|bias)$/.test(name)));
  }

  async take(steps: number): Promise<number[]> {
    const results = [];
    for (let i = 0; i < steps; i++) {
      const first = firstIds(this.course, this.shape, this.trainer.steps + 1);
      results.push(...(await this.trainer.submit(this.course.ids, first, this.course.lr)));
    }
    results.push(...(await this.trainer.drain())); // waits for the last losses, which arrive some steps late
    return results.map(({ loss }) => loss);
  }

  bytes(): number {
    const textures = Object.values(this.trainer.program.textures);
    return textures.reduce((sum, t) => sum + 16 * t.width * t.height * t.layers, 0);
  }

  close(): void {
    this.trainer.close();
  }
}

/** Measures the multiply-add peak with the program that the desktop's benchmark uses (`fma_program` in Python). */
class Peak {
  readonly samples: number[] = []; // GFLOPS

  private constructor(
    private readonly player: Player,
    private readonly flops: number,
    private readonly contender: Contender,
  ) {}

  static async open(model: Model, flops: number): Promise<Peak> {
    const player = new Player(model.device, parseProgram(await json("fma.json"), "fma.json"), model.options);
    const { texture } = Object.values(player.program.entries["bench"]!.outputs)[0]!;
    await player.prepare("bench");
    return new Peak(player, flops, { engine: "fma", time: timer(player, "bench", texture) });
  }

  /** Takes `count` more samples of the rate, each measured by `slopes` with one round. */
  async sample(count: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      const [ms] = await slopes([this.contender], 1, Infinity);
      if (ms! > 0) this.samples.push(this.flops / ms! / 1e6);
    }
  }

  close(): void {
    this.player.close();
  }
}

async function race(
  model: Model,
  shape: TrainTask["sizes"][number],
  course: Course,
  rounds: number,
  peak: Peak,
): Promise<Row[]> {
  const ours = await OurLearner.open(model, shape, course);
  const weights = await ours.weights();
  const learners: Learner[] = [ours];
  if (shape.beside.includes("tfjs")) learners.push(new TfLearner(shape, course, weights));
  if (shape.beside.includes("jax-js")) learners.push(await JaxLearner.open(shape, course, weights));
  const rows: Row[] = [];
  const counts: number[] = [];
  const timed = async (learner: Learner, steps: number, what: string) => {
    await post("progress", `${shape.name}: ${what} of ${learner.engine}`);
    const start = performance.now();
    const losses = await learner.take(steps);
    return { losses, ms: (performance.now() - start) / steps };
  };
  for (const learner of learners) {
    const taken = [];
    for (let step = 1; step <= FIRST; step++) taken.push(await timed(learner, 1, `step ${step}`));
    counts.push(Math.max(1, Math.ceil(TARGET / taken.at(-1)!.ms)));
    const losses = taken.flatMap((t) => t.losses);
    rows.push({ size: shape.name, engine: learner.engine, ms: NaN, rounds: [], losses, bytes: null });
  }
  for (let round = 1; round <= rounds; round++) {
    await peak.sample(1);
    for (const [i, learner] of learners.entries()) {
      rows[i]!.rounds.push((await timed(learner, counts[i]!, `round ${round} of ${rounds}, ${counts[i]} steps`)).ms);
    }
  }
  for (const [i, row] of rows.entries()) Object.assign(row, { ms: median(row.rounds), bytes: learners[i]!.bytes() });
  for (const learner of learners) learner.close();
  return rows;
}

export async function train(task: TrainTask): Promise<object> {
  await startTfjs();
  const ours = await warmedUp(new HttpSource(new URL("page/", location.href)));
  const course = { ids: Uint16Array.from(new Uint8Array(await bytes("text"))), seed: task.seed, lr: task.lr };
  await post("progress", "the multiply-add peak");
  const peak = await Peak.open(ours.model, task.peak_flops);
  await peak.sample(FIRST);
  const rows: Row[] = [];
  for (const shape of task.sizes) rows.push(...(await race(ours.model, shape, course, task.rounds, peak)));
  await peak.sample(FIRST);
  peak.close();
  const { rate: fma_gflops, sure: fma_sure } = peakOf(peak.samples);
  const { renderer, kernel, fetch } = ours.info();
  const { userAgent: browser } = navigator;
  return { renderer, browser, kernel, fetch, fma_gflops, fma_sure, fma_samples: peak.samples, rows };
}
