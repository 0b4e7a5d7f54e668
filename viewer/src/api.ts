// What the console, an embedding page and the tests drive: `globalThis.glgpt`.

import { ContextLost, Device } from "./gl/device";
import { Loader, type Progress } from "./engine/loader";
import { Queue, sleep } from "./gl/wait";
import { Model, type ModelOptions, type Token } from "./engine/model";
import { checkOptions, type Names } from "./engine/options";
import { parity, type Parity } from "./engine/parity";
import { canRemember } from "./engine/probe";
import { PageError } from "./gl/errors";
import { checkFinite } from "./engine/sampling";
import { connections, EmbeddedSource, exportId, folder, HOST } from "./document";
import { parseRecorded, type Manifest, type Recorded } from "./engine/manifest";
import { HttpSource, type Source } from "./engine/source";
import { Store } from "./training/store";
import { otherFigures, type Score, type ScoreProgress } from "./training/score";
import type { Session } from "./training/session";
import { Training, type Trained, type TrainOptions } from "./training/training";
import { Federation, type FederateOptions } from "./training/federate";
import { allowed, fetchText, type FetchedText, type FetchOptions } from "./training/fetching";
import type { Files } from "./training/files";
import type { Values } from "./engine/capture";

export interface GenerateOptions {
  prompt?: string;
  ids?: number[];
  tokens?: number;
  temperature?: number;
  topK?: number | null;
  topP?: number | null;
  minP?: number | null;
  /** Above 1, makes tokens that the text has less likely; the page then chooses from the whole row, which takes longer. */
  repetitionPenalty?: number | null;
  /** Is added to the logits of these ids. */
  logitBias?: Record<number, number> | null;
  /** Whether the model's end of text ends it (true). */
  eos?: boolean;
  seed?: number;
  /** Tokens that this seed has given already: the text continues as if it had never stopped. */
  drawn?: number;
  stop?: string;
  /** How many of the likeliest tokens `onToken` hears of. */
  alternatives?: number;
  onToken?: (token: Token & { text: string }) => void;
  signal?: AbortSignal;
}

const GENERATE: Names<GenerateOptions> = {
  prompt: true, ids: true, tokens: true, temperature: true, topK: true, topP: true, minP: true, repetitionPenalty: true, logitBias: true,
  eos: true, seed: true, drawn: true, stop: true, alternatives: true, onToken: true, signal: true,
};

export interface Generated {
  ids: number[];
  text: string;
  prefillMs: number;
  /** Milliseconds of all tokens after the first. */
  decodeMs: number;
  seed: number;
  stopped: "tokens" | "eos" | "text" | "aborted";
}

/** One of several texts that continue a prompt. */
export type Continuation = Pick<Generated, "ids" | "text" | "seed"> & {
  /** `room`: the context has ended, or the rows that the texts share. */
  stopped: Generated["stopped"] | "room";
};

const REST = 2000; // ms without a call after which a page warms up
const ATTEMPTS = 20; // at that; a call ends one

export interface ContinuationsOptions extends Omit<GenerateOptions, "drawn" | "alternatives" | "onToken"> {
  /** Hears of all texts, each time that they have a token more; they are the same objects each time. */
  onTexts?: (texts: readonly Continuation[]) => void;
  /** Hears of shaders, which are compiled when this is first asked for. */
  onCompiled?: (compiled: number, shaders: number) => void;
}

const CONTINUATIONS: Names<ContinuationsOptions> = {
  prompt: true, ids: true, tokens: true, temperature: true, topK: true, topP: true, minP: true, repetitionPenalty: true, logitBias: true,
  eos: true, seed: true, stop: true, signal: true, onTexts: true, onCompiled: true,
};

/** Which model is used: the page's own, the one in training, or one from files. */
export type Used = "own" | "mine" | "file";

export class Glgpt {
  /** Resolves when the model can be used; rejects with a message for people. */
  readonly ready: Promise<void>;
  /** The model that all calls are about: the page's own, or one that `use` has put in its place. */
  model!: Model;
  /** The page's own. */
  own!: Model;
  /** Which of them `model` is. */
  used: Used = "own";
  /** Called when another model is used. */
  onModel: () => void = () => {};
  private readonly store = new Store(folder().pathname);
  /** What `train` drives; the sessions that the page shows. */
  readonly training = new Training(() => this.own, this.store, () => this.warmedUp);
  private warmedUp: Promise<void> = Promise.resolve();
  private played: Session | null = null; // whose model is used
  onProgress: (progress: Progress) => void = () => {};
  /** Hears of the recorded generation, while the model is on its way. */
  onRecorded: (recorded: Recorded, manifest: Manifest) => void = () => {};
  private last: number[] = [];
  private readonly queue = new Queue(); // there is one set of caches
  private disposed = false;

