// Trains a model by playing the entries of a recorded program. Only the program's passes differ from model to model.

import { plan, sizes, writeIds, writeToken } from "../runtime/engine/chunks";
import { ContextLost, type Device, type Options } from "../runtime/gl/device";
import { Player } from "../runtime/gl/player";
import { unpack, upload } from "../runtime/engine/layout";
import type { Offer, Tuning } from "../runtime/engine/manifest";
import { must, PageError } from "../runtime/gl/errors";
import { yielder } from "../runtime/gl/wait";
import type { Program, View } from "../runtime/gl/program";
import { chosen, NOT_FINITE, Sampler, type SamplingRequest } from "../runtime/engine/sampling";
import { sortedIndex, windows, type Ids } from "./batches";
import { afterOverflow, afterStep, FIRST, known, type Scale } from "./loss-scale";
import { observe } from "./observed";
import { noPredictions, type Predictions } from "./predictions";
import { MOMENTS, readSafetensors, writeSafetensors, type About, type Tensor, type Tensors } from "./files";

const IN_FLIGHT = 3; // maximum unfinished steps; with more, the trainer waits for the oldest result

export interface StepResult {
  step: number;
  /** Nats per token. */
  loss: number;
  /** Norm of all gradients before clipping. */
  gradNorm: number;
  /** Counts how often the step was repeated because its gradients overflowed; only in f16. */
  overflows?: number;
}

/** An unfinished step, with everything needed to repeat it. */
interface Step {
  step: number;
  ids: Ids;
  first: readonly number[];
  lr: number;
  scale: Scale | null;
  overflows: number;
}

/** Thrown if the loss, a gradient or a parameter of a step is not finite. */
export class Diverged extends PageError {}

/** A step's result and the time of its arrival (ms, `performance.now`). */
export type Arrived = StepResult & { at: number };

export class Trainer {
  readonly player: Player;
  steps = 0;
  private readonly inFlight: { step: Step; result: Promise<Arrived> }[] = [];
  private results: Arrived[] = []; // results that arrived while other work waited for the steps
  /** The loss scale of the next step; null: the training does not compute in f16. */
  lossScale: Scale | null;
  private readonly known: number[];
  private prepared = false;
  private closed = false;
  private readonly generation: number;

  constructor(
    readonly device: Device,
    readonly offer: Offer,
    readonly program: Program,
    options: Options,
    readonly seed: number,
    private readonly tuning: Pick<Tuning, "one_token" | "per_chunk" | "draw_flops">,
  ) {
    this.generation = device.generation;
    this.lossScale = offer.recipe.precision === "f16" ? FIRST : null;
    this.player = new Player(device, program, options, undefined, tuning.draw_flops);
    observe(this, ["steps"]);
    this.known = [...sizes(Object.keys(program.entries), "prefill_"), 1];
  }

  /** Compiles the shaders; `begin` also initializes the parameters from the seed. */
  async open(begin: boolean): Promise<void> {
    const { player } = this;
    await player.prepare(
      "init",
      "backward",
      "update",
      "evaluate",
      "prepare",
      "decode",
      "sample",
      "sample_nucleus",
      "look",
    );
    await player.prepare(...this.known.slice(0, -1).map((n) => `prefill_${n}`));
    if (!begin) return;
    player.set("seed", this.seed);
    player.play("init");
  }

  // -- steps ------------------------------------------------------------------------------------------------------

  /**
   * Takes a step on the windows of `ids` that start at the positions `first`. Waits until at most `IN_FLIGHT` steps are
   * unfinished, so that the page's frames do not wait long for the device. Does not wait for the result of this step.
   * Returns the results of earlier steps that have arrived.
   */
  async submit(ids: Ids, first: readonly number[], lr: number): Promise<Arrived[]> {
    await this.playStep({ step: this.steps + 1, ids, first, lr, scale: this.lossScale, overflows: 0 });
    if (this.inFlight.length > IN_FLIGHT) this.results.push(await this.take());
    return this.results.splice(0);
  }

