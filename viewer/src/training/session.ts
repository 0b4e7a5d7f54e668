// The steps of a training: what is drawn, evaluated, sampled and kept when; paused, resumed, brought back after a loss.

import { ContextLost, type Device } from "../gl/device";
import { pause, Queue } from "../gl/wait";
import { digest } from "../engine/loader";
import type { Offer } from "../engine/manifest";
import type { Weights } from "../engine/model";
import { must, PageError } from "../gl/errors";
import { checkRate, fixedWindows, rateAt, starts, type Ids, type Rates } from "./batches";
import { encodeText, type Bpe } from "./bpe";
import { MOMENTS, modelFiles, written, type About, type Files } from "./files";
import { figures, sizeOf, type Figures } from "./predictions";
import { baselineFigures, judged, scored, WRITTEN, type Score, type ScoreProgress } from "./score";
import { tokenBytes } from "./tokenise";
import type { Origin } from "./training";
import { Diverged, isLost, type Arrived, type StepResult, type Trainer } from "./trainer";

const RECENT = 30; // steps over which the speed is measured
const AT_ONCE = 1; // ms between results that came together: some drivers tell of several steps at a time
const KEEP_MS = 20_000; // from one checkpoint to the next
const EVAL_TOKENS = 8192;
const OVER = "The training was reset, or another took its place.";

export interface Plan {
  offer: Offer;
  /** That of its program: what shares its textures must be recorded for the same. */
  kernel: string;
  /** Where the ids come from, if they come from a text. */
  text: string | null;
  origin: Origin | null;
  bpe: Bpe | null;
  train: Ids;
  validation: Ids;
  /** The share of the text's bytes, the last ones, that is held back to validate and score on. */
  share: number;
  rates: Rates;
  seed: number;
  /** Steps from one validation to the next, and one sample; 0: none. */
  evalEvery: number;
  sampleEvery: number;
}

export interface Point extends StepResult {
  lr: number;
  tokensPerS: number;
  /** Nats a token and bits a byte, where it was due. */
  validation?: number;
  bits?: number;
}

/** A text to be written. */
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

/** All that a training continues from. */
export interface Checkpoint {
  step: number;
  state: Uint8Array<ArrayBuffer>;
  about: About | null;
  /** What a later visit continues with. */
  rates?: Rates;
  points: Point[];
  samples: Sample[];
  scores?: Score[];
}

export type Status = "paused" | "running" | "done" | "failed";

export class Session {
  status: Status = "paused";
  problem = "";
  points: Point[] = [];
  samples: Sample[] = [];
  scores: Score[] = [];
  /** Chance and n-gram models on the text held back; empty until they are counted, or where it is too short. */
  baselines: Figures[] = [];
  /** The text that a sample continues from. */
  prompt = "\n";
  sampleTokens = 120;
  temperature = 0.8;
  tokensPerS = 0;
  checkpoint: Checkpoint | null = null;
  /** What it is busy with besides steps. */
  doing = "";
  /** Called after each change: a step, a sample, another status. */
  readonly listeners = new Set<() => void>();
  onStep: (point: Point) => void = () => {};
  /** Called when it has stopped, for whatever reason. */
  onEnd: () => void = () => {};
  keep: (checkpoint: Checkpoint) => Promise<void> = () => Promise.resolve();
  trainer!: Trainer;
  readonly bytes: Uint8Array[];
  /** How often a trainer was made for it. */
  private opened = 0;
  private counted: Promise<Figures[]> | null = null;
  private going = { on: false }; // what `pause` switches off: the last start's
  private over = false; // closed
  private away = false; // has made room
  private readonly asked: (() => Promise<void>)[] = [];
  private running: Promise<void> = Promise.resolve();
  private readonly queue = new Queue(); // two samples at once would share their caches
  /**
   * (step, when it was done) of the last steps, on a clock that stands still for whatever is not a step; before them, of
   * the step behind which the device was idle.
   */
  private recent: [number, number][] = [];
  private apart = 0;
  private cold = true; // the next step compiles
  private keptAt = performance.now();

  constructor(
    readonly plan: Plan,
    private readonly device: Device,
    /** Makes a trainer on the device as it is now, and compiles it. */
    private readonly build: (begin: boolean) => Promise<Trainer>,
  ) {
    this.bytes = tokenBytes(plan.bpe);
  }

