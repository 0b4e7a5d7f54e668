// Runs a training: schedules evaluations, samples and checkpoints; pauses, resumes and recovers from a lost context.

import { signal, type ReadonlySignal } from "@preact/signals-core";
import { ContextLost, type Device } from "../runtime/gl/device";
import { pause, Queue } from "../runtime/gl/wait";
import { digest } from "../runtime/engine/loader";
import type { Offer } from "../runtime/engine/manifest";
import type { Weights } from "../runtime/engine/model";
import { must, PageError } from "../runtime/gl/errors";
import { checkRate, fixedWindows, rateAt, starts, type Ids, type Rates } from "./batches";
import { encodeText, type Bpe } from "./bpe";
import { MOMENTS, modelFiles, written, type About, type Files } from "./files";
import { figures, sizeOf, type Figures } from "./predictions";
import { baselineFigures, judged, scored, WRITTEN, type Score, type ScoreProgress } from "./score";
import { tokenBytes } from "./tokenise";
import type { Origin } from "./training";
import { Diverged, isLost, type Arrived, type StepResult, type Trainer } from "./trainer";

const RECENT = 30; // steps over which the speed is measured
const AT_ONCE = 1; // maximum ms between results that count as one: some drivers report several steps at once
const KEEP_MS = 20_000; // ms from one checkpoint to the next
const EVAL_TOKENS = 8192;
const OVER = "The training was reset or replaced by another.";

export interface Plan {
  offer: Offer;
  /** The kernel of its program. Programs that share its textures must be recorded for the same kernel. */
  kernel: string;
  /** The text of the ids; null: ids were given. */
  text: string | null;
  origin: Origin | null;
  bpe: Bpe | null;
  train: Ids;
  validation: Ids;
  /** The share of the bytes, at the end of the text, that is held back for validation and scoring. */
  share: number;
  rates: Rates;
  seed: number;
  /** Steps between validations, and between samples; 0: none. */
  evalEvery: number;
  sampleEvery: number;
}

export interface Point extends StepResult {
  lr: number;
  tokensPerS: number;
  /** Validation loss in nats per token and bits per byte, at steps with a validation. */
  validation?: number;
  bits?: number;
}

/** The settings of a sample. */
export interface Wish {
  prompt: string;
  tokens: number;
  temperature: number;
}

export interface Sample {
  step: number;
  prompt: string;
  text: string;
}

/** The state from which a training continues. */
export interface Checkpoint {
  step: number;
  state: Uint8Array<ArrayBuffer>;
  about: About | null;
  /** The rates with which a later visit continues. */
  rates?: Rates;
  points: Point[];
  samples: Sample[];
  scores?: Score[];
}

export type Status = "paused" | "running" | "done" | "failed";

/** The state of a session, for those who show it. */
export type SessionState = Readonly<
  Pick<Session, "plan" | "status" | "problem" | "step" | "points" | "samples" | "scores" | "baselines" | "checkpoint" | "tokensPerS" | "doing">
>;

export class Session {
  status: Status = "paused";
  problem = "";
  points: Point[] = [];
  samples: Sample[] = [];
  scores: Score[] = [];
  /** Metrics of chance and n-gram models on the held-back text; empty until counted, or if the text is too short. */
  baselines: Figures[] = [];
  /** The text that a sample continues from. */
  prompt = "\n";
  sampleTokens = 120;
  temperature = 0.8;
  tokensPerS = 0;
  checkpoint: Checkpoint | null = null;
  /** The activity other than steps, for the page; "" for none. */
  doing = "";
  private readonly snapshot = signal<SessionState | null>(null);
  onStep: (point: Point) => void = () => {};
  /** Called when it has stopped for any reason. */
  onEnd: () => void = () => {};
  keep: (checkpoint: Checkpoint) => Promise<void> = () => Promise.resolve();
  trainer!: Trainer;
  readonly bytes: Uint8Array[];
  /** Number of trainers created for it. */
  private opened = 0;
  private counted: Promise<Figures[]> | null = null;
  private going = { on: false }; // the latest start's flag, which `pause` clears
  private over = false; // closed
  private away = false; // released its textures (`leave`)
  private readonly asked: (() => Promise<void>)[] = []; // work to do between two steps
  private running: Promise<void> = Promise.resolve();
  private readonly queue = new Queue(); // two samples at once would share caches
  /**
   * (step, end time in ms) of the latest steps, preceded by the step after which the device was idle. The times exclude
   * everything that is not a step.
   */
  private recent: [number, number][] = [];
  private apart = 0; // ms spent on work other than steps
  private cold = true; // the next step compiles
  private keptAt = performance.now();

