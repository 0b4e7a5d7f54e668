// Defines a model on a device. The model loads its weights and builds its textures and shaders, again after each lost
// graphics context. The model owns the objects that generate text, apply interventions and read activations.

import { ContextLost, type Device, type Options } from "../gl/device";
import { must, PageError } from "../gl/errors";
import { Player } from "../gl/player";
import { bytesOf, textureBytes, type Program } from "../gl/program";
import { Reader } from "../gl/readback";
import { pause, unlessAborted } from "../gl/wait";
import { TemplateRenderer } from "../chat/renderer";
import { ChatTemplate } from "../chat/template";
import type { Constraint } from "../constraints/constraint";
import { Grammars, type Matcher } from "../constraints/grammars";
import { ActiveInterventions } from "./active-interventions";
import { Activations } from "./activations";
import { BatchGenerator } from "./batch-generate";
import { sizes } from "./chunks";
import { Compilation } from "./compilation";
import { Context } from "./context";
import { DeviceSampling } from "./device-sampling";
import { FORMATS } from "./formats";
import { TextGenerator } from "./generate";
import { Kernels } from "./kernels";
import { KvCache } from "./kv-cache";
import { blocks, shape } from "./layout";
import type { Loader } from "./loader";
import { parseProgram, parseTokenizer, type Manifest, type Recording, type Shard } from "./manifest";
import { Names } from "./names";
import type { Opened } from "./opened-model";
import { Placement } from "./placement";
import { playable } from "./probe";
import { Split } from "./split";
import { SplitGenerator } from "./split-generate";
import { Tokenizer, type Vocabulary } from "./tokenizer";

const LARGE = 200e6; // a device may lack memory for weights of this many bytes or more
const UPLOAD = 4 << 20; // bytes of one upload; the page may draw between two uploads

export interface ModelOptions {
  fetch?: Options["fetch"];
  drawFlops?: number;
  /** Maximum number of draw buffers. */
  drawBuffers?: number;
  storage?: Options["storage"];
}

/** A program for generating text, and its player. */
export interface Played {
  player: Player;
  generate: Program;
}

/**
 * The source of a model's parameters if they are not in shards (files of an export). The source is a training, whose
 * textures the model shares, or a file that a visitor opened.
 */
export interface Weights {
  /** True if the model creates its own textures for the parameters. */
  readonly own: boolean;
  /** True if only the shaders of the first token are compiled while the model loads, as for the page's model. */
  readonly gradual?: boolean;
  /** Returns the shared textures by name; empty if the model creates its own textures, which `fill` fills. */
  shared(): ReadonlyMap<string, WebGLTexture>;
  /** Returns the version of the parameters, which differs after each change. */
  version(): string;
  /** Uploads the parameters into the model's own textures, if there are any. */
  fill(player: Player): Promise<void>;
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
  /** Identifies the model: differs from the id of any other model. */
  readonly id = String(Math.random());
  tokenizer: Vocabulary | null = null;
  options!: Options;
  recording!: Recording;
  /** The programs in use; `generate` is a different program while interventions are active. */
  programs!: { generate: Program; capture: Program };
  /** The player of `programs.generate`. */
  player!: Player;
  reader!: Reader;
  /** The server that can run blocks of the model; null: the page runs the whole model. */
  readonly split: Split | null;
  readonly context: Context;
  readonly kernels = new Kernels();
  readonly placement: Placement;
  readonly compilation = new Compilation(this);
  readonly cache = new KvCache(this);
  readonly sampling = new DeviceSampling(this);
  readonly activations = new Activations(this);
  readonly interventions = new ActiveInterventions(this);
  readonly generator = new TextGenerator(this);
  readonly batch = new BatchGenerator(this);
  readonly splitGenerator = new SplitGenerator(this);
  /** The program without interventions, and its player; null until the model is built. */
  whole: Played | null = null;
  times = { fetchMs: 0, uploadMs: 0, compileMs: 0, readyMs: 0 };
  /** Number of the graphics context (`Device.generation`) in which the model's textures were created. */
  private generation = -1;
  private chat: ChatTemplate | null = null;
  private grammars: Grammars | null = null;
  private seen = ""; // version of the parameters in use

