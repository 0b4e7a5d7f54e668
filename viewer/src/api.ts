// The scriptable object `globalThis.glgpt`, which the console, an embedding page and the tests use.

import { CHAT_TOKENS, fit, type Fitted } from "./runtime/chat/context";
import { checkedMessages, type ChatMessage } from "./runtime/chat/template";
import { Completions } from "./completions";
import type { Constraint } from "./runtime/constraints/constraint";
import { computed, effect, signal, untracked, type ReadonlySignal } from "@preact/signals-core";
import { ContextLost, Device, type Compiling } from "./runtime/gl/device";
import { Loader, type Progress as Fetched } from "./runtime/engine/loader";
import { Queue, sleep } from "./runtime/gl/wait";
import { Model, type ModelOptions } from "./runtime/engine/model";
import { checkOptions, type Names } from "./runtime/engine/options";
import { parity, type Parity } from "./runtime/engine/parity";
import { canRemember } from "./runtime/engine/probe";
import { PageError } from "./runtime/gl/errors";
import { logProbabilities } from "./runtime/engine/probabilities";
import { checkFinite, samplingOptions, type SamplingOptions, type Token } from "./runtime/engine/sampling";
import { LanguageModelSession, polyfill, type LanguageModelOptions } from "./language-model";
import { connections, EmbeddedSource, exportId, folder, HOST } from "./document";
import { parseRecorded, type Manifest, type Recorded } from "./runtime/engine/manifest";
import type { Opened } from "./runtime/engine/opened-model";
import type { SpeculationStats } from "./runtime/engine/speculation";
import { HttpSource, type Source } from "./runtime/engine/source";
import { Store } from "./training/store";
import { otherFigures, type Score, type ScoreProgress } from "./training/score";
import type { Session } from "./training/session";
import { Training, type Trained, type TrainOptions } from "./training/training";
import { Federation, type FederateOptions } from "./training/federate";
import { allowed, TextFetcher, type FetchedText, type FetchOptions } from "./training/fetching";
import type { Files } from "./training/files";
import type { Values } from "./runtime/engine/capture";

export interface GenerateOptions {
  prompt?: string;
  ids?: number[];
  tokens?: number;
  temperature?: number;
  topK?: number | null;
  topP?: number | null;
  minP?: number | null;
  /** Penalizes tokens already in the text (higher is stronger). The page then reads all logits, which takes longer. */
  repetitionPenalty?: number | null;
  /** Values to add to the logits of these ids. */
  logitBias?: Record<number, number> | null;
  /** Stop at the model's end-of-text token (default: true). */
  eos?: boolean;
  /**
   * Guess tokens from the text so far and check several in one step (default: false): the same text, sooner where it
   * repeats itself. Guessing pauses where it does not pay.
   */
  speculate?: boolean;
  /** Constrains the whole text. The first constraint loads a file of 0.4 MB. */
  constraint?: Constraint | null;
  seed?: number;
  /** Tokens already sampled with this seed: the text continues as if it had not stopped. */
  drawn?: number;
  stop?: string;
  /** Number of the most likely tokens to report to `onToken`. */
  alternatives?: number;
  onToken?: (token: Token & { text: string }) => void;
  signal?: AbortSignal;
}

// the options of every generation, and those of `generate` and `continuations`
const COMMON = {
  tokens: true,
  temperature: true,
  topK: true,
  topP: true,
  minP: true,
  repetitionPenalty: true,
  logitBias: true,
  eos: true,
  seed: true,
  stop: true,
  signal: true,
} as const;
const SHARED = { ...COMMON, prompt: true, ids: true } as const;

/** Options of a single text, not of texts in a batch. */
const ONE_TEXT = { constraint: true, speculate: true, alternatives: true, onToken: true } as const;

const GENERATE: Names<GenerateOptions> = { ...SHARED, ...ONE_TEXT, drawn: true };