  constructor(
    readonly plan: Plan,
    private readonly device: Device,
    /** Creates a trainer on the device's current context and compiles its shaders. */
    private readonly build: (begin: boolean) => Promise<Trainer>,
  ) {
    this.bytes = tokenBytes(plan.bpe);
  }

  /** Creates the trainer, with new parameters or from a checkpoint. */
  async open(from: Checkpoint | null = null): Promise<void> {
    this.checkpoint = from;
    this.recent = [];
    this.cold = true;
    this.points = [...(from?.points ?? [])];
    this.samples = [...(from?.samples ?? [])];
    this.scores = [...(from?.scores ?? [])];
    this.trainer = await this.build(!from);
    this.opened++;
    try {
      if (from) this.trainer.restore(from.state, from.about);
      else {
        if (this.plan.evalEvery) await this.evaluate();
        if (this.plan.sampleEvery) await this.sample(); // noise, from the untrained model
      }
    } catch (error) {
      this.trainer.close();
      throw error;
    }
    this.changed();
  }

  get step(): number {
    return this.trainer.steps;
  }

  /** The state after the latest change (a step, a sample, another status); null until it is open. */
  get state(): ReadonlySignal<SessionState | null> {
    return this.snapshot;
  }

  /** The current parameters, for another player of the model. */
  readonly weights: Weights = {
    own: false,
    shared: () => {
      if (this.over) throw new PageError(OVER);
      if (this.trainer.gone) throw new ContextLost();
      return this.trainer.textures();
    },
    version: () => `${this.opened}.${this.step}`,
    fill: () => Promise.resolve(),
  };

  /** Takes steps until all are done, `pause` is called or an error occurs; then resolves. */
  start(): Promise<void> {
    if (this.status === "running" && this.going.on) return this.running;
    if (this.status !== "running" && this.step >= this.plan.rates.steps) {
      this.set("done");
      return Promise.resolve();
    }
    const going = (this.going = { on: true });
    this.set("running");
    this.running = this.enqueue(() => this.run(going));
    return this.running;
  }

  /** Stops after the running steps and other work. Resolves when the checkpoint is saved. */
  async pause(): Promise<void> {
    this.going.on = false;
    await this.queue.idle;
  }

  /** Sets the learning rate of all further steps; `min_lr` changes by the same factor. The training must be paused. */
  setRate(lr: number): void {
    const { rates } = this.plan;
    if (this.status === "running") throw new PageError("Pause the training before changing its learning rate.");
    checkRate(lr);
    rates.min_lr *= lr / rates.lr;
    rates.lr = lr;
    if (!this.checkpoint) return;
    this.checkpoint.rates = { ...rates }; // for a later visit
    void this.keep(this.checkpoint);
  }

  /** Returns to the last checkpoint, or to the beginning if there is none, and pauses there. */
  back(): Promise<void> {
    this.away = false;
    return this.enqueue(async () => {
      this.trainer.close();
      try {
        await this.guarded(); // opens a new trainer
        this.problem = "";
        this.set(this.step >= this.plan.rates.steps ? "done" : "paused");
      } catch (error) {
        this.fail(error);
      }
    });
  }

  /** Saves a checkpoint and releases the textures to free memory on the device. `back` restores the training. */
  async leave(): Promise<void> {
    await this.pause();
    await this.enqueue(async () => {
      try {
        if (this.status !== "failed") await this.guarded(() => this.note());
      } catch (error) {
        if (error instanceof Diverged) this.fail(error);
      }
      this.trainer.close();
      this.away = true;
    });
  }

  /** True if it uses the device. */
  get busy(): boolean {
    return this.queue.restingMs < 0;
  }

  /** Runs `work` after all work queued earlier. */
  private enqueue(work: () => Promise<void>): Promise<void> {
    return this.queue.run(() => {
      if (this.over || this.away) throw new PageError(OVER);
      return work();
    });
  }

  private changed(): void {
    const { plan, status, problem, step, points, samples, scores, baselines, checkpoint, tokensPerS, doing } = this;
    this.snapshot.value = { plan, status, problem, step, points, samples, scores, baselines, checkpoint, tokensPerS, doing };
  }

  private set(status: Status): void {
    this.status = status;
    this.changed();
    if (status !== "running") this.onEnd();
  }