  constructor(
    source: Source = EmbeddedSource.here() ?? new HttpSource(folder()),
    options: ModelOptions = {},
  ) {
    this.ready = this.open(source, options);
    this.ready.catch(() => {}); // whoever awaits it hears of it
  }

  /** Resolves when the model can be used. Rejects where it cannot be loaded, and after `dispose`. */
  private async usable(): Promise<void> {
    if (!this.disposed) await this.ready;
    if (this.disposed) throw new PageError("This model was disposed of; open another.");
  }

  /**
   * Stops what is under way and releases the model's textures, its training and its WebGL context; other calls reject from
   * then on. Resolves when all is released. A training is saved first, as `pause` saves it.
   */
  async dispose(): Promise<void> {
    if (this.disposed) return;
    this.disposed = true;
    this.federation?.leave();
    await this.training.settled();
    await this.training.session?.close();
    await this.queue.idle;
    const loaded = await this.ready.then(() => true, () => false);
    if (loaded) this.release();
  }

  private release(): void {
    for (const model of new Set([this.model, this.own])) model.close();
    this.own.split?.leave();
    this.own.device.release();
  }

  private async open(source: Source, options: ModelOptions): Promise<void> {
    const device = new Device(HOST);
    const loader = await Loader.open(source, source instanceof HttpSource && source.base.href === folder().href ? exportId() : "");
    loader.onProgress = (p) => this.onProgress({ ...p }); // a copy, which the caller may keep
    const { recorded } = loader.manifest;
    if (recorded) {
      // before the weights, which would hold it up; without it the page shows less, and still opens
      const document = await loader.json(recorded).catch(() => null);
      if (document) this.onRecorded(parseRecorded(document, recorded, loader.manifest.config), loader.manifest);
    }
    this.model = this.own = await Model.load(device, loader, options);
    if (this.disposed) this.release();
    this.training.listeners.add(() => void this.leave());
    this.warmedUp = this.warmUpAtRest().catch((error: unknown) => console.warn("warming up:", error));
  }

  /** Does what a visit begins without, once nobody asks the device for anything. */
  private async warmUpAtRest(): Promise<void> {
    const done = () => this.own.complete && (this.own.probe || !canRemember());
    for (let attempts = 0; attempts < ATTEMPTS && !done(); attempts++) {
      do await sleep(REST);
      while (!this.rests(REST));
      try {
        await this.compilePrefills();
        if (canRemember() && this.rests(0)) await this.measure(() => this.rests(0));
      } catch (error) {
        if (!(error instanceof ContextLost) && !this.own.stale) throw error;
      }
    }
  }

  private async compilePrefills(): Promise<void> {
    await this.own.compilePrefills();
    await this.queue.run(() => this.own.usePrefills());
  }

  private measure(going?: () => boolean): Promise<boolean> {
    return this.own.measure((recording) => this.later(recording), going);
  }

  /** Whether nothing was asked of the device for so many milliseconds, in a page that is seen. */
  private rests(ms: number): boolean {
    const together = this.federation !== null && !["over", "failed"].includes(this.federation.status);
    const busy = this.queue.restingMs < ms || this.training.busy || together;
    return !busy && document.visibilityState === "visible";
  }

  /**
   * Does at once what a page does by itself when it rests: compiles the shaders of longer prompts, and measures, once per
   * driver, which kernel this device likes best. Until then a page takes what devices of its kind like; the next visit takes
   * the fastest.
   */
  async warmUp(): Promise<void> {
    await this.usable();
    await this.compilePrefills();
    await this.measure();
  }

  /** Calls wait for one another, and begin anew where the context was lost meanwhile. */
  private async queued<T>(work: () => Promise<T>): Promise<T> {
    await this.usable();
    return this.queue.run(() =>
      this.lent(async () => {
        for (;;) {
          if (this.model.stale) await this.model.recover();
          this.model.follow();
          try {
            const found = await work();
            if (!this.model.stale) return found;
          } catch (error) {
            if (!this.model.stale) throw error;
          }
        }
      }),
    );
  }

  /** Does `work` with the model that is used: of a training between two steps, with the parameters as they are. */
  private lent<T>(work: () => Promise<T>): Promise<T> {
    return this.played ? this.played.lend(work) : work();
  }

