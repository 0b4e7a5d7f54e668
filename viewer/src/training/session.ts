// Runs a training: schedules evaluations, samples and checkpoints; pauses, resumes and recovers from a lost context.

import { computed, effect, signal, type ReadonlySignal } from "@preact/signals-core";
import type { Weights } from "../runtime/engine/model";
import { ContextLost, type Device } from "../runtime/gl/device";
import { must, PageError } from "../runtime/gl/errors";
import { pause, Queue } from "../runtime/gl/wait";
import { checkRate, rateAt, starts } from "./batches";
import { Between } from "./between";
import { filesOf, readState, type Checkpoint, type Point } from "./checkpoint";
import { MOMENTS, type Files } from "./files";
import { observe } from "./observed";
import type { Plan } from "./plan";
import { Scorer } from "./scorer";
import { Speed } from "./speed";
import { tokenBytes } from "./tokenise";
import { Diverged, isLost, type Arrived, type Trainer } from "./trainer";
import { validate } from "./validate";
import { Writer, type Sample, type SampleOptions } from "./writer";

const KEEP_MS = 20_000; // ms between two checkpoints
const OVER = "The training was reset or replaced by another.";

export type Status = "paused" | "running" | "done" | "failed";

/** The state of a session that a page shows. */
export type SessionState = Readonly<
  Pick<Session, "plan" | "status" | "problem" | "step" | "points" | "samples" | "checkpoint" | "tokensPerS" | "doing"> &
    Pick<Scorer, "scores" | "baselines">
>;

export class Session {
  status: Status = "paused";
  problem = "";
  points: readonly Point[] = [];
  samples: readonly Sample[] = [];
  /** The text that a sample continues. */
  prompt = "\n";
  sampleTokens = 120;
  temperature = 0.8;
  checkpoint: Checkpoint | null = null;
  /** Names the current activity if it is not a training step; the page shows the name. "": steps, or no activity. */
  doing = "";
  private readonly shown = computed(() => this.read());
  private readonly stepped = signal<Point | null>(null);
  trainer!: Trainer;
  readonly writer: Writer;
  readonly scorer = new Scorer(this);
  private readonly speed: Speed;
  /** Number of trainers that were created for this session. */
  private opened = 0;
  private going = { on: false }; // the flag of the latest `start`; `pause` clears it
  private over = false; // the session was closed
  /** True if `leave` has released the textures. */
  away = false;
  private readonly asked = new Between((error) => isLost(error, this.device)); // work to run between two steps
  private running: Promise<void> = Promise.resolve();
  private readonly queue = new Queue(); // runs one task at a time, because two samples at once would share caches
  private cold = true; // the driver may still compile in the next step
  private keptAt = performance.now();

  constructor(
    readonly plan: Plan,
    private readonly device: Device,
    /** Creates a trainer on the device's current context and compiles its shaders. `begin`: initializes parameters. */
    private readonly build: (begin: boolean) => Promise<Trainer>,
    /** Stores a checkpoint for a later visit. */
    private readonly keep: (checkpoint: Checkpoint) => Promise<void>,
  ) {
    const { batch, context } = plan.offer.recipe;
    this.speed = new Speed(batch * context);
    this.writer = new Writer(plan, tokenBytes(plan.bpe), () => this.trainer);
    observe(this, ["status", "problem", "points", "samples", "checkpoint", "doing", "trainer"]);
  }

  /** Creates the trainer, with new parameters or from a checkpoint. */
  async open(from: Checkpoint | null = null): Promise<void> {
    this.checkpoint = from;
    this.speed.reset();
    this.cold = true;
    this.points = [...(from?.points ?? [])];
    this.samples = [...(from?.samples ?? [])];
    this.scorer.scores = [...(from?.scores ?? [])];
    this.trainer = await this.build(!from);
    this.opened++;
    try {
      if (from) this.trainer.restore(from.state, from.about);
      else {
        if (this.plan.evalEvery) await this.evaluate();
        if (this.plan.sampleEvery) await this.sample(); // the untrained model writes noise
      }
    } catch (error) {
      this.trainer.close();
      throw error;
    }
  }