  private fail(error: unknown): void {
    this.problem = error instanceof Error ? error.message : String(error);
    const back = this.checkpoint ? `step ${this.checkpoint.step}` : "the beginning";
    if (error instanceof Diverged) this.problem += ` Go back to ${back} with a lower learning rate.`;
    this.doing = "";
    this.set("failed");
  }

  private async run(going: { on: boolean }): Promise<void> {
    const { rates } = this.plan;
    const left = () => this.step < rates.steps;
    this.problem = "";
    this.recent = [];
    this.set("running");
    try {
      do {
        while (going.on && left()) await this.guarded(() => (left() ? this.oneStep() : Promise.resolve()));
        await this.guarded(() => this.settle());
      } while (this.asked.length || (going.on && left())); // a lost context may have reset it to an earlier step
      this.set(left() ? "paused" : "done");
    } catch (error) {
      this.fail(error);
      for (const work of this.asked.splice(0)) await work().catch(() => {}); // callers that wait receive the error
    }
  }

  private async settle(): Promise<void> {
    this.take(await this.trainer.drain());
    await this.answer();
    await this.note();
  }

  /** Does the work queued for the time between two steps. After an error, the remaining work stays queued. */
  private async answer(): Promise<void> {
    for (let work = this.asked.shift(); work; work = this.asked.shift()) await work();
  }

  /** Runs `work` between two steps if the training runs, else now. */
  private between(work: () => Promise<unknown>): Promise<void> {
    if (this.status !== "running") {
      const now = () => this.guarded(async () => void (await work()));
      return this.enqueue(now).catch((error: unknown) => {
        if (error instanceof Diverged) this.fail(error);
        throw error;
      });
    }
    return new Promise((resolve, reject) => {
      const task = async () => {
        try {
          await work();
          resolve();
        } catch (error) {
          if (isLost(error, this.device)) this.asked.push(task); // retried when the context is restored
          else reject(error instanceof Error ? error : new Error(String(error)));
          throw error;
        }
      };
      this.asked.push(task);
    });
  }

  /**
   * Runs `work` between two steps, with the current parameters. The training continues afterwards, even if the work
   * fails. Work interrupted by a lost context is restarted.
   */
  async lend<T>(work: () => Promise<T>): Promise<T> {
    let outcome: { found: T } | { error: unknown } | null = null;
    await this.between(async () => {
      try {
        outcome = { found: await work() };
      } catch (error) {
        if (isLost(error, this.device)) throw error;
        outcome = { error };
      }
    });
    const done = must(outcome as { found: T } | { error: unknown } | null, "what was done");
    if ("error" in done) throw done.error;
    return done.found;
  }

  /** Runs `work`. After a lost graphics context, returns to the last checkpoint and runs it again. */
  private async guarded(work: () => Promise<void> = () => Promise.resolve()): Promise<void> {
    for (;;) {
      const { generation } = this.device;
      if (!this.trainer.gone) {
        try {
          await work();
          if (generation === this.device.generation && !this.device.lost) return;
        } catch (error) {
          if (!isLost(error, this.device) && generation === this.device.generation) throw error;
        }
      }
      this.doing = "waiting for the graphics context";
      this.changed();
      await this.device.restored;
      await pause();
      try {
        await this.open(this.checkpoint);
        this.doing = "";
        this.changed();
      } catch (error) {
        if (!isLost(error, this.device)) throw error;
      }
    }
  }

  /** Takes one more step and waits for its result. */
  async one(): Promise<void> {
    if (this.status === "running") return;
    await this.enqueue(async () => {
      this.plan.rates.steps = Math.max(this.plan.rates.steps, this.step + 1);
      this.recent = [];
      try {
        await this.guarded(async () => {
          await this.oneStep();
          this.take(await this.trainer.drain());
          await this.note();
        });
        if (this.status !== "running") this.set(this.step >= this.plan.rates.steps ? "done" : "paused");
      } catch (error) {
        this.fail(error);
      }
    });
  }

  /** Writes a sample now, by default with the settings of the automatic samples. */
  write(onText: (text: string) => void, wish: Partial<Wish> = {}): Promise<void> {
    return this.between(() => this.sample(onText, wish));
  }

  /** Computes the baselines' metrics, once. */
  count(progress: (share: number) => void = () => {}): Promise<Figures[]> {
    return (this.counted ??= baselineFigures(this.plan, this.bytes, progress).then((found) => {
      this.baselines = found;
      this.changed();
      return found;
    }));
  }