  /**
   * Puts another model in the place of the page's own, for all calls: `mine`, the one in training, with its textures as
   * they are and no copy of them, or one out of files that `glgpt train` or `save` wrote. `own` goes back. What the model
   * before held besides its weights is released.
   */
  async use(which: Used, files: readonly File[] = [], onCompiled?: (compiled: number, shaders: number) => void): Promise<void> {
    await this.usable();
    await this.training.settled();
    return this.queue.run(async () => {
      if (which === "own") {
        this.replace(this.own, "own", null);
        return;
      }
      const session = which === "mine" ? this.training.current() : null;
      const about = session ? await this.training.trained(session) : await this.training.saved(files);
      const build = () => this.own.beside(about, onCompiled);
      this.replace(await (session ? session.lend(build) : build()), which, session);
    });
  }

  private replace(model: Model, used: Used, session: Session | null): void {
    if (this.model === this.own) this.own.rest();
    else this.model.close();
    [this.model, this.used, this.played, this.last] = [model, used, session, []];
    this.onModel();
  }

  /** Goes back to the page's own model where the training whose model is used has ended. */
  private async leave(): Promise<void> {
    if (this.played && this.played !== this.training.session) await this.use("own");
  }

  /** Files that a later call may ask for on this device. */
  async later(recording = this.own.recording): Promise<string[]> {
    const { manifest } = this.own;
    const more = [recording.interventions, recording.several].filter((name) => name !== undefined);
    const training = manifest.training ? [manifest.training, ...(await this.training.files(recording))] : [];
    return [manifest.reference, ...more, ...training];
  }

  encode(text: string): number[] {
    if (!this.model.tokenizer) throw new PageError("This model has no tokenizer; give ids.");
    if (typeof text !== "string") throw new PageError(`A text was asked for; this is ${JSON.stringify(text)}.`);
    return this.model.tokenizer.prompt(text);
  }

  decode(ids: Iterable<number>): string {
    return this.model.tokenizer ? this.model.tokenizer.decode(ids) : Array.from(ids).join(" ");
  }

  /**
   * Continues a prompt. A string is short for `{ prompt }`. Rejects for options that mean nothing, and where the model
   * cannot be used.
   */
  async generate(asked: GenerateOptions | string = {}): Promise<Generated> {
    const options = typeof asked === "string" ? { prompt: asked } : asked;
    checkOptions("generate", options, GENERATE);
    await this.usable();
    let begun = false;
    const done = this.queue.run(() => {
      begun = true;
      return this.run(options);
    });
    const { signal, seed = 0 } = options;
    if (!signal) return done;
    // A call that waits for a lost context may hold up the queue; Stop ends a text behind it too.
    const given = new Promise<Generated>((resolve) => {
      const nothing: Generated = { ids: [], text: "", prefillMs: 0, decodeMs: 0, seed, stopped: "aborted" };
      signal.addEventListener("abort", () => !begun && resolve(nothing), { once: true });
    });
    return Promise.race([done, given]);
  }

  private async run(options: GenerateOptions): Promise<Generated> {
    const { tokens = 100, temperature = 0.8, stop, onToken, signal } = options;
    const { topK = null, topP = null, minP = null, eos = true, seed = Math.floor(Math.random() * 2 ** 32) } = options;
    checkLength(tokens, stop);
    const prompt = options.ids ? Array.from(options.ids) : this.encode(options.prompt ?? "");
    const { model } = this;
    const decoder = model.tokenizer?.stream();
    const ids: number[] = [];
    let text = "";
    let stopped = "tokens" as Generated["stopped"];
    const start = performance.now();
    let [first, last] = [start, start]; // when the first and the last token came
    const { repetitionPenalty = null, logitBias = null } = options;
    const settings = { temperature, topK, topP, minP, repetitionPenalty, logitBias, eos, seed, alternatives: options.alternatives ?? 0, ...(signal ? { signal } : {}) };
    await this.lent(async () => {
      if (model.stale) await model.recover(signal); // later it sees to that itself
      model.follow();
      const rest = { ...settings, tokens: tokens - ids.length, drawn: (options.drawn ?? 0) + ids.length }; // a loss may interrupt it
      for await (const token of model.generate([...prompt, ...ids], rest)) {
        last = performance.now();
        if (!ids.length) first = last;
        ids.push(token.id);
        this.last = [...prompt, ...ids];
        const piece = decoder ? decoder.push(token.id) : ` ${token.id}`;
        text += piece;
        onToken?.({ ...token, text: piece });
        const found = stop ? text.indexOf(stop) : -1;
        if (found >= 0) {
          text = text.slice(0, found);
          stopped = "text";
          break;
        }
        if (this.disposed) break;
      }
    });
    const end = performance.now();
    if (stopped !== "text") text += decoder?.flush() ?? "";
    if (signal?.aborted || this.disposed) stopped = "aborted";
    else if (stopped === "tokens" && ids.length < tokens) stopped = "eos";
    return { ids, text, prefillMs: (ids.length ? first : end) - start, decodeMs: last - first, seed, stopped };
  }