  private constructor(
    readonly device: Device,
    readonly loader: Loader,
    readonly modelOptions: ModelOptions,
    readonly manifest: Manifest,
    readonly weights: Weights | null = null,
  ) {
    this.context = new Context(manifest.config.n_positions);
    this.placement = new Placement(this);
    this.split = manifest.split ? new Split(manifest.split) : null;
    if (this.split) this.split.wanted = () => this.placement.server !== null;
  }

  /** The names of the model's activations and parts. */
  get names(): Names {
    return Names.of(this.manifest);
  }

  /** The chat template of an instruct model; null: the model has none. */
  get chatTemplate(): ChatTemplate | null {
    const { chat_template: data } = this.manifest;
    if (!data || !this.tokenizer) return null;
    return (this.chat ??= new ChatTemplate(data, this.tokenizer, new TemplateRenderer().begin()));
  }

  /**
   * Returns a matcher, which tracks the tokens that a constraint allows next in a text. Rejects with PageError for a
   * constraint that cannot be used, and with the reason of `signal` as soon as `signal` aborts.
   */
  matcher(constraint: Constraint, signal?: AbortSignal): Promise<Matcher> {
    const tokenizer = must(this.tokenizer, "the tokenizer that a constraint needs");
    const { config, eos = [] } = this.manifest;
    const bytes = (id: number) => (tokenizer.isSpecial(id) ? [] : tokenizer.tokenBytes(id));
    this.grammars ??= new Grammars({ size: config.vocab_size, ends: eos, bytes });
    return this.grammars.matcher(constraint, signal);
  }

  /** Returns the ids of a prompt. For an instruct model, the text becomes a message in the model's chat format. */
  promptIds(text: string): number[] {
    const tokenizer = must(this.tokenizer, "a tokenizer");
    return this.manifest.chat ? tokenizer.turn(this.manifest.chat, text) : tokenizer.prompt(text);
  }

  /**
   * Loads the page's model, or a model that a visitor opened. `others` settles when other files, which weights must not
   * delay, have been fetched. Shards of less than `LARGE` bytes in total are fetched as soon as `others` has settled;
   * larger ones are fetched when the textures exist. If loading fails, the caller must close the loader and release the
   * device, which ends all unfinished work.
   */
  static async load(
    device: Device,
    loader: Loader,
    modelOptions: ModelOptions = {},
    opened: Pick<Opened, "tokenizer" | "weights"> | null = null,
    others: Promise<unknown> = Promise.resolve(),
  ): Promise<Model> {
    const model = new Model(device, loader, modelOptions, loader.manifest, opened?.weights);
    model.tokenizer = opened?.tokenizer ?? null;
    const start = performance.now();
    const recordings = model.playable();
    // Fetch weights while programs are parsed, unless the device may lack the memory for them.
    if (!opened && loader.progress.value.total < LARGE) loader.begin(others);
    const file = model.manifest.tokenizer;
    const vocabulary = file ? loader.unparsed(file) : null;
    vocabulary?.catch(() => {}); // awaited below
    const words = async () => new Tokenizer(parseTokenizer((await vocabulary!)(), file!));
    try {
      await model.kept(() => model.begin(recordings, file ? words : null));
    } catch (error) {
      model.close();
      throw error;
    }
    model.times.readyMs = performance.now() - start;
    return model;
  }

