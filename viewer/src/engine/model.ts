// A model on a device: weights in, tokens, logits and named intermediates out. It does not know what the passes compute.

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

const LARGE = 200e6; // bytes of weights that a device may have no memory for
const UPLOAD = 4 << 20; // bytes of one upload, between which the page may draw
const UNDER_WAY = 33; // ms of tokens under way: two frames
const BUSY = 40; // ms that two tokens may take; slower ones are computed one by one, so that frames and Stop do not wait

export interface ModelOptions {
  fetch?: Options["fetch"];
  drawFlops?: number;
  /** Forces this many draw buffers at most. */
  drawBuffers?: number;
  storage?: Options["storage"];
}

export interface Token {
  id: number;
  /** Where alternatives were asked for: its probability among the whole vocabulary, and the likeliest tokens. */
  p?: number;
  /** The probability with which the sampler drew it. */
  sampled?: number;
  top?: Candidate[];
  /** How many tokens that were read together with it follow. */
  more?: number;
}

/** Looks at a token's textures while its passes are played. */
export interface Watcher {
  /** Whether it wants to see the token that begins now. */
  wants(): boolean;
  /** Passes of `decode` after which it looks, in order. */
  readonly stops: readonly number[];
  /** Called when the pass has been issued. */
  look(pass: number): void;
  /** Called when all have been issued: it shows what it has seen. */
  done(): void;
  /** Called when a text begins: the time since the last token is no token's. */
  rest(): void;
}

/** What `continuations` asks beyond one text: which texts have ended, and who hears of its shaders. */
export interface SideBySide {
  over: ReadonlySet<number>;
  onCompiled?: (compiled: number, shaders: number) => void;
}

export interface Run extends Partial<Settings> {
  tokens: number;
  /** Tokens that were sampled with this seed before: as many draws are left out. */
  drawn?: number;
  alternatives?: number;
  /** Whether the model's end of text ends it (true). */
  eos?: boolean;
  signal?: AbortSignal;
}

/** The parameters of a model that has no shards: those of a training, whose textures it uses, or of a file. */
export interface Weights {
  /** Whether the model has textures of its own for them. */
  readonly own: boolean;
  /** Textures of another player that are used as they are, by name; none where the model makes its own, for `fill`. */
  shared(): ReadonlyMap<string, WebGLTexture>;
  /** Another one for other parameters. */
  version(): string;
  /** Uploads the parameters into the model's own textures. */
  fill(player: Player): Promise<void>;
}

/** The share of one of `tokens` in what a round trip took. */
function shared(crossing: Crossing, tokens: number): Crossing {
  if (tokens === 1) return crossing; // of a prompt's chunk, too, whose rows are many
  const share = (x: number) => x / tokens;
  const { blocks, sent, received, localMs, networkMs, remoteMs } = crossing;
  const ms = { localMs: share(localMs), networkMs: share(networkMs), remoteMs: share(remoteMs) };
  return { blocks, rows: 1, sent: share(sent), received: share(received), ...ms };
}

