// A model on a device: loads its weights, generates tokens, and returns logits and named activations.

import { ContextLost, Device, type Options } from "../gl/device";
import { Player } from "../gl/player";
import { choose, measure, type Choices, type Measured } from "./probe";
import { Reader } from "../gl/readback";
import { pause, Queue } from "../gl/wait";
import { Capture, writeState, type Values } from "./capture";
import { plan, sizes, windowStart, writeIds, writeToken, type Chunk } from "./chunks";
import { parseIntervention, patched, resolve, streamBehind, writeInterventions, type Intervention, type ResolvedIntervention } from "./interventions";
import { FORMATS } from "./formats";
import { blocks, shape, unpack } from "./layout";
import type { Loader } from "./loader";
import { parseProgram, parseTokenizer, type Manifest, type Recording } from "./manifest";
import { must, PageError } from "../gl/errors";
import { textureBytes, type Program } from "../gl/program";
import { alternatives, certain, chosen, MOST_ALTERNATIVES, Sampler, type Candidate, type Settings } from "./sampling";
import { draft } from "./drafts";
import { Forgotten, MOST_FROM_SERVER, MOST_GUESSES, REPLAYS, Split, type Ask, type Crossing, type Stepped } from "./split";
import { Names } from "./names";
import { Several } from "./several";
import { Tokenizer, type Vocabulary } from "./tokenizer";
import { matrixOf, uploaded, type Uploaded } from "./uploaded";

const LARGE = 200e6; // bytes of weights for which a device may lack memory
const UPLOAD = 4 << 20; // bytes of one upload, between which the page may draw
const UNDER_WAY = 33; // target ms of tokens issued together: two frames
const BUSY = 40; // maximum ms of two tokens issued together; slower ones run one by one to keep the page responsive

export interface ModelOptions {
  fetch?: Options["fetch"];
  drawFlops?: number;
  /** Maximum number of draw buffers. */
  drawBuffers?: number;
  storage?: Options["storage"];
}

export interface Token {
  id: number;
  /** If alternatives were requested: its probability over the whole vocabulary, and the most likely tokens in `top`. */
  p?: number;
  /** The probability with which it was sampled. */
  sampled?: number;
  top?: Candidate[];
  /** Number of further tokens that were read together with this one and follow it. */
  more?: number;
}

/** Inspects a token's textures while its passes are played. */
export interface Watcher {
  /** Returns true to inspect the token that begins now. */
  wants(): boolean;
  /** Passes of `decode` after which it inspects, in order. */
  readonly stops: readonly number[];
  /** Called when one of these passes has been issued. */
  look(pass: number): void;
  /** Called when all passes have been issued, to show the results. */
  done(): void;
  /** Called when a text begins, since the time since the last token does not belong to a token. */
  rest(): void;
}

/** Further options of `continuations`: the texts that have ended, and a callback for the progress of shaders. */
export interface SideBySide {
  over: ReadonlySet<number>;
  onCompiled?: (compiled: number, shaders: number) => void;
}

export interface Run extends Partial<Settings> {
  tokens: number;
  /** Number of tokens already sampled with this seed; their draws are skipped. */
  drawn?: number;
  alternatives?: number;
  /** Stop at the model's end-of-text token (default: true). */
  eos?: boolean;
  signal?: AbortSignal;
}

/** The parameters of a model without shards: those of a training, whose textures it shares, or of a file. */
export interface Weights {
  /** True if the model creates its own textures for them. */
  readonly own: boolean;
  /** Returns the shared textures by name; none if the model creates its own and calls `fill`. */
  shared(): ReadonlyMap<string, WebGLTexture>;
  /** Returns the version of the parameters, which differs after each change. */
  version(): string;
  /** Uploads the parameters into the model's own textures. */
  fill(player: Player): Promise<void>;
}

/** Returns one token's share of the cost of a round trip for `tokens` tokens. */
function shared(crossing: Crossing, tokens: number): Crossing {
  if (tokens === 1) return crossing; // also for a prompt's chunk, which has many rows
  const share = (x: number) => x / tokens;
  const { blocks, sent, received, localMs, networkMs, remoteMs } = crossing;
  const ms = { localMs: share(localMs), networkMs: share(networkMs), remoteMs: share(remoteMs) };
  return { blocks, rows: 1, sent: share(sent), received: share(received), ...ms };
}

/** A model other than the page's: its manifest, its programs and the source of its parameters. */
export interface Beside {
  manifest: Manifest;
  programs: { generate: Program; capture: Program };
  recording: Recording;
  tokenizer: Vocabulary;
  weights: Weights;
}

export class Model {
  tokenizer: Vocabulary | null = null;
  options!: Options;
  recording!: Recording;
  programs!: { generate: Program; capture: Program };
  player!: Player;
  reader!: Reader;
  /** Milliseconds per token of the tokens issued last. Infinity until known, so that one is issued at a time. */
  private tokenMs = Infinity;
  /** The measurements from which recording and fetch are chosen; null: none yet. */
  probe: Measured | null = null;
  /** True if recording and fetch are a guess, since nothing was measured before this visit. */
  guessedKernel = false;
  private choices: Choices | null = null;
  private readonly measuring = new Queue();
  watcher: Watcher | null = null;
  /** The active interventions. */
  interventions: readonly string[] = [];
  private whole: { player: Player; generate: Program } | null = null;
  private intervened: { player: Player; generate: Program } | null = null;
  /** Ids of the tokens whose rows the caches hold. */
  cached: number[] = [];
  /** The server that can run blocks; null: none. */
  readonly split: Split | null;
  /** Number of blocks that run in this page. */
  private blocksHere: number;
  /** Ids of the tokens whose rows the local blocks' caches hold, if the split point is movable. */
  private front: number[] = [];
  /** Number of the context (`Device.generation`) in which its textures were created. */
  private generation = -1;
  private captured: Capture | null = null;
  private several: Several | null = null;
  /** Chunk sizes whose shaders are compiled. */
  private known: number[] = [];
  private seen = ""; // version of the parameters in use
  private onCompiled = (compiled: number, shaders: number) => this.loader.compiling(compiled, shaders);
  /** The sampler of the last text. */
  private sampler = new Sampler({ temperature: 0.8, topK: null, topP: 0.9, seed: 1 });
  times = { fetchMs: 0, uploadMs: 0, compileMs: 0, readyMs: 0 };