  /** Returns the recordings (variants of the programs) that this device can play. Throws PageError if there is none. */
  private playable(): Recording[] {
    const { device, manifest, modelOptions } = this;
    const buffers = Math.min(device.limits.drawBuffers, modelOptions.drawBuffers ?? Infinity);
    const { blends, pairs } = device;
    const floats = modelOptions.storage !== "uint";
    const fitting = playable(manifest.recordings, buffers, { blends: blends && floats, pairs });
    if (fitting.length) return fitting;
    const least = Math.min(...manifest.recordings.map((r) => r.draw_buffers));
    throw new PageError(
      `This device can draw to ${buffers} ${buffers === 1 ? "texture" : "textures"} at once and the model needs ` +
        `${least}. Update the browser and the graphics driver, or use another device.`,
    );
  }

  /** Builds the model with the best of these recordings. Reads the tokenizer (`words`) while the shaders compile. */
  private async begin(recordings: Recording[], words: (() => Promise<Vocabulary>) | null): Promise<void> {
    const { device, loader, manifest, modelOptions } = this;
    const storage = modelOptions.storage ?? device.storage;
    const choices = { device, recordings, storage, tuning: manifest.tuning, forced: modelOptions.fetch };
    const chosen = this.kernels.choose(choices);
    this.recording = chosen.recording;
    this.options = { fetch: chosen.fetch, storage };
    const { generate, capture } = chosen.recording;
    const first = await this.program(generate);
    const later = loader.unparsed(capture);
    later.catch(() => {}); // awaited below
    // The program that captures activations is parsed on first use, because generating text does not need it.
    let captures: Program | (() => unknown) | null = null;
    this.programs = {
      generate: first,
      get capture() {
        if (typeof captures === "function") captures = parseProgram(captures(), capture);
        return must(captures, capture);
      },
    };
    const building = this.build();
    building.catch(() => {}); // awaited below
    await pause(); // the driver compiles the shaders from here on
    if (words) this.tokenizer ??= await words();
    void this.chatTemplate; // starts its worker
    captures = await later;
    await building;
  }

  private async program(name: string): Promise<Program> {
    return parseProgram((await this.loader.unparsed(name))(), name);
  }

  /**
   * Measures which recording, and which GLSL function that fetches texels, are fastest on this device
   * (`Kernels.measure`). The next visit uses both. For that visit, caches the files of the fastest recording and the
   * files that `later` returns.
   */
  measure(later: (recording: Recording) => Promise<string[]>, going?: () => boolean): Promise<boolean> {
    const keep = async (recording: Recording) =>
      this.loader.keep([recording.generate, recording.capture, ...(await later(recording))]);
    return this.kernels.measure((name) => this.program(name), keep, going);
  }

  /** Loads another model on the same device with a given recording. */
  async beside(about: Beside): Promise<Model> {
    const model = new Model(this.device, this.loader, this.modelOptions, about.manifest, about.weights);
    const start = performance.now();
    Object.assign(model, { tokenizer: about.tokenizer, recording: about.recording, options: this.options });
    model.programs = about.programs;
    await model.kept(() => model.build());
    model.times.readyMs = performance.now() - start;
    return model;
  }

  /** Creates textures, weights and shaders, when the model is loaded and after each lost context. */
  private async build(): Promise<void> {
    const { device, options } = this;
    this.reader = Reader.of(device);
    this.generator.reset();
    this.cache.clear();
    this.activations.close(true);
    this.batch.close(true);
    this.sampling.masked.close(true);
    this.interventions.program = null;
    if (this.whole) this.programs.generate = this.whole.generate;
    this.cache.known = this.complete ? this.recorded : this.compilation.firstSizes;
    this.seen = this.weights?.version() ?? "";
    const { generate } = this.programs;
    const queries = queriesOf(this, generate);
    const { first } = this.compilation;
    const shared = this.weights?.shared();
    const player = (this.player = new Player(device, generate, options, shared, this.drawFlops, queries, first));
    const { generation } = device;
    try {
      await this.fill(queries, first);
    } catch (error) {
      if (device.isCurrent(generation)) player.close();
      throw error;
    }
    this.whole = { player, generate };
    this.generation = generation;
    if (this.interventions.active) await this.interventions.applyAgain();
  }