  private async playStep(taken: Step): Promise<void> {
    const { player } = this;
    const { step, ids, first, lr, scale } = taken;
    const [b1, b2] = this.offer.recipe.betas;
    if (scale) this.put("loss_scale", new Float32Array([scale.value, 0, 0, 0]));
    this.upload(ids, first, true);
    for (const [name, value] of Object.entries({ pos: 0, row: 0, step, seed: this.seed })) player.set(name, value);
    await player.playInSlices("backward");
    player.set("lr", lr);
    player.set("unbias1", 1 / (1 - b1 ** step));
    player.set("unbias2", 1 / (1 - b2 ** step));
    await player.playInSlices("update"); // after it, the player swaps the textures of each `ping_pong` pair
    this.steps = step;
    this.lossScale = scale && afterStep(scale);
    this.prepared = false;
    const read = Promise.all([player.read("losses", 0, 1), player.read("gradient_norm")]);
    const result = read.then(([losses, norm]) => {
      return {
        step,
        loss: losses[0]! / losses[1]!,
        gradNorm: norm[0]!,
        overflows: taken.overflows,
        at: performance.now(),
      };
    });
    result.catch(() => {}); // `take` receives the error
    this.inFlight.push({ step: taken, result });
  }

  /** Returns the oldest result. Re-runs an overflowed step and the steps after it, which the device skipped. */
  private async take(): Promise<Arrived> {
    for (;;) {
      const { step, result } = this.inFlight.shift()!;
      const found = await result;
      if (!step.scale || Number.isFinite(found.gradNorm)) return found;
      const skipped = this.inFlight.splice(0); // the device skipped these later steps
      this.put("overflowed", new Float32Array(4));
      const lost = !Number.isFinite(found.loss); // a smaller loss scale does not help: the step is not repeated
      [this.steps, this.lossScale] = [step.step - (lost ? 0 : 1), step.scale];
      const again = async () => {
        for (const later of skipped) await this.playStep({ ...later.step, scale: this.lossScale, overflows: 0 });
      };
      if (lost) {
        await again();
        return found;
      }
      const scale = afterOverflow(step.scale);
      if (!scale) {
        const { value } = step.scale;
        throw new Diverged(`Step ${step.step}: gradients exceed the range of f16 even with a loss scale of ${value}.`);
      }
      console.info(`Step ${step.step}: gradients overflowed; repeating the step with a loss scale of ${scale.value}`);
      await this.playStep({ ...step, scale, overflows: step.overflows + 1 });
      await again();
    }
  }

  /** Waits for all unfinished steps and returns their results. */
  async drain(): Promise<Arrived[]> {
    while (this.inFlight.length) this.results.push(await this.take());
    return this.results.splice(0);
  }

  /** Waits for steps that may have to be repeated. The next call of `submit` or `drain` returns their results. */
  private async settle(): Promise<void> {
    if (this.lossScale) this.results = await this.drain();
  }

  /** Returns the mean loss of windows, in nats per token. */
  async evaluate(ids: Ids, first: readonly number[]): Promise<number> {
    await this.settle();
    const { batch } = this.offer.recipe;
    const sums: Promise<ArrayLike<number>>[] = [];
    for (let at = 0; at < first.length; at += batch) {
      this.upload(ids, first.slice(at, at + batch), false);
      this.player.set("pos", 0);
      this.player.set("row", 0);
      await this.player.playInSlices("evaluate");
      sums.push(this.player.read("losses", 0, 1));
      if (sums.length > IN_FLIGHT) await sums.at(-IN_FLIGHT);
    }
    const all = await Promise.all(sums);
    const total = (i: number) => all.reduce((sum, texel) => sum + texel[i]!, 0);
    return total(0) / total(1);
  }

  /** Returns the model's predictions for every target of the windows that start at `first`. */
  async predict(
    ids: Ids,
    first: readonly number[],
    progress: (share: number) => void = () => {},
  ): Promise<Predictions> {
    const { batch, context } = this.offer.recipe;
    const found = noPredictions(first.length * context);
    await this.player.prepare("score");
    for (let at = 0; at < first.length; at += batch) {
      const some = first.slice(at, at + batch);
      this.upload(ids, some, false);
      this.player.set("pos", 0);
      this.player.set("row", 0);
      await this.player.playInSlices("score");
      const texels = await this.player.read("predictions"); // row t * batch + i: target t of window `at + i`
      for (let i = 0; i < some.length; i++) {
        for (let t = 0; t < context; t++) {
          const from = 4 * (t * batch + i);
          const to = (at + i) * context + t;
          if (!Number.isFinite(texels[from])) throw new PageError(NOT_FINITE);
          [found.nats[to], found.ranks[to], found.confidence[to]] = [
            texels[from]!,
            texels[from + 1]!,
            texels[from + 2]!,
          ];
        }
      }
      progress((at + some.length) / first.length);
    }
    return found;
  }

