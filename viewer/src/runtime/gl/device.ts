// Opens a WebGL2 context and finds its limits.

import { computed, signal, type ReadonlySignal } from "@preact/signals-core";
import { PageError } from "./errors";
import type { TextureFormat } from "./program";
import { INTERNAL, TargetProbe, type Memory } from "./targets";
import { sleep } from "./wait";

export interface Options {
  fetch: "texelFetch" | "textureLod";
  storage: "float" | "uint";
}

export interface Limits {
  maxTextureSize: number;
  maxLayers: number;
  drawBuffers: number;
  textureUnits: number;
  uniformBlock: number;
}

/** The parts of the document that a device needs. A device without a document uses OffscreenCanvas and plain timers. */
export interface Host {
  /** Creates a canvas, for browsers whose OffscreenCanvas has no WebGL2. */
  canvas(): HTMLCanvasElement;
  /** True if the page is hidden: browsers then slow down its timers. */
  hidden(): boolean;
  /** Stores the results of test draws, for later visits. */
  memory: Memory;
}

const INSIDE = 3; // first vertex of the triangle that is not clipped: see `covering`
const SOFTWARE = /llvmpipe|softpipe|swiftshader|software|basic render/i;

/** Thrown by work during which the context was lost. `Device.restored` resolves when the browser has restored it. */
export class ContextLost extends Error {
  constructor() {
    super("the browser lost the graphics context");
  }
}

/** The progress of a compilation: the number of its shaders, and how many of them are compiled. */
export interface Compiling {
  compiled: number;
  shaders: number;
}

export class Device {
  readonly gl: WebGL2RenderingContext;
  readonly canvas: HTMLCanvasElement | OffscreenCanvas;
  renderer = "";
  limits!: Limits;
  storage: Options["storage"] = "float";
  /** True if the device should add floats by blending. False for software drivers: they add faster in another pass. */
  blends = false;
  /** True if each column of a quad (2 x 2 pixels) has its own derivative: two pixels can then add up their sums. */
  pairs = false;
  /** True if textures can hold 16-bit floats. */
  float16 = false;
  parallel: KHR_parallel_shader_compile | null = null;
  /** Number of the current context. Objects of an earlier context are gone. */
  generation = 0;
  restored: Promise<void> = Promise.resolve();
  /** Makes `restored` reject if the context is lost now or later. Called when the page disposes of its model. */
  abandon: (error: unknown) => void = () => {};
  private readonly abandoned = new Promise<never>((_, reject) => (this.abandon = reject));
  private probe: TargetProbe | null = null;
  private maxViewport = 0;
  private readonly formats = new WeakMap<WebGLTexture, TextureFormat>();
  /** Combinations of formats to which this context can draw. They are stored because a check waits for the driver. */
  private readonly complete = new Set<string>();
  private readonly loss = signal(false);
  private readonly compilations = signal<readonly Compiling[]>([]);

