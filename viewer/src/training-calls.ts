// Implements the scriptable object's calls for training: sessions, scores, texts and federations.

import { signal } from "@preact/signals-core";
import { connections, folder } from "./document";
import type { Model } from "./runtime/engine/model";
import { PageError } from "./runtime/gl/errors";
import type { Queue } from "./runtime/gl/wait";
import { Federation, type FederateOptions } from "./training/federate";
import { allowed, TextFetcher, type FetchedText, type FetchOptions } from "./training/fetching";
import { otherFigures, type Score, type ScoreProgress } from "./training/score";
import { Store } from "./training/store";
import { Training, type Trained, type TrainOptions } from "./training/training";

/** The parts of the scriptable object that training needs. */
export interface TrainingHost {
  /** Returns the page's model. */
  own: () => Model;
  /** Resolves when the page has measured its device or has stopped trying. */
  warmedUp: () => Promise<void>;
  /** Runs one call at a time. */
  queue: Queue;
}

export class TrainingCalls {
  readonly training: Training;
  private readonly texts = new TextFetcher();
  private readonly store = new Store(folder().pathname);
  private readonly joined = signal<Federation | null>(null);

  constructor(private readonly host: TrainingHost) {
    this.training = new Training(host.own, this.store, host.warmedUp);
  }

  /** The federation that this page has joined last; null: none. */
  get federation(): Federation | null {
    return this.joined.value;
  }

  /** True if a training or a federation uses the device. */
  get busy(): boolean {
    const together = this.federation !== null && !["over", "failed"].includes(this.federation.status);
    return this.training.busy || together;
  }

  /** Leaves the federation. Saves the training, as `pause` does, and releases its textures. */
  async close(): Promise<void> {
    this.federation?.leave();
    await this.training.settled();
    await this.training.session?.close();
  }

  async train(options: TrainOptions): Promise<Trained> {
    const session = await this.training.create(options);
    void session.start();
    const { status, problem, points } = await session.ended();
    if (status === "failed") throw new PageError(problem);
    const last = points.at(-1)!;
    const judged = points.findLast((p) => p.validation !== undefined);
    return { step: last.step, loss: last.loss, validation: judged?.validation ?? null };
  }

  fetchText(address: string, options: FetchOptions): Promise<FetchedText> {
    return this.texts.fetch(allowed(address, connections()), options);
  }

  async federate(options: FederateOptions): Promise<void> {
    this.federation?.leave();
    const federation = new Federation(options, this.training, this.store);
    this.joined.value = federation;
    await federation.done;
  }

  async pause(): Promise<void> {
    await this.training.settled();
    await this.training.current().pause();
  }

  async resume(lr?: number): Promise<void> {
    await this.training.settled();
    const session = this.training.session ?? (await this.training.restore()) ?? this.training.current();
    if (lr !== undefined) session.setRate(lr);
    if (session.status === "failed") await session.back();
    if (session.status !== "failed") void session.start();
  }

  score(progress: ScoreProgress): Promise<Score> {
    const session = this.training.current();
    const model = this.host.own();
    const own = async () => {
      if (model.stale) await model.recover();
      return otherFigures(session.plan, model, (share) => progress("Scoring the page's model", share));
    };
    return session.scorer.score(progress, () => this.host.queue.run(own));
  }
}
