// Plays a recorded program. Its entries are lists of passes, and a pass is a draw that fills textures. Textures,
// shaders and framebuffers are built once; playing an entry then issues a flat list of GL commands. The player does not
// depend on what the passes compute.

import { must, PageError } from "./errors";
import { bytesOf, type Pass, type Program, type TextureFormat, type TextureSpec } from "./program";
import { ContextLost, type Device, type Options } from "./device";
import { Pace } from "./pace";
import { Reader } from "./readback";
import { compileAll } from "./shaders";
import { yielder } from "./wait";

const BLOCKS = 8; // uniform buffers used in rotation, so that a write does not wait for draws that read its buffer
const SENT_TOGETHER = 40; // number of passes from one flush to the next; Chrome looks for signals after each flush

export type Texels = Float32Array | Uint32Array;

/**
 * A block of `rows` rows of `width` texels, starting at (x, y) of a layer. A row of the uploaded data has `stride`
 * texels. The first `skip` texels of each row, and those after the block's `width`, are not uploaded.
 */
export interface Block {
  layer: number;
  x: number;
  y: number;
  width: number;
  rows: number;
  stride: number;
  skip: number;
}

/**
 * One draw and its state. `row`: index of the scalar that holds the viewport's y; -1: y is 0. `bands`: see `banded`.
 * `firstColumn`, `slices`, `clear`, `keys`: see `Pass`. `covering`: see `Device.covering`. `scissored`: the scissor
 * limits drawing and clearing to a part of the targets.
 */
interface Step {
  program: WebGLProgram;
  units: readonly WebGLTexture[];
  framebuffer: WebGLFramebuffer;
  width: number;
  height: number;
  firstColumn: number;
  covering: readonly [width: number, height: number, first: number];
  scissored: boolean;
  row: number;
  bands: number;
  slices: number;
  clear: boolean;
  keys: number;
}

export class Player {
  /** The textures that exist, by name. Scratch textures are created with the first entry that uses them. */
  private readonly textures = new Map<string, WebGLTexture>();
  private readonly own = new Map<WebGLTexture, TextureSpec>();
  private readonly shaders = new Map<string, WebGLProgram>();
  private readonly framebuffers = new Map<string, WebGLFramebuffer>();
  /** An entry's commands, by `key`. */
  private readonly steps = new Map<string, Step[]>();
  private readonly prepared = new Set<string>();
  private preparing: Promise<void>;
  /** Resolves when the entries `first` of the constructor are prepared. */
  readonly begun: Promise<void>;
  /** True if another player may play while this one compiles. */
  playsConcurrently = false;
  private readonly pingPong: PingPong;
  private readonly numbers = new Map<WebGLTexture, number>();
  private created = 0; // the number of the next texture
  private readonly reader: Reader;
  private readonly pace: Pace;
  private readonly names: string[];
  private readonly scalars: DataView;
  private readonly blocks: WebGLBuffer[] = [];
  private block = 0;
  private closed = false;
  /** The numbers of the textures in the last call of `adopt`: part of each entry's `key`. */
  private taken = "";
  /** The sets of adopted textures for which commands are laid out. */
  private readonly adopted = new Set<string>();

  constructor(
    readonly device: Device,
    readonly program: Program,
    readonly options: Options,
    shared: ReadonlyMap<string, WebGLTexture> = new Map(),
    /**
     * Maximum number of operations of one draw: drivers reset if a draw takes about 2 s. A pass with more operations is
     * drawn in bands (several draws), unless it has a `row` or `slices`.
     */
    private readonly drawFlops = Infinity,
    /** Names of states of equal shape. The followers (all but the first) share the first's texture until `separate`. */
    private readonly together: readonly string[] = [],
    /** Entries to `prepare` at once: the driver compiles their shaders while the textures are created. */
    first: readonly string[] = [],
  ) {
    check(program, device);
    this.pingPong = new PingPong(program);
    this.begun = first.length ? this.build(first) : Promise.resolve();
    this.preparing = this.begun.catch(() => {});
    this.reader = Reader.of(device);
    this.pace = new Pace(
      () => this.passed(),
      () => this.reader.close(),
    );
    this.names = Object.keys(program.scalars).sort(); // the recorder's order of the fields of the uniform block
    this.scalars = new DataView(new ArrayBuffer(Math.max(16, Math.ceil(this.names.length / 4) * 16)));
    const { gl } = device;
    for (let i = 0; i < BLOCKS; i++) {
      const block = gl.createBuffer();
      gl.bindBuffer(gl.UNIFORM_BUFFER, block);
      gl.bufferData(gl.UNIFORM_BUFFER, this.scalars.byteLength, gl.DYNAMIC_DRAW);
      this.blocks.push(block);
    }
    const [leader, ...followers] = together;
    for (const t of Object.values(program.textures)) {
      const given = shared.get(t.name);
      if (given) this.hold(t.name, given);
      else if (t.role !== "scratch" && !followers.includes(t.name)) this.create(t);
    }
    for (const name of followers) this.hold(name, this.texture(leader!));
  }