  private constructor(
    readonly device: Device,
    readonly loader: Loader,
    readonly modelOptions: ModelOptions,
    readonly manifest: Manifest,
    private readonly weights: Weights | null = null,
  ) {
    this.split = this.manifest.split ? new Split(this.manifest.split) : null;
    if (this.split) this.split.wanted = () => this.remote !== null;
    this.blocksHere = this.manifest.config.n_layer;
  }

  /** True if `here` can be set, since both the page and a server have all blocks. */
  get movable(): boolean {
    return this.manifest.split?.rest === null;
  }

  /** The names of the model's activations and parts. */
  get names(): Names {
    return Names.of(this.manifest);
  }

  /** Returns the ids of a prompt; for an instruct model, of a message in its chat format. */
  promptIds(text: string): number[] {
    const tokenizer = must(this.tokenizer, "a tokenizer");
    return this.manifest.chat ? tokenizer.turn(this.manifest.chat, text) : tokenizer.prompt(text);
  }

  /** Number of the model's blocks, local and remote. */
  get blocks(): number {
    const { split, config } = this.manifest;
    return split ? split.stream.length - 1 : config.n_layer;
  }

  /** True if the server runs this block and the page has no weights for it. */
  isRemote(block: number): boolean {
    return block >= this.manifest.config.n_layer;
  }

  /** Fetches remote activations for `ids`, each into its own texture. The caller closes their players. */
  async fetched(ids: readonly number[], names: readonly string[]): Promise<Map<string, Uploaded>> {
    const found = await this.activations(ids, names);
    const { activations } = this.names;
    return new Map(
      names.map((name) => [name, uploaded(this.device, this.options, name, matrixOf(must(activations.get(name), name), must(found.get(name), name)))]),
    );
  }

  /** Number of blocks that run in this page: all, or those before the server's. */
  get here(): number {
    return this.movable && this.interventions.length ? this.manifest.config.n_layer : this.blocksHere;
  }

  /** Moves the split point. A text that is being generated continues with it. */
  set here(blocks: number) {
    const { n_layer } = this.manifest.config;
    if (!this.movable || blocks === this.blocksHere) return;
    this.blocksHere = blocks;
    this.front = [];
    if (blocks < n_layer) this.split!.aim(`${blocks < n_layer - 1 ? `${blocks}-` : ""}${n_layer - 1},head`);
    else this.split!.leave();
  }

  /** The server if it runs blocks now, else null. */
  private get remote(): Split | null {
    return this.movable && this.here === this.manifest.config.n_layer ? null : this.split;
  }

  /** True if this page computes the logits of a model whose later blocks run on a server. */
  private get headHere(): boolean {
    return this.manifest.split?.head === "page";
  }

  static async load(device: Device, loader: Loader, modelOptions: ModelOptions = {}): Promise<Model> {
    const model = new Model(device, loader, modelOptions, loader.manifest);
    const start = performance.now();
    const { manifest } = model;
    const buffers = Math.min(device.limits.drawBuffers, modelOptions.drawBuffers ?? Infinity);
    const fitting = manifest.recordings.filter((r) => r.draw_buffers <= buffers);
    if (!fitting.length) {
      const least = Math.min(...manifest.recordings.map((r) => r.draw_buffers));
      throw new PageError(`This device renders to ${buffers} textures at once and the model needs ${least}.`);
    }
    // Fetch weights while programs are parsed, unless the device may lack the memory for them.
    if (loader.progress.total < LARGE) loader.begin();
    if (manifest.tokenizer) {
      model.tokenizer = new Tokenizer(parseTokenizer(await loader.json(manifest.tokenizer), manifest.tokenizer));
    }
    await model.kept(async () => {
      const storage = modelOptions.storage ?? device.storage;
      model.choices = { device, recordings: fitting, storage, tuning: manifest.tuning, forced: modelOptions.fetch };
      const chosen = choose(model.choices);
      model.probe = chosen.measured;
      model.guessedKernel = chosen.measured === null;
      model.recording = chosen.recording;
      model.options = { fetch: chosen.fetch, storage };
      model.programs = {
        generate: await model.program(chosen.recording.generate),
        capture: await model.program(chosen.recording.capture),
      };
      await model.build();
    });
    model.times.readyMs = performance.now() - start;
    return model;
  }

  private async program(name: string): Promise<Program> {
    return parseProgram(await this.loader.json(name), name);
  }

  /**
   * Measures which recording and fetch are fastest on this device, if they are a guess so far. The next visit uses
   * them; their files, and those that `later` names, are cached for it. Resolves to false if `going` stopped the
   * measurement.
   */
  measure(later: (recording: Recording) => Promise<string[]>, going: () => boolean = () => true): Promise<boolean> {
    return this.measuring.run(async () => {
      const keep = async (recording: Recording) =>
        this.loader.keep([recording.generate, recording.capture, ...(await later(recording))]);
      if (!this.probe && this.choices) this.probe = await measure(this.choices, (name) => this.program(name), keep, going);
      return this.probe !== null;
    });
  }

  /** Loads another model on the same device with a given recording. `onCompiled` is called as its shaders compile. */
  async beside(about: Beside, onCompiled: (compiled: number, shaders: number) => void = () => {}): Promise<Model> {
    const model = new Model(this.device, this.loader, this.modelOptions, about.manifest, about.weights);
    const start = performance.now();
    Object.assign(model, { tokenizer: about.tokenizer, recording: about.recording, options: this.options });
    model.programs = about.programs;
    model.onCompiled = onCompiled;
    await model.kept(() => model.build());
    model.onCompiled = () => {};
    model.times.readyMs = performance.now() - start;
    return model;
  }