  constructor(private readonly host: Host | null = null) {
    const offscreen = typeof OffscreenCanvas === "undefined" ? null : new OffscreenCanvas(1, 1);
    const wanted: WebGLContextAttributes = {
      alpha: true,
      premultipliedAlpha: true,
      antialias: false,
      depth: false,
      stencil: false,
      powerPreference: "high-performance",
    };
    let canvas: HTMLCanvasElement | OffscreenCanvas | null = offscreen;
    let gl = offscreen?.getContext("webgl2", wanted) ?? null;
    if (!gl && host) {
      const visible = (canvas = host.canvas()); // some browsers draw only 2D on an OffscreenCanvas
      gl = visible.getContext("webgl2", wanted);
    }
    if (!gl || !canvas) {
      throw new PageError(
        "This browser offers no WebGL2, which the model needs. Use a current Chrome, Edge, Firefox or Safari, " +
          "and check that hardware acceleration or software rendering is not switched off.",
      );
    }
    this.gl = gl;
    this.canvas = canvas;
    this.abandoned.catch(() => {}); // not an unhandled rejection if the context is never lost
    let resolve = () => {};
    canvas.addEventListener("webglcontextlost", (event) => {
      event.preventDefault();
      this.restored = Promise.race([new Promise<void>((done) => (resolve = done)), this.abandoned]);
      this.restored.catch(() => {}); // not an unhandled rejection if nothing waits
      this.loss.value = true;
    });
    canvas.addEventListener("webglcontextrestored", () => {
      this.generation++;
      this.open();
      resolve();
      this.loss.value = false;
    });
    try {
      this.open();
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** The total progress of the latest compilation and of those that were under way when it began. */
  readonly compiling = computed<Compiling>(() => {
    const of = (key: keyof Compiling) => this.compilations.value.reduce((sum, each) => sum + each[key], 0);
    return { compiled: of("compiled"), shaders: of("shaders") };
  });

  /** Adds a compilation of this many shaders to `compiling`. Returns a function that sets how many are compiled. */
  compiles(shaders: number): (compiled: number) => void {
    let mine: Compiling = { compiled: 0, shaders };
    const under = this.compilations.peek().filter((each) => each.compiled < each.shaders);
    this.compilations.value = [...under, mine];
    return (compiled) => {
      const earlier = mine;
      mine = { compiled, shaders };
      this.compilations.value = this.compilations.peek().map((each) => (each === earlier ? mine : each));
    };
  }

  /** Returns a signal that is true from the loss of the context until the browser restores it. */
  get contextLost(): ReadonlySignal<boolean> {
    return this.loss;
  }

  get lost(): boolean {
    return this.gl.isContextLost();
  }

  /** Releases the context: a browser allows about 16 contexts per page. Nothing can be drawn afterwards. */
  release(): void {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }

  /** True if the context with this number is in use, and its objects exist. */
  isCurrent(generation: number): boolean {
    return !this.lost && generation === this.generation;
  }

  /** Throws ContextLost if the context with this number is gone. Call this after each wait, before using GL objects. */
  still(generation: number): void {
    if (!this.isCurrent(generation)) throw new ContextLost();
  }

  /** Resolves after `ms` milliseconds, also in a hidden page. */
  sleep(ms: number): Promise<void> {
    return sleep(ms, this.host?.hidden() ?? false);
  }

  private get announced(): number {
    const { gl } = this;
    return Math.min(
      gl.getParameter(gl.MAX_DRAW_BUFFERS) as number,
      gl.getParameter(gl.MAX_COLOR_ATTACHMENTS) as number,
    );
  }

  /** True if the CPU draws. */
  get software(): boolean {
    return SOFTWARE.test(this.renderer);
  }

  /**
   * Returns the size of the viewport, and the index of the first of the three vertices with which `VERTEX` (shaders.ts)
   * covers `width` x `height` pixels. Mesa's software drivers clip a triangle that extends beyond the viewport into two
   * triangles. If both triangles touch a block of pixels, the driver shades this block twice. For these drivers, the
   * viewport has twice the size, so that it contains the triangle; the framebuffer or the scissor limits the pixels.
   */
  covering(width: number, height: number): [width: number, height: number, first: number] {
    const inside = this.software && 2 * Math.max(width, height) <= this.maxViewport;
    return inside ? [2 * width, 2 * height, INSIDE] : [width, height, 0];
  }

  /** Tests whether later visits can draw to more targets at once than this first visit: see `TargetProbe.tryMore`. */
  tryMoreTargets(): void {
    this.probe?.tryMore(this.announced);
  }

  private open(): void {
    const gl = this.gl;
    this.complete.clear();
    this.parallel = gl.getExtension("KHR_parallel_shader_compile");
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    this.renderer = String(gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER));
    const get = (what: number) => gl.getParameter(what) as number;
    this.probe ??= new TargetProbe(gl, this.renderer, this.host?.memory ?? null);
    const { storage, targets, blends, pairs, float16 } = this.probe.find(this.announced);
    Object.assign(this, { storage, pairs, float16 });
    this.blends = blends && !this.software;
    this.limits = {
      maxTextureSize: get(gl.MAX_TEXTURE_SIZE),
      maxLayers: get(gl.MAX_ARRAY_TEXTURE_LAYERS),
      drawBuffers: targets,
      textureUnits: get(gl.MAX_TEXTURE_IMAGE_UNITS),
      uniformBlock: get(gl.MAX_UNIFORM_BLOCK_SIZE),
    };
    this.maxViewport = Math.min(...(gl.getParameter(gl.MAX_VIEWPORT_DIMS) as Int32Array));
    gl.disable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE);
    gl.clearColor(0, 0, 0, 0);
    gl.disable(gl.DITHER);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 4);
  }

  /** Creates a zeroed 2D-array texture, with NEAREST and CLAMP_TO_EDGE. */
  texture(width: number, height: number, layers: number, held: TextureFormat): WebGLTexture {
    const { gl } = this;
    const texture = gl.createTexture();
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D_ARRAY, texture);
    gl.texStorage3D(gl.TEXTURE_2D_ARRAY, 1, gl[INTERNAL[held]], width, height, layers);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
    this.formats.set(texture, held);
    return texture;
  }

  /**
   * True if an allocation failed since the last check. Waits for the driver. The context has one list of errors for all
   * work, so after an await the failed allocation may be that of other work, such as training.
   */
  get full(): boolean {
    const { gl } = this;
    for (let error = gl.getError(); ; error = gl.getError()) {
      if (error === gl.NO_ERROR || error === gl.CONTEXT_LOST_WEBGL) return false;
      if (error === gl.OUT_OF_MEMORY) return true;
    }
  }

  /**
   * Creates a framebuffer. Each attachment is one layer of a texture that this device created. Throws PageError if the
   * driver does not support this combination of formats.
   */
  framebuffer(attachments: readonly (readonly [WebGLTexture, number])[]): WebGLFramebuffer {
    const { gl } = this;
    const framebuffer = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
    attachments.forEach(([texture, layer], i) =>
      gl.framebufferTextureLayer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0 + i, texture, 0, layer),
    );
    gl.drawBuffers(attachments.map((_, i) => gl.COLOR_ATTACHMENT0 + i));
    const formats = attachments.map(([texture]) => this.formats.get(texture)).join();
    if (this.complete.has(formats)) return framebuffer;
    const status = gl.checkFramebufferStatus(gl.FRAMEBUFFER);
    if (status === gl.FRAMEBUFFER_COMPLETE) this.complete.add(formats);
    else if (!this.lost) {
      const { length } = attachments;
      throw new PageError(`This device cannot render to these ${length} textures at once (status ${status}).`);
    }
    return framebuffer;
  }
}