/** A model beside the page's own: what there is to know of it, its programs, and where its parameters come from. */
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
  /** Milliseconds of each of the tokens that were issued together last; Infinity, and so one at a time, until known. */
  private tokenMs = Infinity;
  /** What was measured to choose the recording and the fetch; null: nothing yet, they are a guess. */
  probe: Measured | null = null;
  /** Whether the recording and the fetch are a guess, since nothing was measured before this visit. */
  guessedKernel = false;
  private choices: Choices | null = null;
  private readonly measuring = new Queue();
  watcher: Watcher | null = null;
  /** Parts that are cut at present. */
  interventions: readonly string[] = [];
  private whole: { player: Player; generate: Program } | null = null;
  private intervened: { player: Player; generate: Program } | null = null;
  /** Tokens whose rows the caches hold. */
  cached: number[] = [];
  /** The server that runs blocks; null where there is none. */
  readonly split: Split | null;
  /** How many blocks run in this page. */
  private blocksHere: number;
  /** Tokens whose rows the caches of the blocks in this page hold, where it has the others, too. */
  private front: number[] = [];
  /** Of the contexts, the one that its textures live in. */
  private generation = -1;
  private captured: Capture | null = null;
  private several: Several | null = null;
  /** Chunk sizes whose shaders are compiled. */
  private known: number[] = [];
  private seen = ""; // version of the parameters
  private onCompiled = (compiled: number, shaders: number) => this.loader.compiling(compiled, shaders);
  /** Of the last text. */
  private sampler = new Sampler({ temperature: 0.8, topK: null, topP: 0.9, seed: 1 });
  times = { fetchMs: 0, uploadMs: 0, compileMs: 0, readyMs: 0 };

  private constructor(
    readonly device: Device,
    readonly loader: Loader,
    readonly wishes: ModelOptions,
    readonly manifest: Manifest,
    private readonly weights: Weights | null = null,
  ) {
    this.split = this.manifest.split ? new Split(this.manifest.split) : null;
    if (this.split) this.split.wanted = () => this.remote !== null;
    this.blocksHere = this.manifest.config.n_layer;
  }

  /** Whether `here` can be set: the page has all blocks, and a server that runs them, too. */
  get movable(): boolean {
    return this.manifest.split?.rest === null;
  }

  /** What the model calls the things it computes. */
  get names(): Names {
    return Names.of(this.manifest);
  }

  /** The ids of a prompt; of a message to an instruct model, in its chat format. */
  promptIds(text: string): number[] {
    const tokenizer = must(this.tokenizer, "a tokenizer");
    return this.manifest.chat ? tokenizer.turn(this.manifest.chat, text) : tokenizer.prompt(text);
  }

  /** How many blocks the model has, wherever they run. */
  get blocks(): number {
    const { split, config } = this.manifest;
    return split ? split.stream.length - 1 : config.n_layer;
  }

  /** Whether the server runs this block, and this page has no weights of it. */
  isRemote(block: number): boolean {
    return block >= this.manifest.config.n_layer;
  }

  /** Activations of the server's for `ids`, each in a texture of its own: to be closed. */
  async fetched(ids: readonly number[], names: readonly string[]): Promise<Map<string, Uploaded>> {
    const found = await this.activations(ids, names);
    const { activations } = this.names;
    return new Map(
      names.map((name) => [name, uploaded(this.device, this.options, name, matrixOf(must(activations.get(name), name), must(found.get(name), name)))]),
    );
  }

  /** How many blocks run in this page: all, or those before the others that the server runs. */
  get here(): number {
    return this.movable && this.interventions.length ? this.manifest.config.n_layer : this.blocksHere;
  }

  /** Moves the cut. A text that is being generated continues with it. */
  set here(blocks: number) {
    const { n_layer } = this.manifest.config;
    if (!this.movable || blocks === this.blocksHere) return;
    this.blocksHere = blocks;
    this.front = [];
    if (blocks < n_layer) this.split!.aim(`${blocks < n_layer - 1 ? `${blocks}-` : ""}${n_layer - 1},head`);
    else this.split!.leave();
  }

  /** The server, while it runs blocks. */
  private get remote(): Split | null {
    return this.movable && this.here === this.manifest.config.n_layer ? null : this.split;
  }

  /** Whether this page computes the logits of a model whose other blocks a server runs. */
  private get headHere(): boolean {
    return this.manifest.split?.head === "page";
  }

  static async load(device: Device, loader: Loader, wishes: ModelOptions = {}): Promise<Model> {
    const model = new Model(device, loader, wishes, loader.manifest);
    const start = performance.now();
    const { manifest } = model;
    const buffers = Math.min(device.limits.drawBuffers, wishes.drawBuffers ?? Infinity);
    const fitting = manifest.recordings.filter((r) => r.draw_buffers <= buffers);
    if (!fitting.length) {
      const least = Math.min(...manifest.recordings.map((r) => r.draw_buffers));
      throw new PageError(`This device renders to ${buffers} textures at once and the model needs ${least}.`);
    }
    // Weights come while programs are read; those of a model that it may have no memory for, later.
    if (loader.progress.total < LARGE) loader.begin();
    if (manifest.tokenizer) {
      model.tokenizer = new Tokenizer(parseTokenizer(await loader.json(manifest.tokenizer), manifest.tokenizer));
    }
    await model.kept(async () => {
      const storage = wishes.storage ?? device.storage;
      model.choices = { device, recordings: fitting, storage, tuning: manifest.tuning, forced: wishes.fetch };
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
   * Measures which recording and fetch this device likes best, where that is a guess so far: the next visit takes them, with
   * the files that `later` names, and needs no network for them. False where it ended before, since `going` answered no.
   */
  measure(later: (recording: Recording) => Promise<string[]>, going: () => boolean = () => true): Promise<boolean> {
    return this.measuring.run(async () => {
      const keep = async (recording: Recording) =>
        this.loader.keep([recording.generate, recording.capture, ...(await later(recording))]);
      if (!this.probe && this.choices) this.probe = await measure(this.choices, (name) => this.program(name), keep, going);
      return this.probe !== null;
    });
  }

  /** Another model on this one's device, played with what was chosen for it; `onCompiled` hears of its shaders. */
  async beside(about: Beside, onCompiled: (compiled: number, shaders: number) => void = () => {}): Promise<Model> {
    const model = new Model(this.device, this.loader, this.wishes, about.manifest, about.weights);
    const start = performance.now();
    Object.assign(model, { tokenizer: about.tokenizer, recording: about.recording, options: this.options });
    model.programs = about.programs;
    model.onCompiled = onCompiled;
    await model.kept(() => model.build());
    model.onCompiled = () => {};
    model.times.readyMs = performance.now() - start;
    return model;
  }

  /** Textures, weights, shaders: at first, and again after a lost context. */
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

  /** The chunk sizes that were recorded, greatest first, 1 (`decode`) the last. */
  private get recorded(): number[] {
    return [...sizes(Object.keys(this.programs.generate.entries), "prefill_"), 1];
  }

  /** Whether the shaders of all chunk sizes are compiled. */
  get complete(): boolean {
    return this.known.length === this.recorded.length;
  }

  /** Entries that generating plays. */
  private get played(): string[] {
    const drawing = this.split && !this.movable && !this.headHere ? [] : ["sample", "sample_nucleus"]; // else the server draws
    return ["prepare", "decode", ...(this.headHere ? ["head"] : []), ...drawing, ...this.known.slice(0, -1).map((n) => `prefill_${n}`)];
  }

  /**
   * Compiles the chunk sizes that a visit begins without, since shaders are most of what it waits for; texts may be generated
   * meanwhile. `usePrefills` then uses them.
   */
  async compilePrefills(): Promise<void> {
    if (!this.stale) await this.whole?.player.prepare(...this.prefills);
  }

  /** Uses all chunk sizes from now on. Nothing else may use the model meanwhile. */
  async usePrefills(): Promise<void> {
    if (this.stale) return;
    for (const made of [this.whole, this.intervened]) await made?.player.prepare(...this.prefills);
    this.known = this.recorded;
  }

  private get prefills(): string[] {
    return this.recorded.slice(0, -1).map((n) => `prefill_${n}`);
  }

  /**
   * Changes parts (`parseIntervention`), and restores all others; caches begin anew. What every entry plays from then on is the
   * program with cuts, recorded unfused; without any it is the model's own again.
   */
  async intervene(parts: readonly string[], onCompiled: (compiled: number, shaders: number) => void = () => {}): Promise<void> {
    const resolved: ResolvedIntervention[] = [];
    for (const change of parts.map(parseIntervention)) resolved.push(...resolve(this.manifest, change, await this.valuesFor(change)));
    if (parts.length && !this.intervened) {
      if (!this.recording.interventions) throw new PageError("This page was exported without parts that can be cut.");
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
    this.watcher = null; // it watches textures of the program before
    this.cached = [];
    this.front = [];
  }

  /**
   * What a change is made of, as the whole model computes it: for steering from what the residual stream is at the end of one
   * text to what it is at the end of another, for a patch what the part gives in another text.
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

  /** An activation at a position of a text, at its last token where it has no more. */
  private async rowOf(name: string, text: string, position = Infinity): Promise<Float32Array> {
    const ids = must(this.tokenizer, "a tokenizer").prompt(text);
    this.check(ids);
    const { shape, data } = must((await this.capture.run(ids, [name])).get(name), name);
    const [rows = 1, width = 1] = shape;
    const row = Math.min(position, rows - 1);
    return data.slice(row * width, (row + 1) * width);
  }

  /** Another one for other parameters: those of a training change with each step. */
  get version(): string {
    return this.seen;
  }

  /** Takes the parameters as they are now, where a training has changed them; caches begin anew. To be called before each use. */
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

  /** Deletes the textures that only a look inside and texts side by side need; they come again when they are asked for. */
  rest(): void {
    if (!this.stale) this.captured?.player.close();
    this.captured = null;
    this.closeSeveral();
  }

  /** Deletes the textures of texts side by side. */
  closeSeveral(): void {
    if (!this.stale) this.several?.close();
    this.several = null;
  }

  /** Deletes what it made; whatever is asked of it afterwards throws. */
  close(): void {
    this.rest();
    if (this.stale) return;
    this.intervened?.player.close();
    this.whole?.player.close();
  }

  /** The most one draw may cost. */
  get drawFlops(): number {
    return this.wishes.drawFlops ?? this.manifest.tuning.draw_flops;
  }

  /** Whether the context was lost since, and nothing has filled the new one. */
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

  /** Does `work` again from its beginning for as long as the context is lost meanwhile. */
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

  /** Waits for the context to come back and fills it again; the shards come from the browser's cache. */
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
   * Continues `ids`, of which what was generated before may be longer than the model's context, and goes on beyond it
   * (`windowStart`); a token comes as soon as it is known. Resumes if the graphics context is lost and restored.
   */
  async *generate(ids: readonly number[], run: Run): AsyncGenerator<Token> {
    const { n_positions } = this.manifest.config;
    this.check(ids.slice(0, Math.max(0, ids.length - (run.drawn ?? 0))));
    const { temperature = 1, topK = null, topP = null, minP = null, seed = Math.floor(Math.random() * 2 ** 32) } = run;
    const { repetitionPenalty = null, logitBias = null } = run;
    const sampler = (this.sampler = new Sampler({ temperature, topK, topP, minP, repetitionPenalty, logitBias, seed }));
    if (sampler.adjusts && this.remote) throw new PageError("A model that runs on a server takes no repetition penalty and no logit bias.");
    const text = [...ids];
    let left = run.tokens;
    while (left > 0 && !run.signal?.aborted) {
      const { here } = this;
      const read = this.window(text);
      const room = Math.min(left, n_positions - read.length + 1); // the last is computed from a full context
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
        if (this.here !== here && !run.signal?.aborted && !this.device.lost) continue; // moved while a server was away
        if (!(error instanceof ContextLost) && !this.device.lost) throw error;
        await this.recover(run.signal);
      }
    }
  }

  /**
   * Continues one prompt several times side by side, with the seeds `seed`, `seed` + 1, …: a token of each at a time, null for
   * a text that has ended or is `over`. They are those that `generate` gives with each seed. Begins anew, and leaves out what
   * it gave before, where the graphics context is lost and restored.
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

  /** How many texts `continuations` writes side by side; 0: none, as the model is now. */
  get texts(): number {
    return this.recording.several && !this.interventions.length && !this.remote ? (this.manifest.tuning.texts ?? 0) : 0;
  }

  /** The textures and shaders of texts side by side, made when they are first asked for. */
  private async opened(onCompiled: (compiled: number, shaders: number) => void = () => {}): Promise<Several> {
    const { several: name } = this.recording;
    if (!name) throw new PageError("This model was exported without texts side by side.");
    if (this.interventions.length) throw new PageError("Parts of the model are changed; restore them to write several texts.");
    if (this.remote) throw new PageError("A model that runs on a server writes one text at a time.");
    if (!this.several) {
      const program = parseProgram(await this.loader.packed(name), name);
      const main = must(this.whole, "the whole model").player;
      const player = new Player(this.device, program, this.options, main.shared(["weight", "state"]), this.drawFlops, this.reader);
      if (this.device.full) {
        player.close();
        throw new PageError("This device has no memory for several texts at once.");
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

  /** The tokens of a text that the next one is computed from. */
  window(text: readonly number[]): number[] {
    return text.slice(windowStart(text.length, this.manifest.config.n_positions));
  }

  /** The tokens that a text's last one was computed from, and that one too where the context has room for it. */
  read<T>(text: readonly T[]): T[] {
    const { n_positions } = this.manifest.config;
    const from = this.readFrom(text.length);
    return text.slice(from, from + n_positions);
  }

  /** Where they begin in a text of so many tokens. */
  readFrom(tokens: number): number {
    return windowStart(Math.max(1, tokens) - 1, this.manifest.config.n_positions);
  }

  /** The device chooses: several tokens are under way at once, and some texels of each are read. */
  private async *stream(text: number[], count: number, run: Run, sampler: Sampler, drawn: number): AsyncGenerator<Token> {
    let under: Promise<Token | null>[] = [];
    const { here } = this;
    const first = text.length;
    let [began, together] = [0, 1]; // when the tokens that were issued last were, and how many
    try {
      for (let issued = 0, taken = 0; taken < count; taken++) {
        if (issued === taken) {
          // They share a fence and are read together, and none is issued meanwhile: reading waits for all that was issued.
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
          await Promise.allSettled(under); // in vain
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

  /** How many tokens are to be under way at once. */
  private ahead(): number {
    const fitting = Math.min(this.manifest.tuning.ahead, Math.floor(UNDER_WAY / this.tokenMs));
    return Math.max(1, fitting, 2 * this.tokenMs <= BUSY ? 2 : 1);
  }

  /** Asks for the token that the device chooses from the logits it holds; null where it cannot decide. */
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

  /** Sets the scalars of the entries that draw. */
  private tell(sampler: Sampler, step: number): void {
    const scalars = sampler.scalars(step, this.manifest.config.vocab_size);
    for (const [name, value] of Object.entries(scalars)) this.player.set(name, value);
  }

  /** The token behind `text` where the page chooses, not the device; `again`: its logits are no longer there. */
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

  /** Tells the strip of a token that this page alone computed, with so many blocks, in so many milliseconds. */
  private report(blocks: number, localMs: number): void {
    this.split?.onCrossing({ blocks, rows: 1, sent: 0, received: 0, localMs, networkMs: 0, remoteMs: 0 });
  }

  /** Each token's hidden state goes to the server; the token behind it comes back, or where the head is here is drawn. */
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
        if (run.signal?.aborted) return; // given up while the server was away
        throw error;
      }
    }
  }

  /**
   * Feeds what the page and the server do not hold yet of `ids`; the token behind them, and behind each of `guesses` up to
   * the first wrong one. A lost session is fed again, and then nothing is guessed.
   */
  private async cross(ids: readonly number[], ask: Ask, signal?: AbortSignal, guesses: readonly number[] = []): Promise<Stepped> {
    const split = this.split!;
    const { n_positions } = this.manifest.config;
    for (let replays = 0; ; replays++) {
      if (replays > REPLAYS) throw new PageError(`The server lost the text ${REPLAYS} times while it read it. Is the way to it in order?`);
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
          if (split.reconnects !== reconnects) throw new Forgotten(0); // a chunk before this one may be lost
          const last = chunk === chunks.at(-1) && !this.headHere ? asked : null;
          const answer = split.step(fed, chunk.start, chunk.valid, states, { blocks, ms: performance.now() - start }, last);
          answer.catch(() => {}); // awaited below; the next chunk is computed meanwhile
          answers.push(answer);
        }
        const found = await split.unlessStopped(Promise.all(answers), signal);
        const { vocab_size } = this.manifest.config;
        if (found.some(({ chosen }) => chosen.some(({ id }) => id >= vocab_size))) throw new PageError("The server answered with a token that the model does not have.");
        for (const earlier of found.slice(0, -1)) split.onCrossing(earlier.crossing);
        return must(found.at(-1), "an answer from the server");
      } catch (error) {
        if (!(error instanceof Forgotten) || signal?.aborted) throw error;
      }
    }
  }

  /** One chunk of a token and the guesses behind it; null where the context has no room for what either side plays. */
  private guessed(start: number, valid: number): Chunk | null {
    const size = Math.min(...this.known.filter((s) => s >= valid));
    return start + Math.max(size, MOST_GUESSES + 1) <= this.manifest.config.n_positions ? { start, valid, size } : null;
  }

  /** The token behind the last row that the server sent, drawn here. */
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

  /** Plays the head for the last of these hidden states; the device then holds its logits. */
  end(states: Float32Array): void {
    const view = must(this.programs.generate.views["hidden.1"], "view hidden.1");
    writeState(this.player, view, states.subarray(states.length - view.cols));
    this.player.play("head");
  }

  /** Plays a chunk of `ids` through the blocks in this page: the hidden states behind them, `[valid, n_embd]`. */
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
      this.cached.length = this.held(ids, this.cached); // the later blocks lack the others
    } else {
      this.playChunk(ids, chunk);
      this.cached = ids.slice(0, rows);
    }
    const states = unpack(view, await this.player.read(view.texture));
    return states.subarray(0, chunk.valid * view.cols);
  }

  /** Named activations of `ids`, those of the server's blocks from there. */
  async activations(ids: readonly number[], names: readonly string[]): Promise<Map<string, Values>> {
    const { split, config } = this.manifest;
    if (!split || !this.split || this.movable) return this.capture.run(ids, names);
    const ofHead = this.headHere ? names.filter((name) => this.capture.ofHead.includes(name)) : [];
    const remoteNames = names.filter((name) => split.activations.has(name));
    const last = must(split.stream[config.n_layer], "the stream behind the page's blocks"); // what goes to the server
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

  /** Plays an entry with a look after each of the watcher's stops. */
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

  /** How many of these tokens the caches hold, of all but the last, whose logits are wanted. */
  held(ids: readonly number[], cached: readonly number[] = this.cached): number {
    let held = 0;
    while (held < ids.length - 1 && held < cached.length && ids[held] === cached[held]) held++;
    return held;
  }

  /** Says that the caches' rows from `position` on hold something else now. */
  forget(position: number): void {
    this.cached.length = Math.min(this.cached.length, position);
    this.front.length = Math.min(this.front.length, position);
  }

  /** Plays what the caches do not hold yet of `ids`; afterwards the device holds the logits behind the last. */
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

  /** What was weighed for token `at` of `ids`, behind the tokens before it: the last of those is played once more. */
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
    this.writeToken(must(before.at(-1), "a token before it"));
    this.decode(before.length - 1);
    return found(await this.logitsRow());
  }

  /** ln of the probability of each token from `from` on behind those before it, as the model is now, with what is cut. */
  async logProbabilities(ids: readonly number[], from: number, going: () => boolean = () => true): Promise<Float32Array> {
    const found = new Float32Array(ids.length - from);
    for (let at = from; at < ids.length && going(); at++) {
      const { p = 0 } = await this.weighed(ids, at, 1);
      found[at - from] = Math.log(p);
    }
    return found;
  }

  /** Fills the caches with these tokens. */
  fill(ids: readonly number[]): void {
    this.check(ids);
    if (this.cached.length < ids.length || ids.some((id, i) => id !== this.cached[i])) this.prefill(ids);
  }

  /** Puts scalars and inputs where `entry` begins for the last token (or chunk) of `ids`; what it writes will be the same. */
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

  /** Whether its weights are textures of a training, and none of its own. */
  get borrows(): boolean {
    return this.weights?.own === false;
  }

  /** Bytes of the textures that exist, by what they are for. */
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

/** What a visitor reads where the device had no memory for the textures of a model of this dtype. */
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
    `This device has no memory for the ${size(all)} of textures that the model takes in ${dtype}. ` +
    (exported && instead.length ? `Whoever made this page can export it with less: ${instead.join(", ")}.` : "A smaller model may fit.")
  );
}