  /** Creates textures, weights and shaders, at first and again after a lost context. */
  private async build(): Promise<void> {
    const { device, options } = this;
    const { generation } = device;
    this.reader = new Reader(device);
    this.tokenMs = Infinity;
    this.captured = null;
    this.cached = [];
    this.front = [];
    this.intervened = null;
    this.several = null;
    if (this.whole) this.programs.generate = this.whole.generate;
    this.known = this.complete || this.weights ? this.recorded : this.recorded.slice(-2);
    this.seen = this.weights?.version() ?? "";
    this.player = new Player(device, this.programs.generate, options, this.weights?.shared(), this.drawFlops, this.reader);
    if (device.full) {
      this.player.close();
      throw new PageError(noMemory(this.programs.generate, this.manifest, this.weights === null));
    }
    this.player.onCompiled = (compiled, shaders) => this.onCompiled(compiled, shaders);
    const start = performance.now();
    const compiled = this.player.prepare(...this.played);
    compiled.catch(() => {}); // awaited below
    let uploading = 0;
    await this.weights?.fill(this.player);
    for await (const { pieces, data } of this.weights ? [] : this.loader.shards()) {
      const before = performance.now();
      device.still(generation);
      await this.upload(pieces, data);
      uploading += performance.now() - before;
    }
    this.times.fetchMs = performance.now() - start - uploading;
    this.times.uploadMs = uploading;
    await compiled;
    this.player.onCompiled = () => {};
    this.times.compileMs = performance.now() - start;
    device.still(generation);
    for (const name of ["token", this.programs.generate.views["logits"]?.texture]) {
      if (name !== undefined && name in this.programs.generate.textures) this.player.readFramebuffers(name);
    }
    this.player.play("prepare");
    device.still(generation);
    this.whole = { player: this.player, generate: this.programs.generate };
    this.generation = generation;
    if (this.interventions.length) await this.intervene(this.interventions);
  }

  /** The recorded chunk sizes, greatest first; the last is 1 (`decode`). */
  private get recorded(): number[] {
    return [...sizes(Object.keys(this.programs.generate.entries), "prefill_"), 1];
  }

  /** True if the shaders of all chunk sizes are compiled. */
  get complete(): boolean {
    return this.known.length === this.recorded.length;
  }

  /** Names of the entries that generation plays. */
  private get played(): string[] {
    const serverSamples = this.split && !this.movable && !this.headHere;
    const drawing = serverSamples ? [] : ["sample", "sample_nucleus"];
    return ["prepare", "decode", ...(this.headHere ? ["head"] : []), ...drawing, ...this.known.slice(0, -1).map((n) => `prefill_${n}`)];
  }

  /**
   * Compiles the shaders of the larger chunk sizes, which loading skips because compilation takes most of its time.
   * Texts may be generated while it runs. `usePrefills` then uses them.
   */
  async compilePrefills(): Promise<void> {
    if (!this.stale) await this.whole?.player.prepare(...this.prefills);
  }

  /** Uses all chunk sizes from now on. Nothing else may use the model until it resolves. */
  async usePrefills(): Promise<void> {
    if (this.stale) return;
    for (const made of [this.whole, this.intervened]) await made?.player.prepare(...this.prefills);
    this.known = this.recorded;
  }

  private get prefills(): string[] {
    return this.recorded.slice(0, -1).map((n) => `prefill_${n}`);
  }

  /**
   * Applies interventions (`parseIntervention`), removes all others and clears the caches. With interventions, all entries
   * play the unfused program that supports them; without any, they play the model's normal program again.
   */
  async intervene(parts: readonly string[], onCompiled: (compiled: number, shaders: number) => void = () => {}): Promise<void> {
    const resolved: ResolvedIntervention[] = [];
    for (const change of parts.map(parseIntervention)) resolved.push(...resolve(this.manifest, change, await this.valuesFor(change)));
    if (parts.length && !this.intervened) {
      if (!this.recording.interventions) throw new PageError("This page was exported without support for changes to the model.");
      const generate = parseProgram(await this.loader.packed(this.recording.interventions), this.recording.interventions);
      const player = new Player(this.device, generate, this.options, must(this.whole, "the whole model").player.shared(), this.drawFlops, this.reader);
      player.onCompiled = onCompiled;
      await player.prepare(...this.played);
      player.onCompiled = () => {};
      player.play("prepare");
      this.intervened = { player, generate };
    }
    const now = must(parts.length ? this.intervened : this.whole, "the model");
    if (parts.length) writeInterventions(now.player, this.manifest, resolved);
    this.player = now.player;
    this.programs.generate = now.generate;
    this.interventions = [...parts];
    this.tokenMs = Infinity;
    this.watcher = null; // it watches textures of the previous program
    this.cached = [];
    this.front = [];
  }

  /**
   * Returns the vector of an intervention, computed by the unchanged model. For steering, this is the difference of the
   * residual stream at the ends of two texts; for a patch, the part's output in another text.
   */
  private async valuesFor({ part, steering, patch }: Intervention): Promise<Float32Array | null> {
    if (patch) return this.rowOf(patched(this.manifest, part).name, patch.text, patch.position);
    if (!steering) return null;
    const name = streamBehind(this.manifest, part);
    const { towards, away } = steering;
    const to = towards ? await this.rowOf(name, towards) : null;
    const from = away ? await this.rowOf(name, away) : null;
    return (to ?? from!).map((_, i) => (to?.[i] ?? 0) - (from?.[i] ?? 0));
  }