  /**
   * Several continuations of one prompt side by side (`model.texts`), of the seeds `seed`, `seed` + 1, …: each the text that
   * `generate` gives with its seed, in less time than one after another, since each weight is read once for all. A text ends
   * where the context or the room for several does.
   */
  async continuations(options: ContinuationsOptions = {}): Promise<Continuation[]> {
    checkOptions("continuations", options, CONTINUATIONS);
    await this.usable();
    return this.queue.run(() => this.lent(() => this.sideBySide(options)));
  }

  private async sideBySide(options: ContinuationsOptions): Promise<Continuation[]> {
    const { tokens = 100, temperature = 0.8, seed = Math.floor(Math.random() * 2 ** 32), stop, onTexts, onCompiled, signal } = options;
    const { topK = null, topP = null, minP = null, repetitionPenalty = null, logitBias = null, eos = true } = options;
    checkLength(tokens, stop);
    const { model } = this;
    const ids = options.ids ? Array.from(options.ids) : this.encode(options.prompt ?? "");
    const decoders = Array.from({ length: model.texts }, () => model.tokenizer?.stream());
    const texts = decoders.map((_, i): Continuation => ({ ids: [], text: "", seed: seed + i, stopped: "tokens" }));
    const over = new Set<number>();
    if (model.stale) await model.recover(signal);
    model.follow();
    const run = { tokens, temperature, topK, topP, minP, repetitionPenalty, logitBias, eos, seed, ...(signal ? { signal } : {}) };
    for await (const found of model.continuations(ids, run, { over, ...(onCompiled ? { onCompiled } : {}) })) {
      for (const [i, text] of texts.entries()) {
        const token = found[i];
        if (!token) {
          if (!over.has(i)) text.stopped = "eos";
          over.add(i);
          continue;
        }
        text.ids.push(token.id);
        text.text += decoders[i]?.push(token.id) ?? ` ${token.id}`;
        const at = stop ? text.text.indexOf(stop) : -1;
        if (at < 0) continue;
        [text.text, text.stopped] = [text.text.slice(0, at), "text"];
        over.add(i);
      }
      onTexts?.(texts);
      if (this.disposed) break;
    }
    texts.forEach((text, i) => {
      if (text.stopped !== "text") text.text += decoders[i]?.flush() ?? "";
      if (text.stopped === "tokens" && text.ids.length < tokens) text.stopped = signal?.aborted || this.disposed ? "aborted" : "room";
    });
    return texts;
  }

  /** Logits of every position, `[T * vocab]`. Rejects where one is not finite; `activation` shows where that begins. */
  logits(ids: readonly number[]): Promise<Float32Array> {
    return this.queued(async () => {
      this.model.check(ids);
      const { data } = (await this.model.activations(ids, ["logits"])).get("logits")!;
      checkFinite(data);
      return data;
    });
  }

  /** A named intermediate of `ids`, by default of the text generated last. */
  activation(name: string, ids?: number[]): Promise<Values> {
    return this.queued(async () => {
      const of = ids?.slice(0, this.model.manifest.config.n_positions) ?? this.model.read(this.last);
      this.model.check(of);
      return (await this.model.activations(of, [name])).get(name)!;
    });
  }

  /** Plays the desktop's reference run and compares. */
  parity(): Promise<Parity> {
    return this.queued(() => {
      if (this.used !== "own") throw new PageError("The page has the desktop's numbers of its own model alone; switch to that one to compare.");
      if (this.model.interventions.length) throw new PageError("Parts of the model are cut; restore them to compare.");
      return parity(this.model);
    });
  }