export interface Generated {
  ids: number[];
  text: string;
  prefillMs: number;
  /** Milliseconds from the first token to the last. */
  decodeMs: number;
  seed: number;
  stopped: "tokens" | "eos" | "text" | "aborted";
  /** Counts guesses, with `speculate`. */
  speculation?: SpeculationStats;
}

/** One of several texts that continue a prompt. */
export type Continuation = Pick<Generated, "ids" | "text" | "seed"> & {
  /** `room`: the context is full, or the rows that the texts share. */
  stopped: Generated["stopped"] | "room";
};

const loaderOf = (source: Source) =>
  Loader.open(source, source instanceof HttpSource && source.base.href === folder().href ? exportId() : "");

export interface ChatOptions extends Omit<GenerateOptions, "prompt" | "ids" | "drawn"> {
  /** The number of the oldest messages after the system message that the model no longer reads (default: 0). */
  dropped?: number;
}

const CHAT: Names<ChatOptions> = { ...COMMON, ...ONE_TEXT, dropped: true };

/** An answer, the number of tokens of its prompt, and the number of the oldest messages that the prompt leaves out. */
export type Answered = Generated & { promptTokens: number; dropped: number };

/** `glgpt.chat`: a function, with OpenAI's interface as `completions`. */
export interface Chat {
  /**
   * Answers the last of `messages` with up to `tokens` tokens (default: 512). Tokens that the KV cache holds from an
   * earlier turn are not computed again. If the context is full, the oldest turns are left out. Rejects for invalid
   * options, for a model without a chat template, and if the last message alone does not fit the context.
   */
  (messages: readonly ChatMessage[], options?: ChatOptions): Promise<Answered>;
  readonly completions: Completions;
}

/** Bytes of weights and shaders that are loaded. */
export type Progress = Fetched & Compiling;

const REST = 2000; // ms without a call after which a page warms up
const ATTEMPTS = 20; // attempts to warm up; a call interrupts one

export interface ContinuationsOptions extends Omit<
  GenerateOptions,
  "drawn" | "constraint" | "speculate" | "alternatives" | "onToken"
> {
  /** Called with all texts after each token. The array holds the same objects each time. */
  onTexts?: (texts: readonly Continuation[]) => void;
  /** Called with the progress of the shaders, which the first call compiles. */
  onCompiled?: (compiled: number, shaders: number) => void;
}

const CONTINUATIONS: Names<ContinuationsOptions> = { ...SHARED, onTexts: true, onCompiled: true };

/** The model in use: the page's (`own`), the one in training (`mine`) or one from files (`file`). */
export type Used = "own" | "mine" | "file";

export class Glgpt {
  /** Resolves when the model can be used. Rejects with a message for the user. */
  readonly ready: Promise<void>;
  /** @internal The page's model. */
  own!: Model;
  private readonly current = signal<{ model: Model; used: Used } | null>(null);
  private readonly device = signal<Device | null>(null);
  private readonly texts = new TextFetcher();
  private readonly store = new Store(folder().pathname);
  /** @internal Runs `train` and holds the sessions that the page shows. */
  readonly training = new Training(
    () => this.own,
    this.store,
    () => this.warmedUp,
  );
  private warmedUp: Promise<void> = Promise.resolve();
  private played: Session | null = null; // the session whose model is in use
  private readonly loading = signal<Progress>({ done: 0, total: 0, cached: 0, compiled: 0, shaders: 0 });
  private readonly found = signal<{ document: Recorded; manifest: Manifest } | null>(null);
  private last: number[] = [];
  private readonly queue = new Queue(); // one call at a time, since all share one set of caches
  private disposed = false;
  private unfollow: () => void = () => {};

  /** @internal `open` of the embed module makes one. */
  constructor(source: Source | Opened = EmbeddedSource.here() ?? new HttpSource(folder()), options: ModelOptions = {}) {
    this.ready = this.open(source, options);
    this.ready.catch(() => {}); // callers that await it receive the error
  }