  private create(t: TextureSpec): WebGLTexture {
    const texture = this.device.texture(t.width, t.height, t.layers, this.stored(t));
    this.own.set(texture, t);
    this.hold(t.name, texture);
    return texture;
  }

  private hold(name: string, texture: WebGLTexture): void {
    this.textures.set(name, texture);
    if (!this.numbers.has(texture)) this.numbers.set(texture, this.created++);
  }

  private stored(t: TextureSpec): TextureFormat {
    if (this.options.storage === "uint") return "uint";
    return t.format === "half" && !this.device.float16 ? "float" : t.format;
  }

  spec(name: string): TextureSpec {
    return must(this.program.textures[name], `texture ${name}`);
  }

  texture(name: string): WebGLTexture {
    return this.textures.get(name) ?? this.create(this.spec(name));
  }

  shared(roles: readonly string[] = ["weight"]): Map<string, WebGLTexture> {
    return new Map([...this.textures].filter(([name]) => roles.includes(this.spec(name).role)));
  }

  /** Returns the bytes of the textures with this role that this player created; without a role, of all of them. */
  ownBytes(role?: string): number {
    return bytesOf([...this.own.values()].filter((t) => !role || t.role === role));
  }

  /** Creates the missing textures of these entries. If there is too little memory, deletes them and returns false. */
  allocate(...entries: string[]): boolean {
    const before = new Set(this.own.keys());
    for (const { inputs, outputs } of entries.flatMap((name) => this.program.entries[name]!.passes)) {
      for (const [, texture] of inputs) this.texture(texture);
      for (const [texture] of outputs) this.texture(texture);
    }
    if (this.own.size === before.size || !this.device.full) return true;
    this.drop([...this.own.keys()].filter((texture) => !before.has(texture)));
    return false;
  }

  /** Deletes textures of this player, all framebuffers and all commands. The latter two are made again when needed. */
  private drop(textures: readonly WebGLTexture[]): void {
    const { gl } = this.device;
    for (const texture of textures) {
      gl.deleteTexture(texture);
      this.textures.delete(this.own.get(texture)!.name);
      this.own.delete(texture);
      this.numbers.delete(texture);
    }
    this.framebuffers.forEach((f) => gl.deleteFramebuffer(f));
    for (const held of [this.framebuffers, this.steps]) held.clear();
  }

  /** True if the states that may share a texture have separate textures now. */
  get separated(): boolean {
    const [first, second] = this.together;
    return !second || this.textures.get(first!) !== this.textures.get(second);
  }

  /** Creates a separate texture for each follower of a shared texture. Throws PageError if the memory is too small. */
  separate(): void {
    if (this.separated) return;
    for (const name of this.together.slice(1)) this.create(this.spec(name));
    this.steps.clear();
    if (!this.device.full) return;
    this.share();
    throw new PageError(
      "This device does not have enough memory for the queries of all layers. Leave the views Attention and Passes.",
    );
  }

  /** Undoes `separate`: the states share a texture again, and the followers' values are lost. */
  share(): void {
    const [leader, ...followers] = this.together;
    if (!followers.length || !this.separated) return;
    this.drop(followers.map((name) => this.texture(name)));
    for (const name of followers) this.hold(name, this.texture(leader!));
  }

  // -- data -----------------------------------------------------------------------------------------------------

  /** Uploads `rows` rows of one layer, starting at row y. `data` holds their texels as 32-bit floats or integers. */
  write(name: string, layer: number, y: number, rows: number, data: Uint8Array): void {
    const { width } = this.spec(name);
    this.writeBlock(name, { layer, x: 0, y, width, rows, stride: width, skip: 0 }, data);
  }