  /** Scores the model with its current parameters. `other` returns the metrics of another model on the same text. */
  async score(progress: ScoreProgress = () => {}, other: () => Promise<Figures | null> = () => Promise.resolve(null)): Promise<Score> {
    if (this.status === "failed") throw new PageError("The training has failed; go back to a checkpoint first.");
    const { first, targets } = scored(this.plan);
    const { validation, offer } = this.plan;
    progress("Counting n-grams", null);
    const baselines = await this.count((share) => progress("Counting n-grams", share));
    const bytes = sizeOf(validation, targets, this.bytes);
    const done: Score = { step: 0, window: offer.recipe.context, tokens: targets.length, bytes, figures: [], sample: "", copies: null, task: null };
    let ranks: Int32Array = new Int32Array();
    await this.between(async () => {
      const found = await this.trainer.predict(validation, first, (share) => progress("Predicting the held-back text", share));
      done.figures = [figures("model", found, bytes), ...baselines];
      ranks = found.ranks;
      done.step = this.step;
      done.sample = await this.compose((some) => progress("Writing", some / WRITTEN));
    });
    progress("Looking for copies", null);
    Object.assign(done, await judged(this.plan, this.bytes, done.sample, ranks));
    const beside = await other();
    if (beside) done.figures.push(beside);
    this.scores = [...this.scores.filter(({ step }) => step !== done.step), done].sort((a, b) => a.step - b.step);
    if (this.checkpoint) {
      this.checkpoint.scores = this.scores;
      await this.keep(this.checkpoint);
    }
    this.changed();
    return done;
  }

  /** Writes the score's sample, which is always the same for the same model. `glgpt/scoring/suite.py` writes it too. */
  private async compose(progress: (done: number) => void): Promise<string> {
    const { context } = this.plan.offer.recipe;
    const ids = this.encode("\n");
    const given = ids.length;
    const end = this.plan.bpe ? 0 : -1;
    let ended = false;
    while (!ended && ids.length - given < WRITTEN) {
      const window = ids.slice(-Math.max(1, Math.floor(context / 2)));
      const wanted = Math.max(1, Math.min(WRITTEN - (ids.length - given), context - window.length));
      for await (const id of this.trainer.generate(window, wanted, { temperature: 0.8, topK: null, topP: null, seed: ids.length })) {
        ended = id === end;
        if (ended) break;
        ids.push(id);
      }
      progress(ids.length - given);
    }
    return this.decode(ids.slice(given));
  }

  /** Saves a checkpoint of the current step. */
  save(): Promise<void> {
    return this.between(() => this.note());
  }

  private async oneStep(): Promise<void> {
    const { train, rates, seed, offer, evalEvery, sampleEvery } = this.plan;
    const { batch, context } = offer.recipe;
    const step = this.step + 1;
    const first = starts(seed, step, batch, train.length - context);
    if (!this.recent.length && !this.cold) this.recent.push([this.step, performance.now() - this.apart]);
    this.take(await this.trainer.submit(train, first, rateAt(rates, step)));
    if (this.cold) {
      this.take(await this.trainer.drain());
      this.recent = [];
      this.cold = false;
    }
    const due = (every: number) => every > 0 && (step % every === 0 || step === rates.steps);
    const late = performance.now() - this.keptAt > KEEP_MS;
    if (!due(evalEvery) && !due(sampleEvery) && !late && !this.asked.length) return;
    this.take(await this.trainer.drain());
    const began = performance.now();
    if (due(evalEvery)) await this.evaluate();
    if (due(sampleEvery)) await this.sample();
    await this.answer();
    if (late) await this.note();
    this.apart += performance.now() - began;
  }

  private take(results: readonly Arrived[]): void {
    const { batch, context } = this.plan.offer.recipe;
    for (const { at, ...result } of results) {
      const time = at - this.apart;
      if (this.recent.length > 1 && time - this.recent.at(-1)![1] < AT_ONCE) this.recent.pop();
      this.recent.push([result.step, time]);
      while (this.recent.length > 2 && result.step - this.recent[0]![0] > RECENT) this.recent.shift();
      const [a, b] = [this.recent[0]!, this.recent.at(-1)!];
      if (b[1] > a[1]) this.tokensPerS = (1000 * (b[0] - a[0]) * batch * context) / (b[1] - a[1]);
      const point = { ...result, lr: rateAt(this.plan.rates, result.step), tokensPerS: this.tokensPerS };
      this.points.push(point);
      this.onStep(point);
      if (!Number.isFinite(result.loss) || !Number.isFinite(result.gradNorm)) {
        throw new Diverged(`Step ${result.step}: the loss is ${result.loss} and the gradient's norm ${result.gradNorm}.`);
      }
      this.changed();
    }
  }