  /** @internal The bytes and shaders loaded so far. They change until the model can be used. */
  get progress(): ReadonlySignal<Progress> {
    return this.loading;
  }

  /** @internal True while the graphics context is lost, also before the model can be used. */
  readonly contextLost = computed(() => this.device.value?.contextLost.value ?? false);

  /** @internal The recorded generation, available before the model; null: not loaded yet, or the page has none. */
  get recorded(): ReadonlySignal<{ document: Recorded; manifest: Manifest } | null> {
    return this.found;
  }

  /** @internal The model of all calls: the page's, or one selected with `use`. Reading it subscribes to changes. */
  get model(): Model {
    return this.current.value?.model as Model; // undefined until `ready`
  }

  /** Which model `model` is. */
  get used(): Used {
    return this.current.value?.used ?? "own";
  }

  /** Resolves when the model can be used. Rejects if it cannot be loaded, and after `dispose`. */
  private async usable(): Promise<void> {
    if (!this.disposed) await this.ready;
    if (this.disposed) throw new PageError("This model was disposed of; call open() again.");
  }

  /**
   * Stops running calls and releases the model's textures, its training and its WebGL context. All later calls reject.
   * Resolves when everything is released. A training is saved first, as by `pause`.
   */
  async dispose(): Promise<void> {
    if (this.disposed) return;
    this.disposed = true;
    this.unfollow();
    this.federation?.leave();
    await this.training.settled();
    await this.training.session?.close();
    await this.queue.idle;
    const loaded = await this.ready.then(
      () => true,
      () => false,
    );
    if (loaded) this.release();
  }

  private release(): void {
    for (const model of new Set([this.model, this.own])) model.close();
    this.own.split?.leave();
    this.own.device.release();
  }

  private async open(source: Source | Opened, options: ModelOptions): Promise<void> {
    const device = (this.device.value = new Device(HOST));
    const opened = "loader" in source ? source : null;
    const loader = "loader" in source ? source.loader : await loaderOf(source);
    const follow = () => void (this.loading.value = { ...loader.progress.value, ...device.compiling.value });
    const unfollow = effect(follow);
    const { recorded } = loader.manifest;
    if (recorded) {
      // Loaded before the weights, which would delay it. The page also opens without it.
      const document = await loader.json(recorded).catch(() => null);
      const { manifest } = loader;
      if (document) this.found.value = { document: parseRecorded(document, recorded, manifest.config), manifest };
    }
    this.own = await Model.load(device, loader, options, opened).finally(unfollow);
    this.current.value = { model: this.own, used: "own" };
    if (this.disposed) this.release();
    this.unfollow = effect(() => {
      const { session } = this.training;
      untracked(() => void this.leave(session));
    });
    this.warmedUp = this.warmUpAtRest().catch((error: unknown) => console.warn("warming up:", error));
  }

  /** Compiles the remaining shaders and measures kernels once the device is idle. */
  private async warmUpAtRest(): Promise<void> {
    const done = () => this.own.complete && (this.own.kernels.probe || !canRemember());
    for (let attempts = 0; attempts < ATTEMPTS && !done(); attempts++) {
      do await sleep(REST);
      while (!this.rests(REST));
      try {
        await this.compileAll();
        if (canRemember() && this.rests(0)) await this.measure(() => this.rests(0));
      } catch (error) {
        if (!(error instanceof ContextLost) && !this.own.stale) throw error;
      }
    }
    if (done() && this.rests(0)) await this.queue.run(() => this.tryMoreTargets());
  }

  private tryMoreTargets(): Promise<void> {
    this.own.device.tryMoreTargets();
    return Promise.resolve();
  }

  private async compileAll(): Promise<void> {
    await this.own.compileLater();
    await this.queue.run(() => this.own.useAll());
  }

  private measure(going?: () => boolean): Promise<boolean> {
    return this.own.measure((recording) => this.later(recording), going);
  }

