// Manages training in the page: the current session and its saved state.

import { effect, signal, untracked } from "@preact/signals-core";
import { pause, Queue } from "../runtime/gl/wait";
import type { Offer } from "../runtime/engine/manifest";
import type { Model } from "../runtime/engine/model";
import { PageError } from "../runtime/gl/errors";
import type { Program } from "../runtime/gl/program";
import type { Ids, Rates } from "./batches";
import type { Bpe } from "./bpe";
import { zip, type Files } from "./files";
import type { Checkpoint, Point } from "./checkpoint";
import { Offers } from "./offers";
import type { Plan } from "./plan";
import { Session } from "./session";
import { checkConfig, checkedIds, checkText, rates, splitIds, type TrainConfig } from "./train-config";
import type { Store } from "./store";
import { tokenise } from "./tokenise";
import { TrainedModels } from "./trained-models";
import { fitting, isLost, Trainer } from "./trainer";

export interface TrainOptions {
  text?: string;
  ids?: ArrayLike<number>;
  config?: TrainConfig;
  origin?: Origin;
  steps?: number;
  seed?: number;
  onStep?: (point: Point) => void;
  /** Called with the progress of the tokenizer, from 0 to 1. */
  onProgress?: (share: number) => void;
}

/** The source of a text and its clean-up steps, saved with the model. */
export interface Origin {
  source: string;
  /** The time of the fetch; null for a text that came with the page or from the user. */
  date: string | null;
  cleaned: string[];
}

export interface Trained {
  step: number;
  loss: number;
  validation: number | null;
}

/** The part of a saved training that does not change from step to step. It is saved next to the checkpoint. */
interface Run {
  id: string;
  preset: string;
  tokenizer: string;
  text: string | null;
  origin?: Origin | null;
  ids: Ids | null;
  bpe: Bpe | null;
  validation: number;
  rates: Rates;
  seed: number;
  evalEvery: number;
  sampleEvery: number;
  /** The kernel with which the training began; kept if possible, because another kernel sums in another order. */
  kernel?: string;
}

/** The curves of the previous training, for comparison. */
export interface Earlier {
  /** Describes the training: its text, size and learning rate. */
  name: string;
  tokenizer: string;
  points: { step: number; loss: number; validation?: number }[];
}

const EARLIER = "earlier";
const MIN_KEPT_POINTS = 5; // minimum points of a curve that is saved
const MAX_KEPT_POINTS = 1000; // approximate maximum of saved points

export class Training {
  readonly offers: Offers;
  readonly models: TrainedModels;
  private readonly signals = {
    session: signal<Session | null>(null),
    earlier: signal<Earlier | null>(null),
    unkept: signal(""),
  };

  private readonly queue = new Queue(); // runs changes of the session one at a time

  constructor(
    private readonly model: () => Model,
    private readonly store: Store,
    /** Resolves when the page has measured its device or has stopped trying. */
    measured: () => Promise<void>,
  ) {
    this.offers = new Offers(model, measured);
    this.models = new TrainedModels(model, this.offers);
  }

  /** The current session; null: none. Reading this property, `earlier` or `unkept` subscribes to its changes. */
  get session(): Session | null {
    return this.signals.session.value;
  }

  /** The curves of the previous training; null: none were saved. */
  get earlier(): Earlier | null {
    return this.signals.earlier.value;
  }

  /** The reason why the browser does not save checkpoints beyond this visit; "" if it saves them. */
  get unkept(): string {
    return this.signals.unkept.value;
  }

  /** True if training uses the device. */
  get busy(): boolean {
    return this.queue.restingMs < 0 || (this.session?.busy ?? false);
  }

  /** Creates a training, which replaces the previous one. Does not start it. */
  create(options: TrainOptions): Promise<Session> {
    return this.queue.run(() => this.begin(options));
  }

  /** Runs `work` with the current session, which is not replaced while `work` runs. */
  hold<T>(work: (session: Session) => Promise<T>): Promise<T> {
    return this.queue.run(() => work(this.current()));
  }

  /** Resolves when all queued changes of the session are done. */
  async settled(): Promise<void> {
    await this.queue.idle;
  }

