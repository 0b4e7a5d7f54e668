// Defines the scriptable object `globalThis.glgpt`, which the console, pages that embed glgpt, and the tests use.

import { CHAT_TOKENS, fit, type Fitted } from "./runtime/chat/context";
import { checkedMessages, type ChatMessage } from "./runtime/chat/template";
import { Completions } from "./completions";
import { computed, effect, signal, untracked, type ReadonlySignal } from "@preact/signals-core";
import { Device, type Compiling } from "./runtime/gl/device";
import { Loader, type Progress as Fetched } from "./runtime/engine/loader";
import { Queue, unlessAborted } from "./runtime/gl/wait";
import { Model, type ModelOptions } from "./runtime/engine/model";
import { checkOptions } from "./runtime/engine/options";
import type { Parity } from "./runtime/engine/parity";
import { must, PageError, reason } from "./runtime/gl/errors";
import { logProbabilities } from "./runtime/engine/probabilities";
import { checkFinite } from "./runtime/engine/sampling";
import { LanguageModelSession, polyfill, type LanguageModelOptions } from "./language-model";
import { EmbeddedSource, exportId, folder, HOST } from "./document";
import { CHAT, CONTINUATIONS, GENERATE } from "./options";
import type { Answered, ChatOptions, Continuation, ContinuationsOptions, Generated, GenerateOptions } from "./options";
import { parseRecorded, type Manifest, type Recorded } from "./runtime/engine/manifest";
import type { Opened } from "./runtime/engine/opened-model";
import { HttpSource, type Source } from "./runtime/engine/source";
import { writeText, writeTexts, type Writer } from "./text-runs";
import type { Score, ScoreProgress } from "./training/score";
import type { Session } from "./training/session";
import type { Training, Trained, TrainOptions } from "./training/training";
import type { Federation, FederateOptions } from "./training/federate";
import type { FetchedText, FetchOptions } from "./training/fetching";
import type { Files } from "./training/files";
import type * as rareCalls from "./rare-calls";
import type { TrainingCalls } from "./training-calls";
import type { Values } from "./runtime/engine/capture";
import { WarmUp } from "./warm-up";
import { samplingDefaults } from "./runtime/engine/sampling-defaults";

export type { Answered, ChatOptions, Continuation, ContinuationsOptions, Generated, GenerateOptions };

const loaderOf = (source: Source, ending: AbortController) =>
  Loader.open(source, source instanceof HttpSource && source.base.href === folder().href ? exportId() : "", ending);

/** The type of `glgpt.chat`: a function with OpenAI's interface as its property `completions`. */
export interface Chat {
  /**
   * Answers the last of `messages` with up to `tokens` tokens (default: 512). Tokens that the KV cache holds from an
   * earlier turn are not computed again. If the context is full, the oldest turns are left out. Rejects for invalid
   * options, for a model without a chat template, and if even the last turn does not fit the context.
   */
  (messages: readonly ChatMessage[], options?: ChatOptions): Promise<Answered>;
  readonly completions: Completions;
}

/** The loaded bytes of weights and the number of compiled shaders, each with its total. */
export type Progress = Fetched & Compiling;

const USED = ["own", "mine", "file"] as const;

/** The model in use: the page's (`own`), the one in training (`mine`) or one from files (`file`). */
export type Used = (typeof USED)[number];

/** The code of rarely used calls (comparing with the desktop, training), or a function that loads this code. */
export type RareCode = typeof rareCalls | { load: () => Promise<typeof rareCalls> };

/** Returns a copy of a list of token ids. Throws PageError for anything else. */
function copied(ids: readonly number[]): number[] {
  if (Array.isArray(ids) || ArrayBuffer.isView(ids)) return Array.from(ids as readonly number[]);
  throw new PageError(`ids is ${JSON.stringify(ids)}; it must be a list of token ids. glgpt.encode converts a text.`);
}

const disposedOf = () => new PageError("This model was disposed of; call open() again.");