  /** True if the page is visible and the device has been idle for this many milliseconds. */
  private rests(ms: number): boolean {
    const together = this.federation !== null && !["over", "failed"].includes(this.federation.status);
    const busy = this.queue.restingMs < ms || this.training.busy || together;
    return !busy && document.visibilityState === "visible";
  }

  /**
   * Compiles the remaining shaders and measures, once per driver, which kernel is fastest on this device. A
   * page does both when it is idle; this does them now. Until then a page uses the default for this kind of GPU. The
   * measured kernel is applied on the next visit.
   */
  async warmUp(): Promise<void> {
    await this.usable();
    await this.compileAll();
    await this.measure();
  }

  /** Runs `work` after all earlier calls, and restarts it if the context is lost while it runs. */
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

  /** Runs `work` with the model in use. A model in training is used between two steps, with its current parameters. */
  private lent<T>(work: () => Promise<T>): Promise<T> {
    return this.played ? this.played.lend(work) : work();
  }

  /**
   * Selects the model for all calls: `mine` is the model in training, whose textures are shared and not copied; `file`
   * is a model from files written by `glgpt train` or `save`; `own` is the page's. Releases the previous model's
   * textures, except the weights of the page's model.
   */
  async use(which: Used, files: readonly File[] = []): Promise<void> {
    await this.usable();
    await this.training.settled();
    return this.queue.run(async () => {
      if (which === "own") {
        this.replace(this.own, "own", null);
        return;
      }
      const session = which === "mine" ? this.training.current() : null;
      const about = session ? await this.training.trained(session) : await this.training.saved(files);
      const build = () => this.own.beside(about);
      this.replace(await (session ? session.lend(build) : build()), which, session);
    });
  }

  private replace(model: Model, used: Used, session: Session | null): void {
    if (this.model === this.own) this.own.rest();
    else this.model.close();
    [this.played, this.last] = [session, []];
    this.current.value = { model, used };
  }

  /** Selects the page's model again if the training whose model is in use has ended. */
  private async leave(session: Session | null): Promise<void> {
    if (this.played && this.played !== session) await this.use("own");
  }

  /** @internal Returns the names of files that later calls may need on this device. */
  async later(recording = this.own.recording): Promise<string[]> {
    const { manifest } = this.own;
    const more = [recording.interventions, recording.several].filter((name) => name !== undefined);
    const training = manifest.training ? [manifest.training, ...(await this.training.files(recording))] : [];
    return [...(manifest.reference === null ? [] : [manifest.reference]), ...more, ...training];
  }

  encode(text: string): number[] {
    if (!this.model.tokenizer) throw new PageError("This model has no tokenizer; give ids.");
    if (typeof text !== "string") throw new PageError(`The text must be a string, not ${JSON.stringify(text)}.`);
    return this.model.tokenizer.prompt(text);
  }

  decode(ids: Iterable<number>): string {
    return this.model.tokenizer ? this.model.tokenizer.decode(ids) : Array.from(ids).join(" ");
  }

  /**
   * Continues a prompt. A string is short for `{ prompt }`. Rejects for invalid options or if the model cannot be used.
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
    // A call that waits for a lost context may block the queue. Aborting also ends calls queued after it.
    const given = new Promise<Generated>((resolve) => {
      const nothing: Generated = { ids: [], text: "", prefillMs: 0, decodeMs: 0, seed, stopped: "aborted" };
      if (signal.aborted && !begun) resolve(nothing);
      signal.addEventListener("abort", () => !begun && resolve(nothing), { once: true });
    });
    return Promise.race([done, given]);
  }

  /** Answers messages; `chat.completions.create` has the shape of OpenAI's API. */
  readonly chat: Chat = Object.assign(
    (messages: readonly ChatMessage[], options: ChatOptions = {}) => this.answer(messages, options),
    { completions: new Completions(this) },
  );