  private async begin(options: TrainOptions): Promise<Session> {
    await this.offers.ready();
    const { config = {}, text, ids, seed = 0 } = options;
    checkConfig(config);
    const offer = this.offers.offer(config.preset, config.tokenizer);
    if ((text === undefined) === (ids === undefined)) {
      throw new PageError("Give either a text or ids to train on, and only one of them.");
    }
    if (text !== undefined) checkText(text);
    if (!(Number.isInteger(seed) && seed >= 0 && seed < 2 ** 32)) {
      throw new PageError(`Seed is ${seed}; it must be an integer from 0 to 2^32 - 1.`);
    }
    const run: Run = {
      id: crypto.getRandomValues(new Uint32Array(2)).join(),
      preset: offer.name,
      tokenizer: offer.tokenizer,
      text: text ?? null,
      origin: options.origin ?? null,
      ids: ids ? checkedIds(ids, offer) : null,
      bpe: null,
      validation: config.validation ?? (text === undefined ? 0 : 0.1),
      rates: rates(offer, { ...config, ...(options.steps === undefined ? {} : { steps: options.steps }) }),
      seed,
      evalEvery: config.evalEvery ?? 50,
      sampleEvery: config.sampleEvery ?? 50,
    };
    return this.open(run, null, options.onProgress, options.onStep);
  }

  /**
   * Returns the current session. If there is none, opens a training that an earlier visit saved, and returns its paused
   * session. Returns null if no saved training has a size and a tokenizer of this page.
   */
  restore(): Promise<Session | null> {
    return this.queue.run(() => this.restored());
  }

  private async restored(): Promise<Session | null> {
    if (this.session) return this.session; // a view and a script may both call `restore`
    await this.offers.ready();
    this.signals.earlier.value ??= (await this.store.kept<Earlier>(EARLIER).catch(() => undefined)) ?? null;
    const offered = (run: Run) =>
      this.offers.index.sizes.some((s) => s.name === run.preset && s.tokenizer === run.tokenizer);
    const kept = await this.store.takeRun<{ run: Run; checkpoint: Checkpoint }>(offered).catch(() => null);
    return kept && this.open(kept.run, kept.checkpoint);
  }

  /** Opens a paused session that continues a saved model on the given text. Replaces the current session. */
  load(files: Files, text: string): Promise<Session> {
    return this.queue.run(() => this.loaded(files, text));
  }

  private async loaded(files: Files, text: string): Promise<Session> {
    await this.offers.ready();
    const { state, about, bpe, offer } = this.models.read(files);
    const run: Run = {
      id: crypto.getRandomValues(new Uint32Array(2)).join(),
      preset: offer.name,
      tokenizer: offer.tokenizer,
      text,
      ids: null,
      bpe,
      validation: 0.1,
      rates: rates(offer, {}),
      seed: about?.seed ?? 0,
      evalEvery: 50,
      sampleEvery: 50,
    };
    run.rates.steps = Math.max(run.rates.steps, about?.step ?? 0);
    return this.open(run, { step: about?.step ?? 0, state, about, points: [], samples: [] });
  }

  /**
   * Opens a session. First checks everything that can be checked while the previous session continues. The previous
   * session then releases its textures, because a device may not have memory for the textures of both sessions. If the
   * new session cannot be built, the previous session is restored.
   */
  private async open(
    run: Run,
    from: Checkpoint | null,
    progress?: (share: number) => void,
    onStep?: (point: Point) => void,
  ): Promise<Session> {
    const offer = this.offers.offer(run.preset, run.tokenizer);
    const { context } = offer.recipe;
    const job = { text: run.text ?? "", validation: run.validation, tokenizer: run.tokenizer, bpe: run.bpe };
    const found = run.ids ? { bpe: run.bpe, ...splitIds(run.ids, run.validation) } : await tokenise(job, progress);
    const bpe = (run.bpe = found.bpe);
    if (found.train.length <= context) {
      throw new PageError(
        `The training text has ${found.train.length} tokens, too few for a context of ${context}; use a longer text.`,
      );
    }
    const { program, kernel } = await this.offers.program(offer, run.kernel);
    run.kernel = kernel;
    if (from) fitting(offer, from.state, from.about);
    const { seed, evalEvery, sampleEvery } = run;
    const planned = { ...run.rates, ...from?.rates };
    const plan: Plan = {
      offer,
      kernel,
      text: run.text,
      origin: run.origin ?? null,
      bpe,
      train: found.train,
      validation: found.validation,
      share: run.validation,
      rates: planned,
      seed,
      evalEvery,
      sampleEvery,
    };
    const session = new Session(
      plan,
      this.model().device,
      (begin) => this.trainer(plan, program, begin),
      (checkpoint) => this.keep(run, checkpoint),
    );
    if (onStep)
      effect(() => {
        const point = session.latest.value;
        if (point) untracked(() => onStep(point));
      });
    const before = this.session;
    if (before?.away) throw new PageError("A federation trains in this page; leave it first.");
    await before?.leave();
    try {
      await this.acrossLosses(() => session.open(from));
    } catch (error) {
      if (before && before.status !== "failed") await before.back();
      throw error;
    }
    this.leaveCurves();
    await before?.close();
    this.signals.session.value = session;
    return session;
  }