  /** Uploads a block of texels. `data` holds `rows` whole rows of `stride` texels. */
  writeBlock(name: string, block: Block, data: Uint8Array): void {
    const { gl } = this.device;
    const t = this.spec(name);
    const { layer, x, y, width, rows, stride, skip } = block;
    if (
      data.byteLength !== rows * stride * 16 ||
      Math.max(skip + width - stride, x + width - t.width, y + rows - t.height, layer + 1 - t.layers) > 0
    ) {
      throw new PageError(`${data.byteLength} bytes are not ${rows} rows of ${name} from row ${y}`);
    }
    const float = this.stored(t) !== "uint";
    const count = data.byteLength / 4;
    const texels = float
      ? new Float32Array(data.buffer, data.byteOffset, count)
      : new Uint32Array(data.buffer, data.byteOffset, count);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D_ARRAY, this.texture(name));
    const [format, type] = float ? [gl.RGBA, gl.FLOAT] : [gl.RGBA_INTEGER, gl.UNSIGNED_INT];
    gl.pixelStorei(gl.UNPACK_ROW_LENGTH, stride);
    gl.pixelStorei(gl.UNPACK_SKIP_PIXELS, skip);
    gl.texSubImage3D(gl.TEXTURE_2D_ARRAY, 0, x, y, layer, width, rows, 1, format, type, texels);
    gl.pixelStorei(gl.UNPACK_ROW_LENGTH, 0);
    gl.pixelStorei(gl.UNPACK_SKIP_PIXELS, 0);
  }

  /** Reads rows y..y+rows-1 of every layer, by default all rows. The commands are issued before the call returns. */
  async read(name: string, y = 0, rows = this.spec(name).height): Promise<Texels> {
    const t = this.spec(name);
    const out = new Uint8Array(t.width * rows * t.layers * 16);
    const layers = Array.from({ length: t.layers }, (_, layer) => this.framebuffer([[name, layer]]));
    await this.reader.read(layers, [0, y, t.width, rows], this.stored(t) === "uint", out);
    return t.format === "uint" ? new Uint32Array(out.buffer) : new Float32Array(out.buffer);
  }

  /** Resolves when the device has done everything issued: see `Reader.passed`. */
  passed(): Promise<void> {
    return this.reader.passed();
  }

  /**
   * Replaces the textures that have these names, for example after a training step, which swaps pairs of textures. The
   * commands of entries are stored for each set of textures, so that a swap needs no new commands. If a texture is new
   * and there are two sets already, all commands are deleted.
   */
  adopt(shared: ReadonlyMap<string, WebGLTexture>): void {
    let known = true;
    for (const [name, texture] of shared) {
      known &&= this.numbers.has(texture);
      this.hold(name, texture);
    }
    if (!known && this.adopted.size > 1) {
      this.steps.clear();
      this.adopted.clear();
    }
    this.taken = Array.from(shared.values(), (texture) => this.numbers.get(texture)).join();
    this.adopted.add(this.taken);
  }

  /** Returns the key of an entry's commands: the adopted textures and the state of the entry's ping-pong pairs. */
  private key(entry: string): string {
    return `${this.taken} ${this.pingPong.key(entry)}`;
  }

  // -- playing --------------------------------------------------------------------------------------------------

  /** True if an entry can be played. */
  isPrepared(entry: string): boolean {
    return this.prepared.has(entry);
  }

  /**
   * Compiles the shaders of entries and builds lists of the entries' commands. Begins when earlier calls have finished.
   * Await this before playing the entries.
   */
  prepare(...entries: string[]): Promise<void> {
    const mine = this.preparing.then(() => this.build(entries));
    this.preparing = mine.catch(() => {});
    return mine;
  }

  private async build(entries: readonly string[]): Promise<void> {
    const { generation } = this.device;
    const still = () => this.still(generation);
    const users = new Map<string, Pass>(); // for each new shader, one pass that uses it
    const todo = entries.filter((name) => !this.steps.has(this.key(name)));
    for (const name of todo) {
      for (const p of must(this.program.entries[name], `entry ${name}`).passes) {
        if (!this.shaders.has(p.shader) && !users.has(p.shader)) users.set(p.shader, p);
      }
    }
    const text = (name: string) => must(this.program.shaders[name], `shader ${name}`);
    const texts = new Map([...users.keys()].map((name) => [name, text(name)]));
    const busy = this.playsConcurrently || this.prepared.size > 0; // entries may be played while others compile
    const compiled = await compileAll(this.device, texts, this.options, busy, still);
    still();
    const yieldIfLate = yielder();
    for (const [name, program] of compiled) this.shaders.set(name, program); // `close` deletes them
    for (const [name, program] of compiled) {
      if (busy) {
        await this.reader.passed();
        still();
      }
      this.bindSamplers(program, users.get(name)!);
      await yieldIfLate();
      still(); // the player may be closed while this function waits
      this.bindScalars(program);
      await yieldIfLate();
      still();
    }
    if (!this.allocate(...todo)) {
      throw new PageError(`This device does not have enough memory for the working textures of ${todo.join(", ")}.`);
    }
    for (const name of todo) {
      this.laidOut(name);
      this.prepared.add(name);
      await yieldIfLate();
      still();
    }
    this.device.gl.bindFramebuffer(this.device.gl.FRAMEBUFFER, null);
  }

  /** Throws ContextLost if the context with this number is gone, or this player is closed. */
  private still(generation: number): void {
    if (this.closed) throw new ContextLost();
    this.device.still(generation);
  }

  /** Binds a new shader's samplers to units in the order of a pass's inputs. Waits for the driver. */
  private bindSamplers(program: WebGLProgram, { inputs }: Pass): void {
    const { gl } = this.device;
    gl.useProgram(program);
    inputs.forEach(([sampler], unit) => gl.uniform1i(gl.getUniformLocation(program, sampler), unit));
  }

  /** Binds a new shader's scalars to block 0. Waits for the driver. */
  private bindScalars(program: WebGLProgram): void {
    const { gl } = this.device;
    const block = gl.getUniformBlockIndex(program, "Scalars");
    if (block !== gl.INVALID_INDEX) gl.uniformBlockBinding(program, block, 0);
  }

  /** Returns an entry's commands for the current state of its ping-pong pairs. Builds them once for each state. */
  private laidOut(entry: string): Step[] {
    const key = this.key(entry);
    let found = this.steps.get(key);
    if (!found) {
      const { passes } = must(this.program.entries[entry], `entry ${entry}`);
      this.steps.set(key, (found = passes.map((p) => this.step(p))));
    }
    return found;
  }

  private step(p: Pass): Step {
    const [width, height] = p.viewport;
    const covering = this.device.covering(width, height);
    const part = p.outputs.map(([name]) => this.spec(name)).some((t) => t.width > width || t.height > height);
    const beyond = covering[0] > width || p.clear; // the viewport limits neither an oversized triangle nor a clear
    return {
      program: must(this.shaders.get(p.shader), `shader ${p.shader}`),
      units: p.inputs.map(([, name]) => this.texture(name)),
      framebuffer: this.framebuffer(p.outputs),
      width,
      height,
      firstColumn: p.first_column,
      covering,
      keys: p.keys,
      scissored: p.first_column > 0 || p.keys > 0 || (part && beyond),
      row: p.row === null ? -1 : this.names.indexOf(p.row),
      slices: p.slices,
      clear: p.clear,
      bands: p.row === null && !p.slices ? this.bands(p) : 1,
    };
  }

  /** Returns the number of draws of a pass. */
  private bands({ flops, viewport, first_column }: Pass): number {
    return Math.max(1, Math.min(viewport[0] - first_column, Math.ceil(flops / this.drawFlops)));
  }

  private framebuffer(outputs: readonly (readonly [string, number])[]): WebGLFramebuffer {
    const key = outputs.map(([name, layer]) => `${this.numbers.get(this.texture(name))}:${layer}`).join();
    let found = this.framebuffers.get(key);
    if (!found) {
      found = this.device.framebuffer(outputs.map(([name, layer]) => [this.texture(name), layer] as const));
      this.framebuffers.set(key, found);
    }
    return found;
  }

  /**
   * Sets a runtime scalar for the following plays. Throws if the program has no such scalar or its type cannot hold the
   * value.
   */
  set(name: string, value: number): void {
    const int = this.program.scalars[name] === "int";
    const at = 4 * this.names.indexOf(name);
    const fits = int
      ? Number.isInteger(value) && value >= -(2 ** 31) && value < 2 ** 32
      : Number.isFinite(Math.fround(value));
    if (at < 0) throw new PageError(`This program has no scalar ${name}.`);
    if (!fits) throw new PageError(`${name} is ${value}, which does not fit its scalar's type.`);
    if (int) this.scalars.setInt32(at, value, true);
    else this.scalars.setFloat32(at, value, true);
  }

  /** Issues the commands of a prepared entry, or only of its passes first..end-1. Does not wait or read back. */
  play(entry: string, first = 0, end = Infinity): void {
    this.issue(entry, this.laidOut(entry), this.scalars, first, end);
  }

  /**
   * Plays a long prepared entry in slices, so that the page's frames can run in between: see `Pace`. Resolves when all
   * passes are issued. Until then, nothing that uses the same textures may be played. Rejects with ContextLost if the
   * context is lost.
   */
  async playInSlices(entry: string): Promise<void> {
    const { passes } = must(this.program.entries[entry], `entry ${entry}`);
    const steps = this.laidOut(entry);
    const scalars = new DataView(this.scalars.buffer.slice(0));
    await this.pace.play(
      entry,
      passes.map((p) => p.flops),
      (first, end) => this.issue(entry, steps, scalars, first, end),
    );
  }

  private issue(entry: string, steps: readonly Step[], scalars: DataView, first: number, end: number): void {
    const { gl } = this.device;
    const block = this.blocks[(this.block = (this.block + 1) % BLOCKS)]!;
    gl.bindBuffer(gl.UNIFORM_BUFFER, block);
    gl.bufferSubData(gl.UNIFORM_BUFFER, 0, scalars);
    gl.bindBufferBase(gl.UNIFORM_BUFFER, 0, block);
    let program: WebGLProgram | null = null;
    let framebuffer: WebGLFramebuffer | null = null;
    const bound: WebGLTexture[] = [];
    const last = Math.min(end, steps.length);
    for (let i = first; i < last; i++) {
      const s = steps[i]!;
      if (s.program !== program) gl.useProgram((program = s.program));
      for (let unit = 0; unit < s.units.length; unit++) {
        if (bound[unit] !== s.units[unit]) {
          gl.activeTexture(gl.TEXTURE0 + unit);
          gl.bindTexture(gl.TEXTURE_2D_ARRAY, (bound[unit] = s.units[unit]!));
        }
      }
      if (s.framebuffer !== framebuffer) gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, (framebuffer = s.framebuffer));
      const y = s.row < 0 ? 0 : scalars.getInt32(4 * s.row, true);
      gl.viewport(0, y, s.covering[0], s.covering[1]);
      if (s.scissored) {
        gl.enable(gl.SCISSOR_TEST);
        gl.scissor(s.firstColumn, y, this.lastColumn(s, scalars) - s.firstColumn, s.height);
      }
      if (s.slices) this.addUp(s);
      else if (s.bands === 1) gl.drawArrays(gl.TRIANGLES, s.covering[2], 3);
      else this.banded(s, scalars);
      if (s.scissored) gl.disable(gl.SCISSOR_TEST);
      if ((i + 1 - first) % SENT_TOGETHER === 0) gl.flush();
    }
    if (last === steps.length) this.pingPong.swap(entry, this.textures);
  }

  /** Returns the end (excluded) of the columns that a step draws. */
  private lastColumn({ width, keys }: Step, scalars: DataView): number {
    return keys
      ? Math.min(width, Math.ceil((scalars.getInt32(4 * this.names.indexOf("pos"), true) + keys) / 4))
      : width;
  }

  /** Draws a step's slices with blending, which adds them up. */
  private addUp(s: Step): void {
    const { gl } = this.device;
    if (s.clear) gl.clear(gl.COLOR_BUFFER_BIT);
    gl.enable(gl.BLEND);
    gl.drawArraysInstanced(gl.TRIANGLES, s.covering[2], 3, s.slices);
    gl.disable(gl.BLEND);
  }

  /** Draws a step in vertical bands, with one draw per band. */
  private banded(s: Step, scalars: DataView): void {
    const { gl } = this.device;
    gl.enable(gl.SCISSOR_TEST);
    const width = this.lastColumn(s, scalars) - s.firstColumn;
    for (let i = 0; i < s.bands; i++) {
      const left = Math.floor((i * width) / s.bands);
      gl.scissor(s.firstColumn + left, 0, Math.floor(((i + 1) * width) / s.bands) - left, s.height);
      gl.drawArrays(gl.TRIANGLES, s.covering[2], 3);
      gl.flush();
    }
    gl.disable(gl.SCISSOR_TEST);
  }

  /** Returns the number of draws of an entry: one per pass, or one per band for passes drawn in bands. */
  draws(entry: string): number {
    return this.laidOut(entry).reduce((sum, s) => sum + s.bands, 0);
  }

  /** Releases GPU resources and ends a running `prepare`. The player cannot be used afterwards. */
  close(): void {
    this.closed = true;
    const { gl } = this.device;
    this.framebuffers.forEach((f) => gl.deleteFramebuffer(f));
    this.shaders.forEach((p) => gl.deleteProgram(p));
    this.own.forEach((_, t) => gl.deleteTexture(t));
    this.blocks.forEach((b) => gl.deleteBuffer(b));
    for (const held of [this.steps, this.framebuffers, this.shaders, this.textures, this.own]) held.clear();
  }
}