export class Glgpt {
  /** Resolves when the model can be used. Rejects with a message for the user. */
  readonly ready: Promise<void>;
  /** @internal The page's model. */
  own!: Model;
  private readonly current = signal<{ model: Model; used: Used } | null>(null);
  private readonly device = signal<Device | null>(null);
  private readonly trains = signal<TrainingCalls | null>(null);
  private loadingRare: Promise<typeof rareCalls> | null = null;
  private warming!: WarmUp;
  private warmedUp: Promise<void> = Promise.resolve();
  private played: Session | null = null; // the training whose model is in use; null: another model is in use
  private readonly loading = signal<Progress>({ done: 0, total: 0, cached: 0, compiled: 0, shaders: 0 });
  private readonly found = signal<{ document: Recorded; manifest: Manifest } | null>(null);
  private last: number[] = [];
  private readonly queue = new Queue(); // runs one call at a time, because all calls share one set of caches
  private disposed = false;
  private readonly ending = new AbortController(); // aborts the request for the manifest; later, closes the loader
  private unfollow: () => void = () => {};

  /** @internal Called by the page, and by `open` of the embed module. */
  constructor(
    private readonly code: RareCode,
    source: Source | Opened = EmbeddedSource.here() ?? new HttpSource(folder()),
    options: ModelOptions = {},
  ) {
    if (!("load" in code)) this.begin(code);
    this.ready = this.open(source, options);
    this.ready.catch(() => {}); // callers that await `ready` receive the error
  }

  /** @internal The progress of loading, which changes until the model can be used. */
  get progress(): ReadonlySignal<Progress> {
    return this.loading;
  }

  /** @internal True while the graphics context is lost, also before the model can be used. */
  readonly contextLost = computed(() => this.device.value?.contextLost.value ?? false);

  /**
   * @internal The generation that `glgpt export` recorded, which can be shown before the model is loaded. null: it is
   * not loaded yet, or the page has none.
   */
  get recorded(): ReadonlySignal<{ document: Recorded; manifest: Manifest } | null> {
    return this.found;
  }

  /**
   * @internal The model of all calls: the page's, or one selected with `use`. Effects that read this property run again
   * when another model is selected.
   */
  get model(): Model {
    return this.current.value?.model as Model; // undefined until `ready`
  }

  /**
   * @internal Runs `train` and holds the sessions that the page shows. In an embedded object, reading this property
   * throws PageError before the first call that concerns training.
   */
  get training(): Training {
    return must(this.trains.value, "training").training;
  }

  private begin({ TrainingCalls: Calls }: typeof rareCalls): TrainingCalls {
    const host = { own: () => this.own, warmedUp: () => this.warmedUp, queue: this.queue };
    return (this.trains.value = new Calls(host));
  }

  /** Returns the object that implements the calls for training. In the embed module, loads the object's code first. */
  private async trainingCalls(): Promise<TrainingCalls> {
    await this.usable();
    const code = await this.rare();
    await this.usable();
    return this.trains.value ?? this.begin(code);
  }

  /** Returns the code of rarely used calls. In the embed module, loads this code first. */
  private rare(): Promise<typeof rareCalls> {
    if (!("load" in this.code)) return Promise.resolve(this.code);
    return (this.loadingRare ??= this.code.load().catch((error: unknown) => {
      this.loadingRare = null; // the next call tries again
      throw new PageError(`The script of this call, next to glgpt.js, could not be loaded: ${reason(error)}`);
    }));
  }

  /** Returns whether `model` is the page's, the one in training or one from files. */
  get used(): Used {
    return this.current.value?.used ?? "own";
  }

  /** @internal Resolves when the model can be used. Rejects if it cannot be loaded, and after `dispose`. */
  async usable(): Promise<void> {
    if (!this.disposed) await this.ready;
    if (this.disposed) throw disposedOf();
  }

  /**
   * Stops loading and running calls, and releases the model's textures, its training and its WebGL context. All later
   * calls reject. Resolves when everything is released. Saves the current training first, as `pause` does.
   */
  async dispose(): Promise<void> {
    if (this.disposed) return;
    this.disposed = true;
    this.unfollow();
    const { value: device } = this.device;
    if (device?.lost) this.ending.abort(disposedOf()); // without a context, the training cannot be saved: end at once
    device?.abandon(disposedOf());
    await this.trains.value?.close();
    this.ending.abort(disposedOf()); // also ends calls that wait until a lost context is restored
    await this.queue.idle;
    const loaded = await this.ready.then(
      () => true,
      () => false,
    );
    if (loaded) this.release();
  }

  private release(): void {
    for (const model of new Set([this.model, this.own])) model.close();
    this.own.split?.close();
    this.own.device.release();
  }

