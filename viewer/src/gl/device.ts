// A WebGL2 context and what it can do.

import { PageError } from "./errors";
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

/** What a device needs of the document that it runs in; without one it makes do with an OffscreenCanvas and plain timers. */
export interface Host {
  /** A canvas for browsers whose OffscreenCanvas has no WebGL2. */
  canvas(): HTMLCanvasElement;
  /** Whether nobody sees the page: browsers slow down its timers then. */
  hidden(): boolean;
}

/** Thrown by whatever was under way when the browser took the context; `Device.restored` says when it is back. */
export class ContextLost extends Error {
  constructor() {
    super("the browser lost the graphics context");
  }
}

export class Device {
  readonly gl: WebGL2RenderingContext;
  readonly canvas: HTMLCanvasElement | OffscreenCanvas;
  renderer = "";
  limits!: Limits;
  storage: Options["storage"] = "float";
  parallel: KHR_parallel_shader_compile | null = null;
  /** Counts the contexts: objects of an earlier one are gone. */
  generation = 0;
  restored: Promise<void> = Promise.resolve();
  /** Hears when the context is lost, and when it is back. */
  onLost: (lost: boolean) => void = () => {};

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
        "This browser offers no WebGL2, which the model runs on. Use a current Chrome, Edge, Firefox or Safari, " +
          "and check that hardware acceleration or software rendering is not switched off.",
      );
    }
    this.gl = gl;
    this.canvas = canvas;
    let resolve = () => {};
    canvas.addEventListener("webglcontextlost", (event) => {
      event.preventDefault();
      this.restored = new Promise((done) => (resolve = done));
      this.onLost(true);
    });
    canvas.addEventListener("webglcontextrestored", () => {
      this.generation++;
      this.open();
      resolve();
      this.onLost(false);
    });
    this.open();
  }

  get lost(): boolean {
    return this.gl.isContextLost();
  }

  /** Gives the context back to the browser, which allows a page only some 16. Nothing can be drawn with it afterwards. */
  release(): void {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }

  /** Throws where the context that had this number is gone; to be asked after every wait, before its objects are used. */
  still(generation: number): void {
    if (this.lost || generation !== this.generation) throw new ContextLost();
  }

  /** Resolves after `ms` milliseconds, in a page that nobody sees too. */
  sleep(ms: number): Promise<void> {
    return sleep(ms, this.host?.hidden() ?? false);
  }

  private open(): void {
    const gl = this.gl;
    const float = gl.getExtension("EXT_color_buffer_float") !== null && this.renders("float", 1);
    this.storage = float ? "float" : "uint";
    this.parallel = gl.getExtension("KHR_parallel_shader_compile");
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    this.renderer = String(gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER));
    const get = (what: number) => gl.getParameter(what) as number;
    const announced = Math.min(get(gl.MAX_DRAW_BUFFERS), get(gl.MAX_COLOR_ATTACHMENTS));
    this.limits = {
      maxTextureSize: get(gl.MAX_TEXTURE_SIZE),
      maxLayers: get(gl.MAX_ARRAY_TEXTURE_LAYERS),
      drawBuffers: announced >= 8 && this.renders(this.storage, 8) ? announced : Math.min(announced, 4),
      textureUnits: get(gl.MAX_TEXTURE_IMAGE_UNITS),
      uniformBlock: get(gl.MAX_UNIFORM_BLOCK_SIZE),
    };
    gl.disable(gl.BLEND);
    gl.disable(gl.DITHER);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 4);
  }

  /** Whether `count` targets of 128 bits can be rendered to at once: some devices announce more than they can. */
  private renders(storage: Options["storage"], count: number): boolean {
    const { gl } = this;
    const texture = this.texture(1, 1, count, storage);
    const framebuffer = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
    for (let i = 0; i < count; i++) gl.framebufferTextureLayer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0 + i, texture, 0, i);
    const complete = gl.checkFramebufferStatus(gl.FRAMEBUFFER) === gl.FRAMEBUFFER_COMPLETE;
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.deleteFramebuffer(framebuffer);
    gl.deleteTexture(texture);
    return complete;
  }

  /** A 2D-array texture of 128-bit texels, NEAREST and CLAMP_TO_EDGE, zero. */
  texture(width: number, height: number, layers: number, storage: Options["storage"]): WebGLTexture {
    const { gl } = this;
    const texture = gl.createTexture();
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D_ARRAY, texture);
    gl.texStorage3D(gl.TEXTURE_2D_ARRAY, 1, storage === "float" ? gl.RGBA32F : gl.RGBA32UI, width, height, layers);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D_ARRAY, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
    return texture;
  }

  /** Whether the driver had no memory for something since this was last asked. It waits for the driver. */
  get full(): boolean {
    const { gl } = this;
    for (let error = gl.getError(); ; error = gl.getError()) {
      if (error === gl.NO_ERROR || error === gl.CONTEXT_LOST_WEBGL) return false;
      if (error === gl.OUT_OF_MEMORY) return true;
    }
  }

  /** A framebuffer of single layers. Throws where the driver refuses it. */
  framebuffer(attachments: readonly (readonly [WebGLTexture, number])[]): WebGLFramebuffer {
    const { gl } = this;
    const framebuffer = gl.createFramebuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
    attachments.forEach(([texture, layer], i) =>
      gl.framebufferTextureLayer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0 + i, texture, 0, layer),
    );
    gl.drawBuffers(attachments.map((_, i) => gl.COLOR_ATTACHMENT0 + i));
    const status = gl.checkFramebufferStatus(gl.FRAMEBUFFER);
    if (status !== gl.FRAMEBUFFER_COMPLETE && !this.lost) {
      throw new PageError(`This device cannot render to ${attachments.length} such textures (status ${status}).`);
    }
    return framebuffer;
  }
}