/** Tracks which texture of each ping-pong pair (`Entry.ping_pong`) is current. */
class PingPong {
  private readonly flipped: boolean[] = [];
  private readonly of = new Map<string, number[]>(); // the pairs that an entry swaps
  private readonly touched = new Map<string, number[]>(); // the pairs that an entry reads or writes
  private readonly entries: Program["entries"];

  constructor(program: Program) {
    this.entries = program.entries;
    const numbers = new Map<string, number>();
    for (const { name, ping_pong } of Object.values(program.entries)) {
      const mine = (ping_pong ?? []).map(([old, next]) => {
        const at = numbers.get(old) ?? this.flipped.push(false) - 1;
        numbers.set(old, at).set(next, at);
        return at;
      });
      this.of.set(name, mine);
    }
    for (const { name, passes } of Object.values(program.entries)) {
      const names = passes.flatMap((p) => [...p.inputs.map(([, t]) => t), ...p.outputs.map(([t]) => t)]);
      this.touched.set(name, [...new Set(names.flatMap((t) => numbers.get(t) ?? []))]);
    }
  }

  /** Returns the entry's name and the state of the ping-pong pairs that it touches. */
  key(entry: string): string {
    const touched = this.touched.get(entry) ?? [];
    return touched.length ? `${entry} ${touched.map((i) => Number(this.flipped[i])).join("")}` : entry;
  }