  private async evaluate(): Promise<void> {
    const { validation, offer } = this.plan;
    const { context } = offer.recipe;
    if (validation.length <= context) return;
    const first = fixedWindows(validation.length, context, EVAL_TOKENS);
    const nats = await this.trainer.evaluate(validation, first);
    let size = 0;
    for (const at of first) for (let t = 1; t <= context; t++) size += this.bytes[validation[at + t]!]?.length ?? 0;
    const found = { validation: nats, bits: (nats * first.length * context) / Math.LN2 / Math.max(1, size) };
    const last = this.points.at(-1);
    if (last) Object.assign(last, found);
    else this.points.push({ step: 0, loss: NaN, gradNorm: NaN, lr: 0, tokensPerS: 0, ...found });
    this.changed();
  }

  /** Writes a sample with the current parameters. At a full context, it continues from the context's later half. */
  private async sample(onText: (text: string) => void = () => {}, wish: Partial<Wish> = {}): Promise<string> {
    const { seed, offer } = this.plan;
    const { prompt, tokens, temperature } = { prompt: this.prompt, tokens: this.sampleTokens, temperature: this.temperature, ...wish };
    const step = this.step;
    const ids = this.encode(prompt);
    const given = ids.length;
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    const entry: Sample = { step, prompt, text: "" };
    while (ids.length - given < tokens) {
      const window = ids.slice(-Math.max(1, Math.floor(offer.recipe.context / 2)));
      const wanted = Math.min(tokens - (ids.length - given), offer.recipe.context - window.length);
      const drawn = starts(seed, step, 1, 2 ** 31)[0]! + ids.length;
      const settings = { temperature, topK: null, topP: null, seed: drawn };
      for await (const id of this.trainer.generate(window, Math.max(1, wanted), settings)) {
        ids.push(id);
        entry.text += decoder.decode(this.bytes[id], { stream: true });
        onText(entry.text);
      }
    }
    this.samples.push(entry);
    this.changed();
    return entry.text;
  }

  encode(text: string): number[] {
    const ids = Array.from(encodeText(text, this.plan.bpe));
    return ids.length ? ids : [this.plan.train[0]!];
  }

  decode(ids: Iterable<number>): string {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let text = "";
    for (const id of ids) text += decoder.decode(this.bytes[id], { stream: true });
    return text + decoder.decode();
  }

  private async note(): Promise<void> {
    const step = this.step;
    if (this.checkpoint?.step === step && this.checkpoint.about?.lr === this.plan.rates.lr) return;
    const state = await this.trainer.state(this.plan.rates.lr);
    const { config, recipe } = this.plan.offer;
    const { lossScale } = this.trainer;
    const about = { config, recipe, lr: this.plan.rates.lr, seed: this.plan.seed, step, ...(lossScale && { loss_scale: lossScale }) };
    const rates = { ...this.plan.rates };
    this.checkpoint = { step, state, about, rates, points: this.points.slice(), samples: this.samples.slice(-20), scores: this.scores };
    this.keptAt = performance.now();
    await this.keep(this.checkpoint);
  }

  /** Returns the files of a folder that the desktop loads; after a failure, of the last checkpoint. */
  async files(): Promise<Files> {
    if (this.status !== "failed" || !this.checkpoint) await this.save();
    const { text, origin, offer, bpe } = this.plan;
    const files = modelFiles(this.checkpoint!.state, offer, bpe);
    if (text === null || !origin) return files;
    const bytes = new TextEncoder().encode(text);
    return { ...files, "source.json": written({ ...origin, bytes: bytes.length, sha256: await digest(bytes) }) };
  }

  /** Returns the names of textures that the page can show: parameters, their moments and gradients. */
  textures(): string[] {
    return this.plan.offer.parameters.flatMap(({ name }) => [name, `d.${name}`, ...MOMENTS.map((m) => `${name}.${m}`)]);
  }

  async close(): Promise<void> {
    await this.pause();
    if (this.status !== "done") {
      this.problem = OVER;
      this.set("failed");
    }
    this.over = true;
    this.trainer.close();
  }
}