  /** Uploads the weights to the new player, while the driver compiles the shaders of the entries `first`. */
  private async fill(queries: readonly string[], first: readonly string[]): Promise<void> {
    const { device } = this;
    const { generation } = device;
    const start = performance.now();
    const compiled = this.player.begun;
    compiled.catch(() => {}); // awaited below
    await this.reader.passed(); // until the driver has created the textures; before, `device.full` would block the page
    device.still(generation);
    if (device.full || !this.player.allocate(...first)) {
      throw new PageError(noMemory(this.programs.generate, queries, this.manifest, this.weights === null));
    }
    const uploaded = this.uploadAll(start);
    const ready = compiled.catch(async (error: unknown) => {
      // If the context is lost, the upload stops too. Wait for its end, because the next build fetches weights again.
      if (error instanceof ContextLost) await uploaded;
      throw error;
    });
    await Promise.all([uploaded, ready]); // rejects at once if a shader does not compile
    this.times.compileMs = performance.now() - start;
    device.still(generation);
    this.player.play("prepare");
    device.still(generation);
  }

  /** Uploads the weights as they arrive. `start` is the time at which the model began to wait for weights. */
  private async uploadAll(start: number): Promise<void> {
    const { device } = this;
    const { generation } = device;
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
  }

  /** The numbers of tokens that one entry can process, greatest first; the last is 1 (`decode`). */
  get recorded(): number[] {
    return [...sizes(Object.keys(this.programs.generate.entries), "prefill_"), 1];
  }

  /** True if entries of all chunk sizes (numbers of tokens) are in use; their shaders are compiled then. */
  get complete(): boolean {
    return this.cache.known.length === this.recorded.length;
  }

  /** Compiles the shaders that loading skipped. Texts may be generated at the same time. Call `useAll` afterwards. */
  async compileLater(): Promise<void> {
    for (const entry of this.compilation.later) if (!this.stale) await this.whole?.player.prepare(entry);
  }

  /** Makes the model use entries of all chunk sizes. Nothing else may use the model until this resolves. */
  async useAll(): Promise<void> {
    if (this.stale) return;
    for (const { player } of this.players) await player.prepare(...this.compilation.later);
    this.cache.known = this.recorded;
  }

  /** The programs that exist, with their players: without interventions, and with the active interventions. */
  get players(): Played[] {
    return [this.whole, this.interventions.program].filter((made) => made !== null);
  }

  /** Plays this program from now on, with empty caches. */
  play({ player, generate }: Played): void {
    if (this.player !== player && !this.stale) this.player.share(); // only the current one stores all queries
    this.player = player;
    this.programs.generate = generate;
    this.generator.reset();
    this.cache.watcher = null; // the watcher reads textures of the previous program
    this.cache.clear();
  }

  /** Version of the parameters in use; a training changes them with each step. */
  get version(): string {
    return this.seen;
  }

  /** Uses a training's current parameters, and clears the caches if they changed. Call this before using the model. */
  follow(): void {
    const version = this.weights?.version() ?? "";
    if (!this.weights || version === this.seen) return;
    this.seen = version;
    this.cache.clear();
    const shared = this.weights.shared();
    const players = [this.whole?.player, this.interventions.program?.player, this.activations.player];
    for (const player of players) player?.adopt(shared);
    for (const player of players.slice(0, 2)) player?.play("prepare");
  }

  /** Deletes the textures of captures, batches and masked sampling. They are created again when needed. */
  rest(): void {
    this.activations.close(this.stale);
    this.batch.close();
    this.sampling.masked.close();
  }

  /** Releases GPU resources. The model cannot be used afterwards. */
  close(): void {
    this.rest();
    this.chat?.close();
    this.grammars?.close();
    if (this.stale) return;
    this.interventions.program?.player.close();
    this.whole?.player.close();
  }