  /** Makes the trainer: afresh, or from a checkpoint. */
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
        if (this.plan.sampleEvery) await this.sample(); // noise: what it begins from
      }
    } catch (error) {
      this.trainer.close();
      throw error;
    }
  }

  get step(): number {
    return this.trainer.steps;
  }

  /** What another player needs to play the model as it is now. */
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

  /** Takes steps until all are done, `pause` or an error; resolves then. */
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

  /** Ends after the steps under way, and whatever else is; resolves when the checkpoint is kept. */
  async pause(): Promise<void> {
    this.going.on = false;
    await this.queue.idle;
  }

  /** Gives all steps to come another learning rate, which falls to as small a share of itself. Not while it runs. */
  setRate(lr: number): void {
    const { rates } = this.plan;
    if (this.status === "running") throw new PageError("Pause the training first; then its learning rate can change.");
    checkRate(lr);
    rates.min_lr *= lr / rates.lr;
    rates.lr = lr;
    if (!this.checkpoint) return;
    this.checkpoint.rates = { ...rates }; // a later visit continues with it too
    void this.keep(this.checkpoint);
  }

  /** Goes back to the last checkpoint, or to the beginning where there is none, and waits there. */
  back(): Promise<void> {
    this.away = false;
    return this.enqueue(async () => {
      this.trainer.close();
      try {
        await this.guarded(); // opens it anew
        this.problem = "";
        this.set(this.step >= this.plan.rates.steps ? "done" : "paused");
      } catch (error) {
        this.fail(error);
      }
    });
  }

  /** Makes room on the device; `back` brings it to where it was. */
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

  /** Whether it uses the device. */
  get busy(): boolean {
    return this.queue.restingMs < 0;
  }

  /** Does `work` when all that was asked for before is done. */
  private enqueue(work: () => Promise<void>): Promise<void> {
    return this.queue.run(() => {
      if (this.over || this.away) throw new PageError(OVER);
      return work();
    });
  }

  private changed(): void {
    this.listeners.forEach((listen) => listen());
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
      } while (this.asked.length || (going.on && left())); // it may have been set back
      this.set(left() ? "paused" : "done");
    } catch (error) {
      this.fail(error);
      for (const work of this.asked.splice(0)) await work().catch(() => {}); // whoever waits hears of it
    }
  }

  private async settle(): Promise<void> {
    this.take(await this.trainer.drain());
    await this.answer();
    await this.note();
  }

  /** Does what waits between two steps; what an error leaves undone continues waiting. */
  private async answer(): Promise<void> {
    for (let work = this.asked.shift(); work; work = this.asked.shift()) await work();
  }

  /** Does `work` between two steps where it is running, else now. */
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
          if (isLost(error, this.device)) this.asked.push(task); // once more when the context is back
          else reject(error instanceof Error ? error : new Error(String(error)));
          throw error;
        }
      };
      this.asked.push(task);
    });
  }

  /**
   * Does `work` with the parameters as they are, between two steps; the training continues afterwards, whatever came of
   * it. Work that a lost context interrupts is done again from its beginning.
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

  /** Goes back to the last checkpoint where the browser took the graphics context away, and does `work` once more. */
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

  /** One step more, and its result. */
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

  /** A sample now, by default as those that come as it learns. */
  write(onText: (text: string) => void, wish: Partial<Wish> = {}): Promise<void> {
    return this.between(() => this.sample(onText, wish));
  }

  /** Counts the baselines, once. */
  count(progress: (share: number) => void = () => {}): Promise<Figures[]> {
    return (this.counted ??= baselineFigures(this.plan, this.bytes, progress).then((found) => {
      this.baselines = found;
      this.changed();
      return found;
    }));
  }

  /** The score of the model as it is now; `other` gives the figures of another model on the same text. */
  async score(progress: ScoreProgress = () => {}, other: () => Promise<Figures | null> = () => Promise.resolve(null)): Promise<Score> {
    if (this.status === "failed") throw new PageError("The training has stopped; go back to a checkpoint first.");
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

  /** The same sample for the same model each time: `glgpt/scoring/suite.py` writes it too. */
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

  /** Keeps a checkpoint of the steps taken so far. */
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

  /** A text as the model writes it now; where its context is full, it continues from the later half of that. */
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

  /** The folder that the desktop loads; of the last checkpoint where the training failed behind it. */
  async files(): Promise<Files> {
    if (this.status !== "failed" || !this.checkpoint) await this.save();
    const { text, origin, offer, bpe } = this.plan;
    const files = modelFiles(this.checkpoint!.state, offer, bpe);
    if (text === null || !origin) return files;
    const bytes = new TextEncoder().encode(text);
    return { ...files, "source.json": written({ ...origin, bytes: bytes.length, sha256: await digest(bytes) }) };
  }

  /** Textures that a look inside may show: parameters, their moments and gradients. */
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