  /** Returns an activation at a position of a text, or at the last token of a shorter text. */
  private async rowOf(name: string, text: string, position = Infinity): Promise<Float32Array> {
    const ids = must(this.tokenizer, "a tokenizer").prompt(text);
    this.check(ids);
    const { shape, data } = must((await this.capture.run(ids, [name])).get(name), name);
    const [rows = 1, width = 1] = shape;
    const row = Math.min(position, rows - 1);
    return data.slice(row * width, (row + 1) * width);
  }

  /** Version of the parameters in use; those of a training change with each step. */
  get version(): string {
    return this.seen;
  }

  /** Uses a training's current parameters and clears the caches if they changed. Call it before each use. */
  follow(): void {
    const version = this.weights?.version() ?? "";
    if (!this.weights || version === this.seen) return;
    this.seen = version;
    this.cached = [];
    this.front = [];
    const shared = this.weights.shared();
    const players = [this.whole?.player, this.intervened?.player, this.captured?.player];
    for (const player of players) player?.adopt(shared);
    for (const player of players.slice(0, 2)) player?.play("prepare");
  }

  /** Deletes the textures that only captures and continuations need. They are created again when needed. */
  rest(): void {
    if (!this.stale) this.captured?.player.close();
    this.captured = null;
    this.closeSeveral();
  }

  /** Deletes the textures of batched continuations. */
  closeSeveral(): void {
    if (!this.stale) this.several?.close();
    this.several = null;
  }

  /** Releases GPU resources. The model cannot be used afterwards. */
  close(): void {
    this.rest();
    if (this.stale) return;
    this.intervened?.player.close();
    this.whole?.player.close();
  }

  /** Maximum operations of one draw. */
  get drawFlops(): number {
    return this.modelOptions.drawFlops ?? this.manifest.tuning.draw_flops;
  }

  /** True if the context was lost and the model was not built again. */
  get stale(): boolean {
    return this.device.lost || this.generation !== this.device.generation;
  }

  private async upload(pieces: [string, number, number, number][], data: Uint8Array): Promise<void> {
    const { generation } = this.device;
    let offset = 0;
    for (const [name, layer, y, rows] of pieces) {
      const view = must(this.programs.generate.views[name], `view ${name}`);
      const row = shape(view).width * 16;
      const band = Math.max(1, Math.floor(UPLOAD / row));
      for (let at = 0; at < rows; at += band) {
        const count = Math.min(band, rows - at);
        const texels = data.subarray(offset, offset + count * row);
        for (const block of blocks(view, layer, y + at, count)) this.player.writeBlock(name, block, texels);
        offset += count * row;
        if (count * row >= UPLOAD / 2) {
          await pause();
          this.device.still(generation);
        }
      }
    }
  }

  /** Runs `work`, and restarts it each time the context is lost while it runs. */
  private async kept(work: () => Promise<void>, signal?: AbortSignal): Promise<void> {
    const { device } = this;
    const given = new Promise((resolve) => {
      if (signal?.aborted) resolve(null);
      signal?.addEventListener("abort", resolve, { once: true });
    });
    for (;;) {
      await Promise.race([device.restored, given]);
      if (signal?.aborted) return;
      const { generation } = device;
      try {
        await work();
        return;
      } catch (error) {
        if (!device.lost && generation === device.generation) throw error;
        await pause();
      }
    }
  }

  /** Waits for the context to be restored and builds the model again; shards are read from the browser's cache. */
  recover(signal?: AbortSignal): Promise<void> {
    return this.kept(() => this.build(), signal);
  }