  /** Maximum number of floating-point operations of one draw. */
  get drawFlops(): number {
    return this.modelOptions.drawFlops ?? this.manifest.tuning.draw_flops;
  }

  /** True if the model is not built in the current graphics context: not built yet, or built in a lost context. */
  get stale(): boolean {
    return !this.device.isCurrent(this.generation);
  }

  private async upload(pieces: Shard["pieces"], data: Uint8Array): Promise<void> {
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

  /**
   * Runs `work`, and restarts it each time the context is lost. Resolves early if `signal` aborts. If the loader is
   * closed, rejects with the reason given to `Loader.close`.
   */
  private async kept(work: () => Promise<void>, signal?: AbortSignal): Promise<void> {
    const { device, loader } = this;
    for (;;) {
      const ended = signal ? AbortSignal.any([loader.signal, signal]) : loader.signal;
      await unlessAborted(device.restored, ended, () => {});
      loader.signal.throwIfAborted();
      if (signal?.aborted) return;
      const { generation } = device;
      try {
        await work();
        return;
      } catch (error) {
        loader.signal.throwIfAborted();
        if (device.isCurrent(generation)) throw error;
        await pause();
      }
    }
  }

  /**
   * Waits for the context to be restored and builds the model again. Shards come from the browser's cache, if it has
   * them.
   */
  recover(signal?: AbortSignal): Promise<void> {
    return this.kept(() => this.build(), signal);
  }

  /** Throws PageError for ids that `checkIds` refuses or that exceed the context. `what` names the text in messages. */
  check(ids: readonly number[], what = "prompt"): void {
    const { n_positions } = this.manifest.config;
    if (ids.length > n_positions) {
      throw new PageError(
        `The ${what} has ${ids.length} tokens and the model's context holds ${n_positions}; shorten it.`,
      );
    }
    this.checkIds(ids, what);
  }

  /** Throws PageError for an empty text and for ids outside the vocabulary. */
  checkIds(ids: readonly number[], what = "prompt"): void {
    const { vocab_size } = this.manifest.config;
    if (ids.length === 0) throw new PageError(`The ${what} is empty; give at least one character.`);
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocab_size));
    if (wrong !== undefined) throw new PageError(`Id ${wrong} is outside the vocabulary of ${vocab_size}.`);
  }

  /** True if this token ends a text. */
  ends(id: number): boolean {
    return this.manifest.eos?.includes(id) ?? false;
  }

  /** True if the model's weights are the textures of a training. */
  get borrows(): boolean {
    return this.weights?.own === false;
  }

  /** Returns the bytes of the existing textures by purpose. */
  memory(): Record<string, number> {
    const { player } = this.whole ?? this;
    const roles = ["weight", "state", "input", "scratch"];
    return {
      ...Object.fromEntries(roles.map((role) => [role, player.ownBytes(role)])),
      capture: this.activations.player?.ownBytes() ?? 0,
      several: this.batch.bytes,
      masked: this.sampling.masked.bytes,
      interventions: this.interventions.bytes,
    };
  }
}

/** Returns the names of the states that hold the queries of each layer. Only the page's views read these states. */
export function queriesOf({ names, manifest }: Model, { textures }: Program): string[] {
  const states = Object.values(textures).filter(({ role }) => role === "state");
  return states.map(({ name }) => name).filter((name) => names.place(name).part === manifest.family.queries);
}

/**
 * Returns the additional bytes if each layer has its own texture for queries. Layers have such textures while a view of
 * the page shows queries; otherwise all layers share one texture.
 */
export function bytesOfQueries({ textures }: Program, queries: readonly string[]): number {
  return bytesOf(queries.slice(1).map((name) => textures[name]!));
}

/** Returns the message for a device without enough memory for the model's textures. */
function noMemory(
  program: Program,
  queries: readonly string[],
  { dtype, config, split }: Manifest,
  exported: boolean,
): string {
  const all = textureBytes(program) - bytesOfQueries(program, queries);
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