  /**
   * Switches off these parts, such as `h.3.attn.5` (a head), `h.3.attn`, `h.3.mlp` or `h.3`, and restores all others.
   * `h.3.mlp*0.5` scales one, `h.2~love~hate~4` steers a block from one text towards another, `h.3.mlp@7@text` gives token 7
   * what the part gives there in another text, `h.3.attn.5:previous` makes a head look at the token before (or `uniform`, `first`).
   */
  intervene(parts: readonly string[], onCompiled?: (compiled: number, shaders: number) => void): Promise<void> {
    return this.queued(() => this.model.intervene(parts, onCompiled));
  }

  /** ln of the probability of each token from `from` on, as the model is now, with what is cut; `going` says whether to go on. */
  logProbabilities(ids: readonly number[], from = 1, going?: () => boolean): Promise<Float32Array> {
    return this.queued(() => this.model.logProbabilities(ids, from, going));
  }

  /** Work that needs the device between other calls. */
  borrow<T>(work: (model: Model) => Promise<T>): Promise<T> {
    return this.queued(() => work(this.model));
  }

  /** Trains a model of one of the sizes that the page was exported with; resolves when all steps are done. */
  async train(options: TrainOptions): Promise<Trained> {
    await this.usable();
    const session = await this.training.create(options);
    return new Promise((resolve, reject) => {
      session.onEnd = () => {
        if (session.status === "failed") reject(new PageError(session.problem));
        if (session.status === "done") {
          const last = session.points.at(-1)!;
          const judged = session.points.findLast((p) => p.validation !== undefined);
          resolve({ step: last.step, loss: last.loss, validation: judged?.validation ?? null });
        }
      };
      void session.start();
    });
  }

  /** Fetches a text from an address that the page's policy allows; rejects with a message for people. */
  async fetchText(address: string, options: FetchOptions = {}): Promise<FetchedText> {
    return fetchText(allowed(address, connections()), options);
  }

  /** This page's part in a federation; null: none yet. */
  federation: Federation | null = null;
  /** Called when another federation takes its place. */
  onFederation: () => void = () => {};

  /**
   * Trains along in a federation by an invitation's link; resolves when its rounds are done or it was left. `text` is
   * one's own text, which stays here; else the session's.
   */
  async federate(options: FederateOptions): Promise<void> {
    await this.usable();
    this.federation?.leave();
    this.federation = new Federation(options, this.training, this.store);
    this.onFederation();
    await this.federation.done;
  }

  /** Pauses the training under way; resolves when its checkpoint is kept. */
  async pause(): Promise<void> {
    await this.usable();
    await this.training.settled();
    await this.training.current().pause();
  }

  /**
   * Resumes the training, or the one that an earlier visit left; with another learning rate where one is given.
   * A training that failed goes back to its last checkpoint first.
   */
  async resume({ lr }: { lr?: number } = {}): Promise<void> {
    await this.usable();
    await this.training.settled();
    const session = this.training.session ?? (await this.training.restore()) ?? this.training.current();
    if (lr !== undefined) session.setRate(lr);
    if (session.status === "failed") await session.back();
    if (session.status !== "failed") void session.start();
  }

  /** The trained model's score, as `glgpt eval --suite` gives it; also while it trains. */
  async score(progress: ScoreProgress = () => {}): Promise<Score> {
    await this.usable();
    const session = this.training.current();
    const own = async () => {
      if (this.own.stale) await this.own.recover();
      return otherFigures(session.plan, this.own, (share) => progress("Scoring the page's own model", share));
    };
    return session.score(progress, () => this.queue.run(own));
  }

  /** The trained model's files by name, as the desktop's `glgpt generate DIR` loads them. */
  save(): Promise<Files> {
    return this.training.current().files();
  }

  info() {
    const { model } = this;
    const { device, manifest } = model;
    return {
      model: manifest.model,
      dtype: manifest.dtype,
      config: manifest.config,
      renderer: device.renderer,
      limits: device.limits,
      kernel: model.recording.kernel,
      rows: model.recording.rows,
      drawBuffers: model.recording.draw_buffers,
      ...model.options,
      probeMs: this.own.probe,
      guessed: this.own.guessedKernel,
      textureBytes: model.memory(),
      times: model.times,
      contexts: device.generation + 1,
    };
  }
}

/** Refuses what is no length of a text, and no text to stop at. */
function checkLength(tokens: number, stop: unknown): void {
  if (!(Number.isInteger(tokens) && tokens >= 0)) throw new PageError(`tokens is ${tokens}; it must be a whole number from 0.`);
  if (stop !== undefined && typeof stop !== "string") throw new PageError("stop must be a text.");
}