  swap(entry: string, textures: Map<string, WebGLTexture>): void {
    for (const i of this.of.get(entry) ?? []) this.flipped[i] = !this.flipped[i];
    for (const [old, next] of this.entries[entry]?.ping_pong ?? []) {
      const was = textures.get(old)!;
      textures.set(old, textures.get(next)!).set(next, was);
    }
  }
}

/** Throws PageError for a program that this device cannot run. */
export function check(program: Program, device: Pick<Device, "limits">): void {
  const { limits } = device;
  for (const t of Object.values(program.textures)) {
    if (Math.max(t.width, t.height) > limits.maxTextureSize || t.layers > limits.maxLayers) {
      throw new PageError(
        `The model needs a texture of ${t.width} x ${t.height} x ${t.layers} (${t.name}); this device allows at most ` +
          `${limits.maxTextureSize} x ${limits.maxTextureSize} x ${limits.maxLayers}.`,
      );
    }
  }
  for (const entry of Object.values(program.entries)) {
    for (const p of entry.passes) {
      if (p.outputs.length > limits.drawBuffers || p.inputs.length > limits.textureUnits) {
        throw new PageError(
          `Pass ${p.label} writes ${p.outputs.length} targets and reads ${p.inputs.length} textures; this device ` +
            `allows at most ${limits.drawBuffers} and ${limits.textureUnits}.`,
        );
      }
      if (p.outputs.some(([name]) => p.inputs.some(([, other]) => other === name))) {
        throw new PageError(`Pass ${p.label} reads a texture that it writes.`);
      }
      if (p.slices && p.row !== null) {
        throw new PageError(`Pass ${p.label}: ${p.slices} slices must be 0 in a pass with a row.`);
      }
    }
  }
}