  private async open(source: Source | Opened, options: ModelOptions): Promise<void> {
    const opened = "loader" in source ? source : null;
    const loading = "loader" in source ? Promise.resolve(source.loader) : loaderOf(source, this.ending);
    loading.catch(() => {}); // if `new Device` throws, for example without WebGL2, `loading` is never awaited
    const device = (this.device.value = new Device(HOST));
    try {
      this.own = await this.load(device, await loading, options, opened);
    } catch (error) {
      this.ending.abort(error); // ends unfinished work
      device.release();
      throw error;
    }
    this.current.value = { model: this.own, used: "own" };
    this.unfollow = effect(() => {
      void this.trains.value?.training.session;
      untracked(() => void this.queue.run(() => this.leave()));
    });
    const busy = () => (this.trains.peek()?.busy ?? false) || this.model.batch.opens;
    this.warming = new WarmUp(this.own, this.queue, busy, (recording) => this.later(recording));
    this.warmedUp = this.warming.atRest().catch((error: unknown) => {
      if (!this.disposed) console.warn("warming up:", error);
    });
  }

  /** Loads the page's model, or `opened`. Shows the recorded generation while the model loads. */
  private async load(device: Device, loader: Loader, options: ModelOptions, opened: Opened | null): Promise<Model> {
    const { signal } = this.ending;
    signal.throwIfAborted();
    signal.addEventListener("abort", () => loader.close(signal.reason), { once: true });
    const follow = () => void (this.loading.value = { ...loader.progress.value, ...device.compiling.value });
    const unfollow = effect(follow);
    // The recorded generation is requested first, because requests for weights would delay it.
    const shown = this.show(loader);
    const model = Model.load(device, loader, options, opened, shown).finally(unfollow);
    try {
      const both = Promise.all([model, shown]);
      const ended = () => Promise.reject(loader.signal.reason as Error);
      const [loaded] = await unlessAborted(both, loader.signal, ended);
      return loaded;
    } catch (error) {
      model.then((late) => late.close()).catch(() => {});
      throw error;
    }
  }

  /** Shows the recorded generation if it can be fetched. Rejects if it is damaged. */
  private async show(loader: Loader): Promise<void> {
    const { manifest } = loader;
    const { recorded } = manifest;
    const document = recorded && (await loader.json(recorded).catch(() => null));
    if (document) this.found.value = { document: parseRecorded(document, recorded, manifest.config), manifest };
  }

  /**
   * Compiles the remaining shaders and measures, once per driver, which kernel (variant of the matrix product) is
   * fastest on this device. A page does both when it is idle; this call does both now. Until the kernels are measured,
   * a page uses the default for this kind of GPU. The next visit uses the fastest kernel.
   */
  async warmUp(): Promise<void> {
    await this.usable();
    const { signal } = this.ending; // `dispose` waits only for the queue, and most of this work is not in the queue
    await unlessAborted(this.warming.now(), signal, () => Promise.reject(signal.reason as Error));
  }

  /** Runs `work` after all earlier calls. Runs `work` again if the WebGL context was lost while `work` ran. */
  private async queued<T>(work: () => Promise<T>): Promise<T> {
    await this.usable();
    return this.queue.run(() => {
      if (this.disposed) throw disposedOf(); // `dispose` may already release the model in training
      return this.lent(async () => {
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
      });
    });
  }

  /** Runs `work` with the model in use. A model in training is used between two steps, with its current parameters. */
  private lent<T>(work: () => Promise<T>): Promise<T> {
    return this.played ? this.played.lend(work) : work();
  }

  /**
   * Selects the model for all calls: `mine` is the model in training, whose textures are shared and not copied; `file`
   * is a model from files written by `glgpt train` or `save`; `own` is the page's model. Closes the previous model. If
   * that is the page's model, only its textures for captures, batches and masked sampling are deleted.
   */
  async use(which: Used, files: readonly File[] = []): Promise<void> {
    await this.usable();
    if (!USED.includes(which)) {
      throw new PageError(`use takes ${USED.join(", ")}, not ${JSON.stringify(which)}.`);
    }
    const training = which === "own" ? this.trains.value?.training : (await this.trainingCalls()).training;
    await training?.settled();
    return this.queue.run(async () => {
      if (which === "own" || !training) this.replace(this.own, "own", null);
      else if (which === "file") {
        this.replace(await this.own.beside(await training.models.saved(files)), which, null);
      } else {
        await training.hold(async (session) => {
          const about = await training.models.trained(session);
          this.replace(await session.lend(() => this.own.beside(about)), which, session);
        });
      }
    });
  }