  private async answer(messages: readonly ChatMessage[], options: ChatOptions): Promise<Answered> {
    checkOptions("chat", options, CHAT);
    await this.usable();
    const { dropped = 0, tokens = CHAT_TOKENS, ...others } = options;
    const prompt = await this.chatPrompt(messages, tokens, dropped);
    const space = Math.max(1, this.model.manifest.config.n_positions - prompt.ids.length + 1);
    const answer = await this.generate({ ...others, tokens: Math.min(tokens, space), ids: prompt.ids });
    return { ...answer, promptTokens: prompt.ids.length, dropped: prompt.dropped };
  }

  /** Starts a session with the interface of the browser's Prompt API. Rejects for a model without a chat template. */
  languageModel(options: LanguageModelOptions = {}): Promise<LanguageModelSession> {
    return LanguageModelSession.create(this, options);
  }

  /** Sets `globalThis.LanguageModel` to this model where the browser has none. Returns true if it did. */
  polyfillLanguageModel(): boolean {
    return polyfill(this);
  }

  /** Returns the ids of messages, up to where the answer begins, and how many of the oldest they leave out. */
  async chatPrompt(messages: readonly ChatMessage[], tokens = CHAT_TOKENS, dropped = 0): Promise<Fitted> {
    await this.usable();
    const { chatTemplate, manifest } = this.model;
    if (!chatTemplate) throw new PageError("This model has no chat template; use generate.");
    return fit(chatTemplate, checkedMessages(messages), manifest.config.n_positions, tokens, dropped);
  }