  check(ids: readonly number[]): void {
    const { vocab_size, n_positions } = this.manifest.config;
    if (ids.length === 0) throw new PageError("The prompt is empty; give at least one character.");
    if (ids.length > n_positions) {
      throw new PageError(
        `The prompt has ${ids.length} tokens and the model's context holds ${n_positions}; shorten it.`,
      );
    }
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocab_size));
    if (wrong !== undefined) throw new PageError(`Id ${wrong} is outside the vocabulary of ${vocab_size}.`);
  }

  /** True if a text ends with this token. */
  private ends(id: number): boolean {
    return this.manifest.eos?.includes(id) ?? false;
  }

  /**
   * Continues `ids` and yields each token as soon as it is known. The text, including tokens generated earlier, may be
   * longer than the model's context (`windowStart`). Resumes if the graphics context is lost and restored.
   */
  async *generate(ids: readonly number[], run: Run): AsyncGenerator<Token> {
    const { n_positions } = this.manifest.config;
    this.check(ids.slice(0, Math.max(0, ids.length - (run.drawn ?? 0))));
    const { temperature = 1, topK = null, topP = null, minP = null, seed = Math.floor(Math.random() * 2 ** 32) } = run;
    const { repetitionPenalty = null, logitBias = null } = run;
    const sampler = (this.sampler = new Sampler({ temperature, topK, topP, minP, repetitionPenalty, logitBias, seed }));
    if (sampler.adjusts && this.remote) {
      throw new PageError("A model that runs on a server supports neither repetition penalty nor logit bias.");
    }
    const text = [...ids];
    let left = run.tokens;
    while (left > 0 && !run.signal?.aborted) {
      const { here } = this;
      const read = this.window(text);
      const room = Math.min(left, n_positions - read.length + 1); // the last token is computed from a full context
      try {
        const drawn = (run.drawn ?? 0) + text.length - ids.length;
        for await (const token of this.remote
          ? this.crossing(read, room, run, sampler, drawn)
          : this.stream(read, room, run, sampler, drawn)) {
          left--;
          if (run.eos !== false && this.ends(token.id)) return;
          yield token;
          text.push(token.id);
          read.push(token.id);
          if (run.signal?.aborted) return;
          if (this.here !== here) break;
        }
      } catch (error) {
        // the split point moved while the server was offline
        if (this.here !== here && !run.signal?.aborted && !this.device.lost) continue;
        if (!(error instanceof ContextLost) && !this.device.lost) throw error;
        await this.recover(run.signal);
      }
    }
  }

  /**
   * Generates several continuations of one prompt in a batch, with the seeds `seed`, `seed` + 1, …. Each iteration
   * yields one token per text, null for a text that has ended or is `over`. The tokens equal those of `generate` with
   * each seed. If the graphics context is lost and restored, it starts again and skips the tokens already yielded.
   */
  async *continuations(ids: readonly number[], run: Run, wish: SideBySide): AsyncGenerator<(Token | null)[]> {
    const { seed = Math.floor(Math.random() * 2 ** 32) } = run;
    this.check(ids);
    for (let given = 0; !run.signal?.aborted;) {
      try {
        let at = 0;
        for await (const tokens of this.sideBySide(ids, { ...run, seed }, wish)) {
          if (at++ < given) continue;
          given++;
          yield tokens;
        }
        return;
      } catch (error) {
        if (!(error instanceof ContextLost) && !this.device.lost) throw error;
        await this.recover(run.signal);
      }
    }
  }

  private async *sideBySide(ids: readonly number[], run: Run & { seed: number }, { over, onCompiled }: SideBySide): AsyncGenerator<(Token | null)[]> {
    const { temperature = 1, topK = null, topP = null, minP = null, repetitionPenalty = null, logitBias = null, seed } = run;
    const several = await this.opened(onCompiled);
    if (run.signal?.aborted) return;
    const settings = { temperature, topK, topP, minP, repetitionPenalty, logitBias };
    const texts = Array.from({ length: several.size }, (_, i) => ({
      ids: [...ids],
      sampler: new Sampler({ ...settings, seed: seed + i }),
      ended: false,
    }));
    const count = Math.min(run.tokens, several.room(ids.length));
    for (let step = 0; step < count; step++) {
      if (step === 0) this.prefill(ids);
      if (step === 1) several.begin(ids.length);
      if (step > 0) several.step(step - 1, texts.map((text) => text.ids.at(-1)!));
      const drawn = texts.map(async ({ sampler, ended }, i) => {
        if (ended || over.has(i) || sampler.adjusts) return null;
        if (step > 0) several.take(i);
        return this.chosen(sampler, step);
      });
      await Promise.allSettled(drawn);
      const tokens: (Token | null)[] = [];
      for (const [i, text] of texts.entries()) {
        let token = await drawn[i]!;
        if (!token && !text.ended && !over.has(i)) {
          if (step > 0) several.take(i);
          token = await this.fromRow(text.ids, false, text.sampler, step);
        }
        if (run.eos !== false && token && this.ends(token.id)) token = null;
        if (token) text.ids.push(token.id);
        else text.ended = true;
        tokens.push(token);
      }
      yield tokens;
      if (run.signal?.aborted || tokens.every((token) => !token)) return;
    }
  }

  /** Number of texts that `continuations` generates; 0: not available in the model's current state. */
  get texts(): number {
    return this.recording.several && !this.interventions.length && !this.remote ? (this.manifest.tuning.texts ?? 0) : 0;
  }

  /** Returns the textures and shaders for continuations, created on first use. */
  private async opened(onCompiled: (compiled: number, shaders: number) => void = () => {}): Promise<Several> {
    const { several: name } = this.recording;
    if (!name) throw new PageError("This model was exported without support for several texts at once.");
    if (this.interventions.length) throw new PageError("Parts of the model are changed; restore them to write several texts.");
    if (this.remote) throw new PageError("A model that runs on a server writes one text at a time.");
    if (!this.several) {
      const program = parseProgram(await this.loader.packed(name), name);
      const main = must(this.whole, "the whole model").player;
      const player = new Player(this.device, program, this.options, main.shared(["weight", "state"]), this.drawFlops, this.reader);
      if (this.device.full) {
        player.close();
        throw new PageError("This device does not have enough memory for several texts at once.");
      }
      player.onCompiled = onCompiled;
      try {
        await player.prepare(...Several.played(Object.keys(program.entries)));
      } catch (error) {
        if (!this.stale) player.close();
        throw error;
      }
      player.onCompiled = () => {};
      this.several = new Several(player, this.manifest.config.n_positions);
    }
    return this.several;
  }

  /** Returns the tokens of a text from which the next one is computed. */
  window(text: readonly number[]): number[] {
    return text.slice(windowStart(text.length, this.manifest.config.n_positions));
  }

  /** Returns the tokens from which a text's last token was computed, plus that token if the context has room for it. */
  read<T>(text: readonly T[]): T[] {
    const { n_positions } = this.manifest.config;
    const from = this.readFrom(text.length);
    return text.slice(from, from + n_positions);
  }

  /** Returns where these tokens begin in a text of this many tokens. */
  readFrom(tokens: number): number {
    return windowStart(Math.max(1, tokens) - 1, this.manifest.config.n_positions);
  }

  /** Generates tokens that the device samples. Several are issued at once, and a few texels of each are read. */
  private async *stream(text: number[], count: number, run: Run, sampler: Sampler, drawn: number): AsyncGenerator<Token> {
    let under: Promise<Token | null>[] = [];
    const { here } = this;
    const first = text.length;
    let [began, together] = [0, 1]; // when the latest tokens were issued, and how many
    try {
      for (let issued = 0, taken = 0; taken < count; taken++) {
        if (issued === taken) {
          // Tokens issued together share a fence and a read. None is issued before the read, which would wait for it.
          const most = taken && !sampler.adjusts ? this.ahead() : 1;
          began = performance.now();
          for (; issued < count && issued - taken < most; issued++) {
            if (issued === 0) this.prefill(text);
            else this.decode(first + issued - 1);
            const token = sampler.adjusts ? Promise.resolve(null) : this.chosen(sampler, drawn + issued, run.alternatives);
            token.catch(() => {}); // awaited below
            under.push(token);
          }
          together = issued - taken;
          this.reader.close();
        }
        let token = await under.shift()!;
        if (taken) this.cached.push(text.at(-1)!);
        if (!token) {
          await Promise.allSettled(under); // discarded: they follow another token
          under = [];
          together = 1;
          token = await this.fromRow(text, taken > 0 && !sampler.adjusts, sampler, drawn + taken, run.alternatives);
          issued = taken + 1;
        }
        if (taken) {
          if (under.length === together - 1) this.tokenMs = (performance.now() - began) / together;
          this.report(here, this.tokenMs);
        }
        if (under.length) token.more = under.length;
        yield token;
        if (run.signal?.aborted) return;
      }
    } finally {
      await Promise.allSettled(under);
    }
  }

  /** Returns how many tokens to issue at once. */
  private ahead(): number {
    const fitting = Math.min(this.manifest.tuning.ahead, Math.floor(UNDER_WAY / this.tokenMs));
    return Math.max(1, fitting, 2 * this.tokenMs <= BUSY ? 2 : 1);
  }

  /** Returns the token that the device chooses from its logits; null if it cannot decide. */
  private async chosen(sampler: Sampler, step: number, weighed = 0): Promise<Token | null> {
    const rows = weighed > MOST_ALTERNATIVES ? this.logitsRow() : null;
    const entry = sampler.entry ?? (weighed && !rows ? "sample" : null);
    if (entry) {
      this.tell(sampler, step);
      this.player.play(entry);
    }
    const [texels, logits] = await Promise.all([this.player.read("token"), rows]);
    const found = chosen(texels, sampler);
    if (found.undecided) return null;
    if (!weighed) return { id: found.id };
    if (!logits) return { id: found.id, ...found.weighed(weighed) };
    const draw = sampler.greedy ? certain(found.id) : sampler.draw(logits, step);
    return { id: found.id, ...alternatives(logits, weighed, found.id, draw) };
  }

  /** Sets the scalars of the entries that sample. */
  private tell(sampler: Sampler, step: number): void {
    const scalars = sampler.scalars(step, this.manifest.config.vocab_size);
    for (const [name, value] of Object.entries(scalars)) this.player.set(name, value);
  }

  /** Samples the token after `text` in the page. `again`: recompute its logits, which the device no longer holds. */
  private async fromRow(text: readonly number[], again: boolean, sampler: Sampler, step: number, weighed = 0): Promise<Token> {
    if (again) {
      this.writeToken(text.at(-1)!);
      this.decode(text.length - 1);
    }
    const logits = await this.logitsRow();
    const draw = sampler.draw(sampler.adjusted(logits, text), step);
    this.writeToken(draw.id);
    return { id: draw.id, ...(weighed ? alternatives(logits, weighed, draw.id, draw) : {}) };
  }

  /** Reports a token that this page alone computed, with this many blocks, in this many milliseconds. */
  private report(blocks: number, localMs: number): void {
    this.split?.onCrossing({ blocks, rows: 1, sent: 0, received: 0, localMs, networkMs: 0, remoteMs: 0 });
  }

  /**
   * Generates tokens with the server: sends hidden states, then receives tokens or, if the head is local, samples them.
   */
  private async *crossing(text: number[], count: number, run: Run, sampler: Sampler, drawn: number): AsyncGenerator<Token> {
    const { temperature, topK, topP, minP, seed } = sampler.settings;
    const weighed = Math.min(run.alternatives ?? 0, MOST_FROM_SERVER);
    const ask = { temperature, top_k: topK, top_p: topP, min_p: minP ?? 0, seed, alternatives: weighed };
    const split = this.split!;
    for (let taken = 0; taken < count;) {
      try {
        const guesses = split.guesses && !this.headHere ? draft(text, Math.min(MOST_GUESSES, count - taken - 1)) : [];
        const found = await this.cross(text, { ...ask, draw: drawn + taken }, run.signal, guesses);
        if (this.headHere) {
          yield await this.finished(found, sampler, drawn + taken, run.alternatives);
          taken++;
          continue;
        }
        const share = shared(found.crossing, found.chosen.length);
        for (const token of found.chosen) {
          taken++;
          yield token;
          split.onCrossing(share);
        }
      } catch (error) {
        if (run.signal?.aborted) return; // stopped while the server was offline
        throw error;
      }
    }
  }

  /**
   * Runs the rows of `ids` that the page and the server do not hold yet. Resolves to the token after them, and after
   * each of `guesses` up to the first wrong one. If the session is lost, all rows are sent again without guesses.
   */
  private async cross(ids: readonly number[], ask: Ask, signal?: AbortSignal, guesses: readonly number[] = []): Promise<Stepped> {
    const split = this.split!;
    const { n_positions } = this.manifest.config;
    for (let replays = 0; ; replays++) {
      if (replays > REPLAYS) {
        throw new PageError(`The server lost the text ${REPLAYS} times while reading it. Check the connection to it.`);
      }
      if (!this.remote) throw new PageError("All blocks run in this page now."); // `generate` continues here
      await split.connect(signal);
      const { here: blocks } = this;
      const { reconnects } = split;
      const from = Math.min(this.held(ids, this.movable ? this.front : this.cached), split.common(ids));
      try {
        const answers: Promise<Stepped>[] = [];
        const guessed = guesses.length > 0 && from === ids.length - 1 ? this.guessed(from, 1 + guesses.length) : null;
        const fed = guessed ? [...ids, ...guesses] : ids;
        const asked = guessed ? { ...ask, guesses } : ask;
        const chunks = guessed ? [guessed] : plan(ids.length, n_positions, this.known, this.manifest.tuning, from);
        for (const chunk of chunks) {
          const start = performance.now();
          const states = await this.hidden(fed, chunk);
          if (split.reconnects !== reconnects) throw new Forgotten(0); // an earlier chunk may be lost
          const last = chunk === chunks.at(-1) && !this.headHere ? asked : null;
          const answer = split.step(fed, chunk.start, chunk.valid, states, { blocks, ms: performance.now() - start }, last);
          answer.catch(() => {}); // awaited below, after the next chunk is computed
          answers.push(answer);
        }
        const found = await split.unlessStopped(Promise.all(answers), signal);
        const { vocab_size } = this.manifest.config;
        if (found.some(({ chosen }) => chosen.some(({ id }) => id >= vocab_size))) {
          throw new PageError("The server answered with a token that is not in the model's vocabulary.");
        }
        for (const earlier of found.slice(0, -1)) split.onCrossing(earlier.crossing);
        return must(found.at(-1), "an answer from the server");
      } catch (error) {
        if (!(error instanceof Forgotten) || signal?.aborted) throw error;
      }
    }
  }

  /** Returns one chunk for a token and its guesses; null if the context has no room for the chunk on either side. */
  private guessed(start: number, valid: number): Chunk | null {
    const size = Math.min(...this.known.filter((s) => s >= valid));
    return start + Math.max(size, MOST_GUESSES + 1) <= this.manifest.config.n_positions ? { start, valid, size } : null;
  }

  /** Samples the token after the server's last hidden state in the page. */
  private async finished({ hidden, crossing }: Stepped, sampler: Sampler, step: number, weighed = 0): Promise<Token> {
    const start = performance.now();
    this.end(must(hidden, "hidden states from the server"));
    let token = await this.chosen(sampler, step, weighed);
    if (!token) {
      const logits = await this.logitsRow();
      const draw = sampler.draw(logits, step);
      token = { id: draw.id, ...(weighed ? alternatives(logits, weighed, draw.id, draw) : {}) };
    }
    this.split!.onCrossing({ ...crossing, localMs: crossing.localMs + performance.now() - start });
    return token;
  }

  /** Plays the head for the last of these hidden states. The device then holds its logits. */
  end(states: Float32Array): void {
    const view = must(this.programs.generate.views["hidden.1"], "view hidden.1");
    writeState(this.player, view, states.subarray(states.length - view.cols));
    this.player.play("head");
  }

  /** Runs a chunk of `ids` through the local blocks and returns their hidden states, `[valid, n_embd]`. */
  private async hidden(ids: readonly number[], chunk: Chunk): Promise<Float32Array> {
    const name = chunk.size === 1 ? "decode" : `prefill_${chunk.size}`;
    const entry = must(this.programs.generate.entries[name], `entry ${name}`);
    const rows = chunk.start + chunk.valid;
    const { stream } = this.split!.settings;
    const output = this.movable ? must(stream[this.here], "a state of the residual stream") : "hidden";
    const view = must(entry.outputs[output], `output ${output}`);
    if (this.movable) {
      this.playChunk(ids, chunk, 1 + entry.passes.findLastIndex((p) => p.outputs.some(([texture]) => texture === view.texture)));
      this.front = ids.slice(0, rows);
      this.cached.length = this.held(ids, this.cached); // the later blocks' caches lack the other rows
    } else {
      this.playChunk(ids, chunk);
      this.cached = ids.slice(0, rows);
    }
    const states = unpack(view, await this.player.read(view.texture));
    return states.subarray(0, chunk.valid * view.cols);
  }

  /** Returns named activations of `ids`; those of remote blocks come from the server. */
  async activations(ids: readonly number[], names: readonly string[]): Promise<Map<string, Values>> {
    const { split, config } = this.manifest;
    if (!split || !this.split || this.movable) return this.capture.run(ids, names);
    const ofHead = this.headHere ? names.filter((name) => this.capture.ofHead.includes(name)) : [];
    const remoteNames = names.filter((name) => split.activations.has(name));
    const last = must(split.stream[config.n_layer], "the stream after the page's blocks"); // sent to the server
    const own = names.filter((name) => !remoteNames.includes(name) && !ofHead.includes(name));
    const found = await this.capture.run(ids, [...new Set([...own, last])]);
    const states = found.get(last)!;
    if (remoteNames.length || ofHead.length) {
      const end = ofHead.length > 0 || remoteNames.includes("logits");
      const looked = await this.split.look(states.data, ids.length, remoteNames.filter((name) => name !== "logits"), end);
      for (const [name, values] of looked) found.set(name, values);
      if (ofHead.length) {
        const ended = await this.capture.head(must(looked.get("hidden"), "hidden states").data, ofHead);
        for (const [name, values] of ended) found.set(name, values);
      }
    }
    return new Map(names.map((name) => [name, must(found.get(name), name)]));
  }

  private async logitsRow(): Promise<Float32Array> {
    const view = must(this.programs.generate.views["logits"], "view logits");
    return unpack(view, await this.player.read(view.texture));
  }

  private decode(position: number, end = Infinity): void {
    this.player.set("pos", position);
    if (this.watcher?.wants()) {
      this.watched("decode", this.watcher, end);
      this.watcher.done();
    } else {
      this.player.play("decode", 0, end);
    }
  }

  /** Plays an entry and calls the watcher after each of its stops. */
  watched(entry: string, watcher: Watcher, end = Infinity): void {
    let from = 0;
    for (const stop of watcher.stops) {
      if (stop >= end) break;
      this.player.play(entry, from, stop + 1);
      watcher.look(stop);
      from = stop + 1;
    }
    this.player.play(entry, from, end);
  }

  /** Returns how many of these tokens the caches hold. The last does not count, since its logits are needed. */
  held(ids: readonly number[], cached: readonly number[] = this.cached): number {
    let held = 0;
    while (held < ids.length - 1 && held < cached.length && ids[held] === cached[held]) held++;
    return held;
  }

  /** Marks the caches' rows from `position` on as invalid. */
  forget(position: number): void {
    this.cached.length = Math.min(this.cached.length, position);
    this.front.length = Math.min(this.front.length, position);
  }

  /** Plays the tokens of `ids` that the caches do not hold. The device then holds the logits after the last. */
  private prefill(ids: readonly number[]): void {
    this.watcher?.rest();
    for (const chunk of plan(ids.length, this.manifest.config.n_positions, this.known, this.manifest.tuning, this.held(ids))) {
      this.playChunk(ids, chunk);
    }
    this.cached = [...ids];
    this.front = [];
  }

  /** Plays a chunk, up to pass `end` of its entry. */
  private playChunk(ids: readonly number[], chunk: Chunk, end = Infinity): void {
    if (chunk.size === 1) {
      this.writeToken(ids[chunk.start]!);
      this.decode(chunk.start, end);
    } else {
      writeIds(this.player, ids, chunk);
      this.player.set("pos", chunk.start);
      this.player.set("row", chunk.valid - 1);
      this.player.play(`prefill_${chunk.size}`, 0, end);
    }
  }

  /**
   * Returns the probability of token `at` of `ids` and the `count` most likely tokens in its place, by playing the
   * previous token again. `level`: the log of the softmax's denominator.
   */
  async weighed(ids: readonly number[], at: number, count: number): Promise<Token & { level: number }> {
    const id = must(ids[at], `token ${at}`);
    const found = (logits: Float32Array) => {
      const { top, ...own } = alternatives(logits, count, id);
      return { id, ...own, top, level: logits[top[0]!.id]! - Math.log(top[0]!.p) };
    };
    const before = this.window(ids.slice(0, at));
    if (this.split && !this.movable) {
      const wish = { temperature: 0, top_k: null, top_p: null, min_p: 0, seed: 0, draw: 0, alternatives: 0, logits: true };
      const { chosen, hidden } = await this.cross(before, wish);
      if (hidden) this.end(hidden);
      const logits = hidden ? await this.logitsRow() : must(chosen[0]?.logits, "logits from the server");
      return found(logits);
    }
    this.fill(before);
    this.writeToken(must(before.at(-1), "a previous token"));
    this.decode(before.length - 1);
    return found(await this.logitsRow());
  }

  /**
   * Returns ln of the probability of each token from `from` on, given the earlier ones and the current interventions.
   */
  async logProbabilities(ids: readonly number[], from: number, going: () => boolean = () => true): Promise<Float32Array> {
    const found = new Float32Array(ids.length - from);
    for (let at = from; at < ids.length && going(); at++) {
      const { p = 0 } = await this.weighed(ids, at, 1);
      found[at - from] = Math.log(p);
    }
    return found;
  }

  /** Fills the caches with the rows of these tokens. */
  fill(ids: readonly number[]): void {
    this.check(ids);
    if (this.cached.length < ids.length || ids.some((id, i) => id !== this.cached[i])) this.prefill(ids);
  }

  /** Prepares scalars and inputs to play `entry` again for the last token (or chunk) of `ids` with the same result. */
  rewind(ids: readonly number[], entry: string): void {
    this.fill(ids);
    const inputs = this.programs.generate.entries[entry]?.inputs ?? [];
    const size = Math.max(0, ...sizes(inputs, "ids."));
    if (size) {
      const from = Math.max(0, ids.length - size);
      const chunk = { start: from, valid: Math.min(size, ids.length - from), size };
      writeIds(this.player, ids, chunk);
      this.player.set("row", chunk.valid - 1);
      this.player.set("pos", from);
    } else {
      this.writeToken(ids.at(-1)!);
      this.player.set("pos", ids.length - 1);
    }
    if (entry.startsWith("sample")) {
      this.player.play("decode"); // the logits, and the best token
      this.tell(this.sampler, ids.length);
    }
  }

  private writeToken(id: number): void {
    writeToken(this.player, id);
  }

  get capture(): Capture {
    this.captured ??= new Capture(
      this.manifest,
      new Player(
        this.device,
        this.programs.capture,
        this.options,
        this.player.shared(),
        this.drawFlops,
        this.reader,
      ),
    );
    return this.captured;
  }

  /** True if its weights are the textures of a training. */
  get borrows(): boolean {
    return this.weights?.own === false;
  }

  /** Returns the bytes of the existing textures by purpose. */
  memory(): Record<string, number> {
    const { generate, capture } = this.programs;
    const whole = this.whole?.generate ?? generate;
    const own = ["state", "input", "scratch"];
    return {
      weight: this.borrows ? 0 : textureBytes(whole, ["weight"]),
      ...Object.fromEntries(own.map((role) => [role, textureBytes(whole, [role])])),
      capture: this.captured ? textureBytes(capture, own) : 0,
      several: this.several?.bytes ?? 0,
      interventions: this.intervened ? textureBytes(this.intervened.generate, own) : 0,
    };
  }
}

/** Returns the message for a device without enough memory for the model's textures. */
function noMemory(program: Program, { dtype, config, split }: Manifest, exported: boolean): string {
  const all = textureBytes(program);
  const weights = textureBytes(program, ["weight"]);
  const size = (bytes: number) => (bytes < 1e9 ? `${Math.ceil(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`);
  const formats = exported ? (["f16", "q8", "q4"] as const) : [];
  const narrower = formats.filter((name) => FORMATS[name].columnTiles > FORMATS[dtype].columnTiles);
  const instead = narrower.map((name) => {
    const share = FORMATS[dtype].columnTiles / FORMATS[name].columnTiles;
    return `about ${size(all - weights + weights * share)} with --dtype ${name}`;
  });
  const caches = textureBytes(program, ["state"]);
  if (!split) instead.push(`about ${size(all - caches / 2)} with --context ${Math.ceil(config.n_positions / 2)}`);
  return (
    `This device does not have enough memory for the ${size(all)} of textures that the model takes in ${dtype}. ` +
    (exported && instead.length
      ? `The page can be exported with less: ${instead.join(", ")}.`
      : "A smaller model may fit.")
  );
}