  private replace(model: Model, used: Used, session: Session | null): void {
    if (this.model === this.own) this.own.rest();
    else this.model.close();
    [this.played, this.last] = [session, []];
    this.current.value = { model, used };
  }

  /** Selects the page's model again if the training whose model is in use has ended. */
  private leave(): Promise<void> {
    const session = this.trains.peek()?.training.session ?? null;
    if (this.played && this.played !== session) this.replace(this.own, "own", null);
    return Promise.resolve();
  }

  /** @internal Returns the names of files that later calls may need on this device. */
  async later(recording = this.own.recording): Promise<string[]> {
    const { manifest } = this.own;
    const more = [recording.interventions, recording.several].filter((name) => name !== undefined);
    const reference = manifest.reference === null ? [] : [manifest.reference];
    if (!manifest.training) return [...reference, ...more];
    const { training } = await this.trainingCalls();
    return [...reference, ...more, manifest.training, ...(await training.offers.files(recording))];
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
    return this.write(() => Promise.resolve(options), options.signal, options.seed);
  }

  /** @internal Generates a text. Gets its options from `prepare` after all earlier calls, which may switch models. */
  async write(prepare: () => Promise<GenerateOptions>, signal?: AbortSignal, seed = 0): Promise<Generated> {
    await this.usable();
    const nothing: Generated = { ids: [], text: "", prefillMs: 0, decodeMs: 0, seed, stopped: "aborted" };
    let begun = false;
    const done = this.queue.run(async () => {
      begun = true;
      return this.disposed ? nothing : writeText(this.writer(), await prepare());
    });
    // A call that waits until a lost WebGL context is restored may block the queue. Aborting the signal therefore also
    // ends a call that is still queued.
    return unlessAborted(done, signal, () => (begun ? done : nothing));
  }

  private writer(): Writer {
    return {
      model: this.model,
      encode: (text) => this.encode(text),
      lend: (work) => this.lent(work),
      onIds: (ids) => (this.last = ids),
      disposed: () => this.disposed,
    };
  }

  /** Answers messages. `chat.completions.create` does this with the interface of OpenAI's API. */
  readonly chat: Chat = Object.assign(
    (messages: readonly ChatMessage[], options: ChatOptions = {}) => this.answer(messages, options),
    { completions: new Completions(this) },
  );

  private async answer(messages: readonly ChatMessage[], options: ChatOptions): Promise<Answered> {
    checkOptions("chat", options, CHAT);
    await this.usable();
    const { dropped = 0, tokens = CHAT_TOKENS, ...others } = options;
    const given = Object.fromEntries(Object.entries<unknown>(others).filter(([, value]) => value !== undefined));
    const asked = checkedMessages(messages); // a copy
    let prompt: Fitted = { ids: [], dropped };
    const prepare = async () => {
      prompt = await this.chatPrompt(asked, tokens, dropped);
      const { sampling, config } = this.model.manifest;
      const space = Math.max(1, config.n_positions - prompt.ids.length + 1);
      return { ...samplingDefaults(sampling), ...given, tokens: Math.min(tokens, space), ids: prompt.ids };
    };
    const answer = await this.write(prepare, options.signal, options.seed);
    return { ...answer, promptTokens: prompt.ids.length, dropped: prompt.dropped };
  }

  /** Starts a session with the interface of the browser's Prompt API. Rejects for a model without a chat template. */
  languageModel(options: LanguageModelOptions = {}): Promise<LanguageModelSession> {
    return LanguageModelSession.create(this, options);
  }

  /** Sets `globalThis.LanguageModel` to this model, unless the browser has its own. Returns true if it was set. */
  polyfillLanguageModel(): boolean {
    return polyfill(this);
  }

  /**
   * Returns the token ids of messages up to where the answer begins, and the number of oldest messages left out: at
   * least `dropped`. The answer needs space for `tokens` tokens or for a quarter of the context, whichever is less. If
   * there is less space, leaves out more messages, but never the last turn.
   */
  async chatPrompt(messages: readonly ChatMessage[], tokens = CHAT_TOKENS, dropped = 0): Promise<Fitted> {
    await this.usable();
    const { chatTemplate, manifest } = this.model;
    if (!chatTemplate) throw new PageError("This model has no chat template; use generate.");
    return fit(chatTemplate, checkedMessages(messages), manifest.config.n_positions, tokens, dropped);
  }