  private async run(options: GenerateOptions): Promise<Generated> {
    const { tokens = 100, stop, onToken, eos = true, alternatives = 0, signal } = options;
    checkLength(tokens, stop);
    const sampling = samplingOf(options);
    const prompt = options.ids ? Array.from(options.ids) : this.encode(options.prompt ?? "");
    const { model } = this;
    const matcher = options.constraint
      ? await model.matcher(options.constraint, signal).catch((error: unknown) => {
          if (signal?.aborted) return null; // `model.generate` then returns at once
          throw error;
        })
      : null;
    const speculation = options.speculate ? { checkedSteps: 0, guessedTokens: 0, acceptedTokens: 0 } : null;
    const decoder = model.tokenizer?.stream();
    const ids: number[] = [];
    let text = "";
    let stopped = "tokens" as Generated["stopped"];
    const start = performance.now();
    let [first, last] = [start, start]; // times of the first and the last token
    await this.lent(async () => {
      if (model.stale) await model.recover(signal); // `model.generate` itself recovers from later losses
      model.follow();
      // `ids` is not empty if a lost context interrupted an earlier attempt
      const rest = {
        sampling,
        eos,
        alternatives,
        ...(matcher ? { matcher } : {}),
        ...(speculation ? { speculate: (stats: SpeculationStats) => add(speculation, stats) } : {}),
        ...(signal ? { signal } : {}),
        tokens: tokens - ids.length,
        drawn: (options.drawn ?? 0) + ids.length,
      };
      for await (const token of model.generator.generate([...prompt, ...ids], rest)) {
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
    else if (stopped === "tokens" && (ids.length < tokens || (await matcher?.allowed) === null)) stopped = "eos";
    return {
      ids,
      text,
      prefillMs: (ids.length ? first : end) - start,
      decodeMs: last - first,
      seed: sampling.seed,
      stopped,
      ...(speculation ? { speculation } : {}),
    };
  }

  /**
   * Generates `model.batch.texts` continuations of one prompt in a batch, with the seeds `seed`, `seed` + 1, …. Each
   * text equals that of `generate` with its seed. A batch is faster than separate calls, since each weight is read once
   * for all texts. A text ends when the context or the rows that the texts share are full.
   */
  async continuations(options: ContinuationsOptions = {}): Promise<Continuation[]> {
    checkOptions("continuations", options, CONTINUATIONS);
    await this.usable();
    const { onCompiled } = options;
    return this.queue.run(async () => {
      const unfollow = effect(() => {
        const { compiled, shaders } = this.own.device.compiling.value;
        if (compiled < shaders) untracked(() => onCompiled?.(compiled, shaders));
      });
      return this.lent(() => this.sideBySide(options)).finally(unfollow);
    });
  }

  private async sideBySide(options: ContinuationsOptions): Promise<Continuation[]> {
    const { tokens = 100, stop, onTexts, eos = true, signal } = options;
    checkLength(tokens, stop);
    const sampling = samplingOf(options);
    const { model } = this;
    const ids = options.ids ? Array.from(options.ids) : this.encode(options.prompt ?? "");
    const decoders = Array.from({ length: model.batch.texts }, () => model.tokenizer?.stream());
    const texts = decoders.map((_, i): Continuation => ({
      ids: [],
      text: "",
      seed: sampling.seed + i,
      stopped: "tokens",
    }));
    const over = new Set<number>();
    if (model.stale) await model.recover(signal);
    model.follow();
    const run = { tokens, sampling, eos, ...(signal ? { signal } : {}) };
    for await (const found of model.batch.generate(ids, run, { over })) {
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
      if (text.stopped === "tokens" && text.ids.length < tokens)
        text.stopped = signal?.aborted || this.disposed ? "aborted" : "room";
    });
    return texts;
  }

  /** Returns the logits of every position, `[T * vocab]`. Rejects if one is not finite; `activation` shows where. */
  logits(ids: readonly number[]): Promise<Float32Array> {
    return this.queued(async () => {
      this.model.check(ids);
      const { data } = (await this.model.activations.read(ids, ["logits"])).get("logits")!;
      checkFinite(data);
      return data;
    });
  }

  /** Returns a named activation of `ids`, by default of the text generated last. */
  activation(name: string, ids?: number[]): Promise<Values> {
    return this.queued(async () => {
      const of = ids?.slice(0, this.model.manifest.config.n_positions) ?? this.model.context.read(this.last);
      this.model.check(of);
      return (await this.model.activations.read(of, [name])).get(name)!;
    });
  }

  /** Plays the desktop's reference run and compares the results. */
  parity(): Promise<Parity> {
    return this.queued(() => {
      if (this.used !== "own") {
        throw new PageError("The page has the desktop's numbers only for its own model; switch to it to compare.");
      }
      if (this.model.interventions.active)
        throw new PageError("Parts of the model are changed; restore them to compare.");
      return parity(this.model);
    });
  }

  /**
   * Applies interventions and removes all earlier ones. A part such as `h.3.attn.5` (a head), `h.3.attn`, `h.3.mlp` or
   * `h.3` is ablated. `h.3.mlp*0.5` scales a part. `h.2~love~hate~4` steers a block from the second text towards the
   * first. `h.3.mlp@7@text` patches token 7 with the part's output at that token in another text. `h.3.attn.5:previous`
   * makes a head attend to the previous token (or `uniform`, `first`).
   */
  intervene(parts: readonly string[]): Promise<void> {
    return this.queued(() => this.model.interventions.apply(parts));
  }

  /**
   * Returns ln of the probability of each token from `from` on, with the current interventions. Stops when `going`
   * returns false.
   */
  logProbabilities(ids: readonly number[], from = 1, going?: () => boolean): Promise<Float32Array> {
    return this.queued(() => logProbabilities(this.model, ids, from, going));
  }

  /** @internal Runs `work`, which needs the device, between other calls. */
  borrow<T>(work: (model: Model) => Promise<T>): Promise<T> {
    return this.queued(() => work(this.model));
  }

  /** Trains a model of one of the sizes that the page was exported with. Resolves when all steps are done. */
  async train(options: TrainOptions): Promise<Trained> {
    await this.usable();
    const session = await this.training.create(options);
    void session.start();
    const { status, problem, points } = await session.ended();
    if (status === "failed") throw new PageError(problem);
    const last = points.at(-1)!;
    const judged = points.findLast((p) => p.validation !== undefined);
    return { step: last.step, loss: last.loss, validation: judged?.validation ?? null };
  }

  /** Fetches a text from an address that the page's policy allows. Rejects with a message for the user. */
  async fetchText(address: string, options: FetchOptions = {}): Promise<FetchedText> {
    return this.texts.fetch(allowed(address, connections()), options);
  }

  /** The federation that this page has joined last; null: none. */
  get federation(): Federation | null {
    return this.joined.value;
  }

  private readonly joined = signal<Federation | null>(null);

  /**
   * Joins a federation by an invitation link and trains with it. Resolves when its rounds are done or the page left it.
   * `text` is the user's own text, which does not leave this page; without it, the session's text is used.
   */
  async federate(options: FederateOptions): Promise<void> {
    await this.usable();
    this.federation?.leave();
    const federation = new Federation(options, this.training, this.store);
    this.joined.value = federation;
    await federation.done;
  }

  /** Pauses the current training. Resolves when its checkpoint is saved. */
  async pause(): Promise<void> {
    await this.usable();
    await this.training.settled();
    await this.training.current().pause();
  }

  /**
   * Resumes the training, or the one saved by an earlier visit, optionally with a new learning rate `lr`.
   * A failed training first returns to its last checkpoint.
   */
  async resume({ lr }: { lr?: number } = {}): Promise<void> {
    await this.usable();
    await this.training.settled();
    const session = this.training.session ?? (await this.training.restore()) ?? this.training.current();
    if (lr !== undefined) session.setRate(lr);
    if (session.status === "failed") await session.back();
    if (session.status !== "failed") void session.start();
  }

  /** Returns the score of the model in training, as computed by `glgpt eval --suite`. Works while it trains. */
  async score(progress: ScoreProgress = () => {}): Promise<Score> {
    await this.usable();
    const session = this.training.current();
    const own = async () => {
      if (this.own.stale) await this.own.recover();
      return otherFigures(session.plan, this.own, (share) => progress("Scoring the page's model", share));
    };
    return session.scorer.score(progress, () => this.queue.run(own));
  }

  /** Returns the trained model's files by name. The desktop's `glgpt generate DIR` can load them. */
  save(): Promise<Files> {
    return this.training.current().files();
  }

  info() {
    const { model } = this;
    const { device, manifest } = model;
    return {
      model: manifest.model,
      dtype: manifest.dtype,
      stored: manifest.stored ?? null,
      config: manifest.config,
      renderer: device.renderer,
      limits: device.limits,
      kernel: model.recording.kernel,
      rows: model.recording.rows,
      drawBuffers: model.recording.draw_buffers,
      ...model.options,
      probeMs: this.own.kernels.probe,
      guessed: this.own.kernels.guessed,
      textureBytes: model.memory(),
      times: model.times,
      contexts: device.generation + 1,
    };
  }
}

/** Adds the statistics of a part of a text. */
function add(all: SpeculationStats, part: SpeculationStats): void {
  for (const name of ["checkedSteps", "guessedTokens", "acceptedTokens"] as const) all[name] += part[name];
}

/** Returns the sampling options of a call; the temperature is 0.8 unless given. */
function samplingOf(options: GenerateOptions | ContinuationsOptions): SamplingOptions {
  const { temperature = 0.8 } = options;
  return samplingOptions({ ...options, temperature });
}

/** Throws PageError for an invalid number of tokens or an invalid stop text. */
function checkLength(tokens: number, stop: unknown): void {
  if (!(Number.isInteger(tokens) && tokens >= 0)) {
    throw new PageError(`tokens is ${tokens}; it must be a non-negative integer.`);
  }
  if (stop !== undefined && typeof stop !== "string") throw new PageError("stop must be a string.");
}