  /** Creates a trainer for a federation whose model has this digest. The current session releases its textures. */
  lend(digest: string, seed: number): Promise<{ trainer: Trainer; offer: Offer }> {
    return this.queue.run(async () => {
      const { sizes } = await this.offers.ready();
      const offer = sizes.find((s) => s.digest === digest);
      if (!offer) throw new PageError("This page cannot train the session's model; open the session's own link.");
      const { program } = await this.acrossLosses(() => this.offers.program(offer));
      if (!this.session?.away) await this.session?.leave(); // a session that left for an earlier trainer is still away
      return { trainer: await this.acrossLosses(() => this.trainer({ offer, seed }, program, true)), offer };
    });
  }

  /** Closes a trainer that `lend` returned (undefined: `lend` failed), and restores the session's textures. */
  giveBack(trainer: Trainer | undefined): void {
    void this.queue.run(async () => {
      trainer?.close();
      if (this.session?.away) await this.session.back();
    });
  }

  get renderer(): string {
    return this.model().device.renderer;
  }

  private async trainer(
    { offer, seed }: Pick<Plan, "offer" | "seed">,
    program: Program,
    begin: boolean,
  ): Promise<Trainer> {
    const { device, options, drawFlops, manifest } = this.model();
    const trainer = new Trainer(device, offer, program, options, seed, { ...manifest.tuning, draw_flops: drawFlops });
    try {
      await trainer.open(begin);
    } catch (error) {
      trainer.close();
      throw error;
    }
    return trainer;
  }

  /** Runs `work`, and restarts it if the graphics context is lost while it runs. */
  private async acrossLosses<T>(work: () => Promise<T>): Promise<T> {
    const { device } = this.model();
    for (;;) {
      await device.restored;
      const { generation } = device;
      try {
        return await work();
      } catch (error) {
        if (!isLost(error, device) && generation === device.generation) throw error;
        await pause();
      }
    }
  }

  private async keep(run: Run, checkpoint: Checkpoint): Promise<void> {
    try {
      await this.store.keepRun(run.id, run, checkpoint);
      this.signals.unkept.value = "";
    } catch (error) {
      this.signals.unkept.value = error instanceof Error ? error.message : String(error); // training continues unsaved
    }
  }

  /** Ends the session and deletes its saved state. */
  reset(): Promise<void> {
    return this.queue.run(async () => {
      this.leaveCurves();
      await this.session?.close();
      this.signals.session.value = null;
      await this.store.forgetRuns().catch(() => {}); // a browser that stores nothing has no run to delete
    });
  }

  /** Saves the curves of the session before it ends. */
  private leaveCurves(): void {
    const { points, plan } = this.session ?? { points: [] };
    if (!plan || points.length < MIN_KEPT_POINTS) return;
    const every = Math.ceil(points.length / MAX_KEPT_POINTS);
    const kept = points.filter((p, i) => i % every === 0 || p.validation !== undefined);
    const { offer, origin, rates } = plan;
    const earlier = {
      name: `${origin?.source ?? "own text"}, ${offer.name}, learning rate ${rates.lr}`,
      tokenizer: offer.tokenizer,
      points: kept.map(({ step, loss, validation }) => ({
        step,
        loss,
        ...(validation === undefined ? {} : { validation }),
      })),
    };
    this.signals.earlier.value = earlier;
    this.store.keep(EARLIER, earlier).catch(() => {}); // the curves remain available during this visit
  }

  /** Deletes the curves of the previous training. */
  async forgetEarlier(): Promise<void> {
    this.signals.earlier.value = null;
    await this.store.forget(EARLIER).catch(() => {}); // a browser that stores nothing has no curves to delete
  }

  current(): Session {
    if (!this.session) throw new PageError("There is no training; create one first.");
    return this.session;
  }

  async zip(): Promise<Uint8Array<ArrayBuffer>> {
    return zip(await this.current().files());
  }
}