  /**
   * Generates `model.batch.texts` continuations of one prompt in a batch, with the seeds `seed`, `seed` + 1, …. Each
   * text equals the text that `generate` returns for its seed. A batch is faster than separate calls, because each
   * weight is read once for all texts. A text also ends when the context is full, or when the rows of the KV cache that
   * the texts share are full.
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
      return this.lent(() => writeTexts(this.writer(), options)).finally(unfollow);
    });
  }

  /**
   * Returns the logits of every position, `[T * vocab]`. Rejects if a logit is not finite; `activation` then helps to
   * find the first activation that is not finite.
   */
  logits(ids: readonly number[]): Promise<Float32Array> {
    return this.queued(async () => {
      const of = copied(ids);
      this.model.check(of);
      const { data } = (await this.model.activations.read(of, ["logits"])).get("logits")!;
      checkFinite(data);
      return data;
    });
  }

  /** Returns a named activation of `ids`, by default of the text generated last. */
  activation(name: string, ids?: number[]): Promise<Values> {
    return this.queued(async () => {
      const { n_positions } = this.model.manifest.config;
      const of = ids ? copied(ids).slice(0, n_positions) : this.model.context.read(this.last);
      this.model.check(of);
      return (await this.model.activations.read(of, [name])).get(name)!;
    });
  }

  /** Runs the reference prompt and compares the results with those of the desktop. */
  async parity(): Promise<Parity> {
    const { parity } = await this.rare();
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
   * Applies interventions and removes all earlier ones. The name of a part alone, such as `h.3.attn.5` (a head),
   * `h.3.attn`, `h.3.mlp` or `h.3`, ablates the part. `h.3.mlp*0.5` scales a part. `h.2~love~hate~4` steers a block
   * from the second text towards the first, with factor 4. `h.3.mlp@7@text` replaces the part's output at token 7 with
   * its output at token 7 of the given text. `h.3.attn.5:previous` makes a head attend to the previous token. The other
   * patterns are `:uniform` and `:first`.
   */
  intervene(parts: readonly string[]): Promise<void> {
    return this.queued(() => {
      if (!Array.isArray(parts)) {
        throw new PageError(`intervene takes a list of changes, not ${JSON.stringify(parts)}.`);
      }
      return this.model.interventions.apply(parts);
    });
  }

  /**
   * Returns ln of the probability of each token from position `from` on, with the current interventions. Stops when
   * `going` returns false; the remaining values are then 0.
   */
  logProbabilities(ids: readonly number[], from = 1, going?: () => boolean): Promise<Float32Array> {
    return this.queued(() => logProbabilities(this.model, copied(ids), from, going));
  }

  /** @internal Runs `work`, which needs the device, between other calls. */
  borrow<T>(work: (model: Model) => Promise<T>): Promise<T> {
    return this.queued(() => work(this.model));
  }

  /** Trains a model of one of the sizes that the page was exported with. Resolves when all steps are done. */
  async train(options: TrainOptions): Promise<Trained> {
    return (await this.trainingCalls()).train(options);
  }

  /** Fetches a text from an address that the page's policy allows. Rejects with a message for the user. */
  async fetchText(address: string, options: FetchOptions = {}): Promise<FetchedText> {
    return (await this.trainingCalls()).fetchText(address, options);
  }

  /** The federation that this page joined last; null: none. */
  get federation(): Federation | null {
    return this.trains.value?.federation ?? null;
  }

  /**
   * Joins a federation by an invitation link and trains with it. Resolves when the federation's rounds are done or the
   * page has left it. `text` is the user's own text, which does not leave this page. Without `text`, the page trains
   * with the text of the federation.
   */
  async federate(options: FederateOptions): Promise<void> {
    await (await this.trainingCalls()).federate(options);
  }

  /** Pauses the current training. Resolves when its checkpoint is saved. */
  async pause(): Promise<void> {
    await (await this.trainingCalls()).pause();
  }

  /**
   * Resumes the current training, or the training that an earlier visit saved, optionally with a new learning rate
   * `lr`. A failed training first returns to its last checkpoint.
   */
  async resume({ lr }: { lr?: number } = {}): Promise<void> {
    await (await this.trainingCalls()).resume(lr);
  }

  /** Scores the model in training, as `glgpt eval --suite` does. A running training continues afterwards. */
  async score(progress: ScoreProgress = () => {}): Promise<Score> {
    return (await this.trainingCalls()).score(progress);
  }

  /** Returns the trained model's files by name. The desktop's `glgpt generate --model DIR` can load them. */
  async save(): Promise<Files> {
    return (await this.trainingCalls()).training.current().files();
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