  get tokensPerS(): number {
    return this.speed.tokensPerS;
  }

  get step(): number {
    return this.trainer.steps;
  }

  /** The state after the latest change (a step, a sample, a new status); null until the session is open. */
  get state(): ReadonlySignal<SessionState | null> {
    return this.shown;
  }

  private read(): SessionState | null {
    if (!(this.trainer as Trainer | undefined)) return null;
    const { scores, baselines } = this.scorer;
    const { plan, status, problem, step, points, samples, checkpoint, tokensPerS, doing } = this;
    return { plan, status, problem, step, points, samples, scores, baselines, checkpoint, tokensPerS, doing };
  }

  /** The latest step's results; null: no step yet. */
  get latest(): ReadonlySignal<Point | null> {
    return this.stepped;
  }

  /** The current parameters, for players of the model's other programs (generation, activations). */
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
      this.status = "done";
      return Promise.resolve();
    }
    const going = (this.going = { on: true });
    this.status = "running";
    this.running = this.enqueue(() => this.run(going));
    return this.running;
  }

  /** Resolves to the state once all steps are done or the training has failed. Pauses do not resolve it. */
  ended(): Promise<SessionState> {
    return new Promise((resolve) => {
      const unfollow = effect(() => {
        const found = this.state.value;
        if (found?.status !== "done" && found?.status !== "failed") return;
        queueMicrotask(() => unfollow());
        resolve(found);
      });
    });
  }

  /** Stops after the unfinished steps and queued work. Resolves when the checkpoint is saved. */
  async pause(): Promise<void> {
    this.going.on = false;
    await this.queue.idle;
  }

  /** Sets the learning rate of all further steps; `min_lr` changes by the same factor. The training must not run. */
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
        this.status = this.step >= this.plan.rates.steps ? "done" : "paused";
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

  /** True if the session uses the device. */
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

  private fail(error: unknown): void {
    this.problem = error instanceof Error ? error.message : String(error);
    const back = this.checkpoint ? `step ${this.checkpoint.step}` : "the beginning";
    if (error instanceof Diverged) this.problem += ` Go back to ${back} with a lower learning rate.`;
    this.doing = "";
    this.status = "failed";
  }

  private async run(going: { on: boolean }): Promise<void> {
    const { rates } = this.plan;
    const left = () => this.step < rates.steps;
    this.problem = "";
    this.speed.reset();
    this.status = "running";
    try {
      do {
        while (going.on && left()) await this.guarded(() => (left() ? this.oneStep() : Promise.resolve()));
        await this.guarded(() => this.settle());
      } while (this.asked.waits || (going.on && left())); // a lost context may reset the training to an earlier step
      this.status = left() ? "paused" : "done";
    } catch (error) {
      this.fail(error);
      await this.asked.flush();
    }
  }

  private async settle(): Promise<void> {
    this.take(await this.trainer.drain());
    await this.asked.run();
    await this.note();
  }

  /** Runs `work` between two steps if the training runs, else after the work queued earlier. */
  between(work: () => Promise<unknown>): Promise<void> {
    if (this.status === "running") return this.asked.add(work);
    const now = () => this.guarded(async () => void (await work()));
    return this.enqueue(now).catch((error: unknown) => {
      if (error instanceof Diverged) this.fail(error);
      throw error;
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

  /** Runs `work`. After a lost graphics context, returns to the last checkpoint and runs `work` again. */
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
      await this.device.restored;
      await pause();
      try {
        await this.open(this.checkpoint);
        this.doing = "";
      } catch (error) {
        if (!isLost(error, this.device)) throw error;
      }
    }
  }

  /** Takes one more step and waits for its result. Does nothing while the training runs. */
  async one(): Promise<void> {
    if (this.status === "running") return;
    await this.enqueue(async () => {
      this.plan.rates.steps = Math.max(this.plan.rates.steps, this.step + 1);
      this.speed.reset();
      try {
        await this.guarded(async () => {
          await this.oneStep();
          this.take(await this.trainer.drain());
          await this.note();
        });
        if (this.status !== "running") this.status = this.step >= this.plan.rates.steps ? "done" : "paused";
      } catch (error) {
        this.fail(error);
      }
    });
  }

  /** Writes a sample now, by default with the settings of the automatic samples. */
  write(onText: (text: string) => void, options: Partial<SampleOptions> = {}): Promise<void> {
    return this.between(() => this.sample(onText, options));
  }

  /** Writes a sample with the settings of automatic samples, which `options` may replace. */
  private async sample(onText: (text: string) => void = () => {}, options: Partial<SampleOptions> = {}): Promise<void> {
    const { prompt, sampleTokens: tokens, temperature } = this;
    const sample = await this.writer.sample(this.step, { prompt, tokens, temperature, ...options }, onText);
    this.samples = [...this.samples, sample];
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
    if (!this.cold) this.speed.begin(this.step);
    this.take(await this.trainer.submit(train, first, rateAt(rates, step)));
    if (this.cold) {
      this.take(await this.trainer.drain());
      this.speed.reset();
      this.cold = false;
    }
    const due = (every: number) => every > 0 && (step % every === 0 || step === rates.steps);
    const late = performance.now() - this.keptAt > KEEP_MS;
    if (!due(evalEvery) && !due(sampleEvery) && !late && !this.asked.waits) return;
    this.take(await this.trainer.drain());
    const began = performance.now();
    if (due(evalEvery)) await this.evaluate();
    if (due(sampleEvery)) await this.sample();
    await this.asked.run();
    if (late) await this.note();
    this.speed.exclude(began);
  }

  private take(results: readonly Arrived[]): void {
    for (const { at, ...result } of results) {
      this.speed.add(result.step, at);
      const point = { ...result, lr: rateAt(this.plan.rates, result.step), tokensPerS: this.tokensPerS };
      this.points = [...this.points, point];
      this.stepped.value = point;
      if (!Number.isFinite(result.loss) || !Number.isFinite(result.gradNorm)) {
        throw new Diverged(
          `Step ${result.step}: the loss is ${result.loss} and the gradient's norm is ${result.gradNorm}.`,
        );
      }
    }
  }

  private async evaluate(): Promise<void> {
    const found = await validate(this.plan, this.trainer, this.writer.bytes);
    if (!found) return;
    const last = this.points.at(-1);
    if (last) Object.assign(last, found);
    const points = last ? this.points : [{ step: 0, loss: NaN, gradNorm: NaN, lr: 0, tokensPerS: 0, ...found }];
    this.points = [...points];
  }

  private async note(): Promise<void> {
    const { step, plan } = this;
    if (this.checkpoint?.step === step && this.checkpoint.about?.lr === plan.rates.lr) return;
    const found = await readState(plan, this.trainer);
    this.checkpoint = {
      ...found,
      points: this.points.slice(),
      samples: this.samples.slice(-20),
      scores: this.scorer.scores,
    };
    this.keptAt = performance.now();
    await this.keep(this.checkpoint);
  }

  /** Saves the scores with the checkpoint. */
  async keepScores(): Promise<void> {
    if (this.checkpoint && !this.over) {
      this.checkpoint.scores = this.scorer.scores;
      await this.keep(this.checkpoint);
    }
  }

  /** Returns the files of a model folder that the desktop can load. After a failure, uses the last checkpoint. */
  async files(): Promise<Files> {
    if (this.status !== "failed" || !this.checkpoint) await this.save();
    return filesOf(this.plan, this.checkpoint!);
  }

  /** Returns the names of textures that the page can show: parameters, their moments and gradients. */
  textures(): string[] {
    return this.plan.offer.parameters.flatMap(({ name }) => [name, `d.${name}`, ...MOMENTS.map((m) => `${name}.${m}`)]);
  }

  async close(): Promise<void> {
    await this.pause();
    if (this.status !== "done") {
      this.problem = OVER;
      this.status = "failed";
    }
    this.over = true;
    this.trainer.close();
  }
}