  private upload(ids: Ids, first: readonly number[], train: boolean): void {
    const { batch, context } = this.offer.recipe;
    const missing = batch - first.length;
    const { inputs, targets } = windows(
      ids,
      missing ? [...first, ...new Array<number>(missing).fill(0)] : first,
      context,
    );
    if (missing) for (let i = 0; i < targets.length; i++) if (i % batch >= first.length) targets[i] = -1;
    this.put(`ids.${inputs.length}`, inputs);
    this.put("targets", targets);
    if (train) {
      const { order, runs } = sortedIndex(inputs, this.offer.config.vocab_size);
      this.put("order", order);
      this.put("starts", runs);
    }
  }

  private view(name: string): View {
    return must(this.program.views[name], `view of ${name}`);
  }

  private put(name: string, values: Float32Array): void {
    upload(this.player, name, values);
  }

  /** Returns the parameters' textures by name. The next step writes the new parameters to other textures. */
  textures(): Map<string, WebGLTexture> {
    return new Map(this.offer.parameters.map(({ name }) => [name, this.player.texture(name)]));
  }

  // -- state ------------------------------------------------------------------------------------------------------

  /**
   * Returns the current parameters and AdamW's moments in the format of the desktop's state.safetensors. Throws
   * Diverged if a number is not finite: a step with a finite loss can still make parameters infinite.
   */
  async state(lr: number): Promise<Uint8Array<ArrayBuffer>> {
    const names = this.offer.parameters.flatMap((p) => PARTS.map((part) => ({ ...p, name: p.name + part })));
    await this.settle();
    const { config, recipe } = this.offer;
    const about: About = { config, recipe, lr, seed: this.seed, step: this.steps };
    if (this.lossScale) about.loss_scale = this.lossScale;
    const reads = names.map(({ name }) => this.player.read(name)); // all reads are issued before another step is played
    const texels = await Promise.all(reads);
    const tensors: Tensors = new Map();
    const yieldIfLate = yielder();
    for (const [i, { name, shape, transposed: isTransposed }] of names.entries()) {
      await yieldIfLate();
      const matrix = unpack(this.view(name), texels[i]!);
      if (!finite(matrix)) throw new Diverged(`Step ${about.step}: ${name} holds a NaN or an infinity.`);
      tensors.set(name, { shape, data: isTransposed ? transposed(matrix, shape[1]!, shape[0]!) : matrix } as Tensor);
    }
    return writeSafetensors(tensors, { glgpt: JSON.stringify(about) });
  }

  /** Continues from a state. If `about` is null, missing moments are zero and steps are counted from 0. */
  restore(state: Uint8Array, about: About | null): void {
    const tensors = fitting(this.offer, state, about);
    for (const { name, shape, transposed: isTransposed } of this.offer.parameters) {
      for (const part of PARTS) {
        const data = tensors.get(name + part)!;
        this.put(name + part, isTransposed ? transposed(data, shape[0]!, shape[1]!) : data);
      }
    }
    this.steps = about?.step ?? 0;
    if (this.lossScale) {
      this.lossScale = known(about?.loss_scale) ?? FIRST;
      this.put("overflowed", new Float32Array(4)); // clears the flag of an earlier step
    }
    this.prepared = false;
  }

  /** Returns all parameters as one vector, in the order of the offer. Each parameter has the layout of a checkpoint. */
  async parameters(): Promise<Float32Array<ArrayBuffer>> {
    await this.settle();
    const { parameters } = this.offer;
    const texels = await Promise.all(parameters.map(({ name }) => this.player.read(name)));
    const vector = new Float32Array(this.offer.count);
    const yieldIfLate = yielder();
    let at = 0;
    for (const [i, { name, shape, transposed: isTransposed }] of parameters.entries()) {
      await yieldIfLate();
      const matrix = unpack(this.view(name), texels[i]!);
      if (!finite(matrix)) throw new Diverged(`${name} holds a NaN or an infinity.`);
      vector.set(isTransposed ? transposed(matrix, shape[1]!, shape[0]!) : matrix, at);
      at += matrix.length;
    }
    return vector;
  }

  /** Sets the parameters from a vector as `parameters` returns it. Keeps the moments and AdamW's step count. */
  setParameters(vector: Float32Array): void {
    if (vector.length !== this.offer.count) {
      throw new PageError(`The vector has ${vector.length} values; this size has ${this.offer.count} parameters.`);
    }
    let at = 0;
    for (const { name, shape, transposed: isTransposed } of this.offer.parameters) {
      const size = shape.reduce((a, b) => a * b, 1);
      const data = vector.slice(at, at + size);
      this.put(name, isTransposed ? transposed(data, shape[0]!, shape[1]!) : data);
      at += size;
    }
    this.prepared = false;
  }

  // -- texts ------------------------------------------------------------------------------------------------------

  /** Yields up to `tokens` ids that continue `ids`, with the current parameters. Ends early if the context is full. */
  async *generate(ids: readonly number[], tokens: number, settings: SamplingRequest): AsyncGenerator<number> {
    const { player } = this;
    const context = this.offer.config.n_positions;
    const sampler = new Sampler(settings);
    const text = [...ids];
    const view = must(this.program.views["logits"], "view logits");
    for (let n = 0; n < tokens && text.length <= context; n++) {
      if (!this.prepared) player.play("prepare");
      if (n && this.prepared) this.decode(text.at(-1)!, text.length - 1);
      else this.prefill(text);
      this.prepared = true;
      if (sampler.entry) {
        for (const [name, value] of Object.entries(sampler.scalars(n, view.cols))) player.set(name, value);
        player.play(sampler.entry);
      }
      const found = chosen(await player.read("token"), sampler);
      const id = found.undecided ? sampler.draw(unpack(view, await player.read(view.texture)), n).id : found.id;
      yield id;
      text.push(id);
    }
  }

  private prefill(ids: readonly number[]): void {
    for (const chunk of plan(ids.length, this.offer.config.n_positions, this.known, this.tuning)) {
      if (chunk.size === 1) {
        this.decode(ids[chunk.start]!, chunk.start);
        continue;
      }
      writeIds(this.player, ids, chunk);
      this.player.set("pos", chunk.start);
      this.player.set("row", chunk.valid - 1);
      this.player.play(`prefill_${chunk.size}`);
    }
  }

  private decode(id: number, position: number): void {
    writeToken(this.player, id);
    this.player.set("pos", position);
    this.player.play("decode");
  }

  /** Computes attention for the first tokens of `ids` and returns the views of the layers' patterns, in order. */
  look(ids: Ids): View[] {
    const entry = must(this.program.entries["look"], "entry look");
    const size = sizes(entry.inputs, "ids.")[0]!;
    writeIds(this.player, Array.from(ids.subarray(0, size)), { start: 0, valid: Math.min(size, ids.length), size });
    this.player.set("pos", 0);
    this.player.play("look");
    this.prepared = false; // the caches hold another text
    const patterns = [...this.offer.activations].filter(([, { kind }]) => kind === "pattern");
    return patterns.map(([name]) => must(entry.outputs[name], `output ${name}`));
  }

  /** True if the trainer's textures are gone: it was closed, or the context was lost. */
  get gone(): boolean {
    return this.closed || this.generation !== this.device.generation || this.device.lost;
  }

  close(): void {
    if (!this.gone) this.player.close();
    this.closed = true;
  }
}

const PARTS = ["", ...MOMENTS.map((m) => `.${m}`)];

/**
 * Returns a state's parameters and moments by name. `parts` are the suffixes of the tensors to return ("": the
 * parameter). Throws PageError if a tensor is missing, does not fit this size or is not finite. If `about` is null, a
 * missing moment is zero.
 */
export function fitting(
  offer: Offer,
  state: Uint8Array,
  about: About | null,
  parts: readonly string[] = PARTS,
): Map<string, Float32Array> {
  const { tensors } = readSafetensors(state);
  const all = new Map<string, Float32Array>();
  for (const { name, shape } of offer.parameters) {
    for (const part of parts) {
      const found = tensors.get(name + part);
      const data = found?.data ?? (part && !about ? new Float32Array(shape.reduce((a, b) => a * b, 1)) : null);
      if (!data || (found && found.shape.join() !== shape.join())) {
        throw new PageError(
          `The saved model's ${name + part} is ${found ? found.shape.join(" x ") : "missing"}; ` +
            `this size has ${shape.join(" x ")}.`,
        );
      }
      if (!finite(data)) throw new PageError(`The saved model's ${name + part} holds a NaN or an infinity.`);
      all.set(name + part, data);
    }
  }
  return all;
}

function finite(values: ArrayLike<number>): boolean {
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i])) return false;
  return true;
}

/** Uploads a saved model's parameters to a player's weights. */
export function putParameters(player: Player, offer: Offer, state: Uint8Array): void {
  const found = fitting(offer, state, null, [""]);
  for (const { name, shape, transposed: isTransposed } of offer.parameters) {
    const data = must(found.get(name), name);
    upload(player, name, isTransposed ? transposed(data, shape[0]!, shape[1]!) : data);
  }
}

export function isLost(error: unknown, device: Device): boolean {
  return error instanceof ContextLost || device.lost;
}

function transposed(matrix: Float32Array, rows: number, cols: number): Float32Array {
  const out = new Float32Array(matrix.length);
  for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) out[c * rows + r] = matrix[r * cols + c]!;
  return out;
}
