// Finds how many targets (layers of textures) a pass can render to at once, by drawing known numbers and reading them
// back. Some drivers write to fewer targets than they report, or lose the context during a draw.

import type { Options } from "./device";
import { PageError } from "./errors";
import type { TextureFormat } from "./program";
import { VERTEX } from "./shaders";

type Storage = Options["storage"];

/** Stores small values for later visits. */
export interface Memory {
  read(key: string): unknown;
  write(key: string, value: unknown): boolean;
}

/** The results of the test draws. */
export interface Drawable {
  storage: Storage;
  /** Number of targets that one pass can render to. */
  targets: number;
  /** True if blending adds floats. */
  blends: boolean;
  /** True if each column of a quad (2 x 2 pixels) has its own derivative. */
  pairs: boolean;
  /** True if textures of 16-bit floats hold the drawn numbers. */
  float16: boolean;
}

/** The stored results. */
interface Remembered extends Drawable {
  /** The number of targets that were being tested when the results were stored; 0: no test was running. */
  trying: number;
  /** The number of targets whose test lost a context; 0: no context was lost. */
  failed: number;
}

/** The names of the texture formats in WebGL2. */
export const INTERNAL = { float: "RGBA32F", half: "RGBA16F", uint: "RGBA32UI" } as const;
const LEVELS = [1, 2, 4, 8];
/** The minimum number of targets: every WebGL2 device has them, and models need them. */
export const FEW = 4;
const EXTRAS = 16; // stored as `trying` while blending, derivatives and 16-bit floats are tested
const SIZE = 2; // texels per side
const VERSION = 3; // version of the stored results

/** The results for blending, derivatives and 16-bit floats before these are tested. */
const NO_EXTRAS = { blends: false, pairs: false, float16: false };

/** Returns the greatest of `LEVELS` that is less than a number of targets; 1 if there is none. */
const below = (targets: number) => LEVELS.findLast((level) => level < targets) ?? 1;

/**
 * True for Apple's mobile devices, whose drivers wrote wrong numbers to more than `FEW` targets, and for unknown
 * platforms. On such devices, a first visit tests at most `FEW` targets.
 */
function isCautious(): boolean {
  const { userAgent, maxTouchPoints } = navigator;
  const apple = /iPhone|iPad|iPod/.test(userAgent) || (userAgent.includes("Macintosh") && maxTouchPoints > 1);
  return apple || !/Windows|Linux|Android|CrOS|Macintosh/.test(userAgent);
}

/** Draws known numbers on a context. Stores for the next visit which draws returned these numbers. */
export class TargetProbe {
  private found: Drawable | null = null;
  private failed = 0;

  constructor(
    private readonly gl: WebGL2RenderingContext,
    private readonly renderer: string,
    private readonly memory: Memory | null,
  ) {}

  private get key(): string {
    return `glgpt targets ${VERSION} ${this.renderer} ${navigator.userAgent}`; // a new browser may have a new driver
  }

  /**
   * Returns the results of the test draws, with at most `announced` targets. If an earlier visit stored results, uses
   * these without drawing. Throws PageError if no target holds the drawn numbers. Also throws PageError if the context
   * is lost. If this happened in the test of a number of targets, the next visit tests fewer targets, but never fewer
   * than models need. If it happened in the tests of blending, derivatives and 16-bit floats, the next visit uses none
   * of the three.
   */
  find(announced: number): Drawable {
    const { gl } = this;
    const floats = gl.getExtension("EXT_color_buffer_float") !== null; // enables float targets in each new context
    const blending = floats && gl.getExtension("EXT_float_blend") !== null;
    if (this.found) return this.found; // found in an earlier context of this page
    const known = this.remembered();
    this.failed = known?.trying || known?.failed || 0;
    if (known?.targets && !known.trying) return (this.found = known);
    const tooMany = this.failed > FEW && this.failed !== EXTRAS;
    const most = Math.min(announced, tooMany ? below(this.failed) : isCautious() ? FEW : Infinity);
    return (this.found = this.draw(most, floats, blending));
  }

  /**
   * Tests twice as many targets if this first visit was limited to `FEW` (`isCautious`). The next visit uses the
   * result. Call this when nothing else draws.
   */
  tryMore(announced: number): void {
    const { found } = this;
    if (
      found?.targets !== FEW ||
      this.remembered()?.targets !== FEW ||
      announced <= FEW ||
      this.failed ||
      !isCautious()
    )
      return;
    const next = 2 * FEW;
    this.remember(found, next);
    const more = this.writes(found.storage, next);
    this.check(next);
    this.remember({ ...found, targets: more ? next : FEW });
  }

  private draw(most: number, floats: boolean, blending: boolean): Drawable {
    const found: Drawable = { storage: "uint", targets: 0, ...NO_EXTRAS };
    for (const storage of floats ? (["float", "uint"] as const) : (["uint"] as const)) {
      const targets = this.targets(storage, most);
      if (targets > found.targets) Object.assign(found, { storage, targets });
      if (targets >= Math.min(FEW, most)) break; // floats are preferred
    }
    if (found.storage === "float" && found.targets && this.failed !== EXTRAS) {
      this.remember(found, EXTRAS);
      const blends = blending && this.adds(found.targets);
      const pairs = blends && this.differs(found.targets);
      const float16 = this.writes("half", found.targets);
      this.check(EXTRAS);
      Object.assign(found, { blends, pairs, float16 });
    }
    this.remember(found);
    if (found.targets) return found;
    throw new PageError(
      "This device does not return the numbers that this page drew, so the model would compute wrong numbers. " +
        "Update the browser and the graphics driver, or use another device.",
    );
  }

  /** Returns the greatest number of targets among `LEVELS`, up to `most`, that hold the drawn numbers; 0: none does. */
  private targets(storage: Storage, most: number): number {
    let done = 0;
    for (const level of LEVELS) {
      if (level > most) break;
      this.remember({ storage, targets: done, ...NO_EXTRAS }, level);
      const good = this.writes(storage, level);
      this.check(level);
      if (!good) break;
      done = level;
    }
    return done;
  }

  /** True if one draw writes different known numbers to each of `count` targets. */
  private writes(held: TextureFormat, count: number): boolean {
    return this.drawn(held, count, "number(at)", 1, (texel) => bits(texel, held));
  }

  /** True if a second draw is added to the first in each of `count` targets. */
  private adds(count: number): boolean {
    return this.drawn("float", count, "number(at)", 2, (texel) => float32Bits(2 * numberOf(bits(texel))));
  }

  /** True if, in each of `count` targets, a quad column's derivative is the difference of the column's two pixels. */
  private differs(count: number): boolean {
    const drawn = (texel: number) => numberOf(bits(texel * texel)); // squares have unequal differences
    return this.drawn("float", count, "dFdy(number(at * at))", 1, (texel) => {
      const lower = texel - (texel % (SIZE * SIZE)) + (texel % SIZE);
      return float32Bits(drawn(lower + SIZE) - drawn(lower));
    });
  }

  /** Draws a value `times` times and compares each texel's first component with the expected bits. */
  private drawn(
    held: TextureFormat,
    count: number,
    value: string,
    times: number,
    expected: (texel: number) => number,
  ): boolean {
    const { gl } = this;
    const texture = gl.createTexture();
    const framebuffer = gl.createFramebuffer();
    const program = this.program(held, count, value);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D_ARRAY, texture);
    gl.texStorage3D(gl.TEXTURE_2D_ARRAY, 1, gl[INTERNAL[held]], SIZE, SIZE, count);
    gl.bindFramebuffer(gl.FRAMEBUFFER, framebuffer);
    const targets = Array.from({ length: count }, (_, i) => gl.COLOR_ATTACHMENT0 + i);
    for (const [i, at] of targets.entries()) gl.framebufferTextureLayer(gl.FRAMEBUFFER, at, texture, 0, i);
    gl.drawBuffers(targets);
    let good = program !== null && gl.checkFramebufferStatus(gl.FRAMEBUFFER) === gl.FRAMEBUFFER_COMPLETE;
    if (good) {
      gl.viewport(0, 0, SIZE, SIZE);
      gl.useProgram(program);
      if (times > 1) {
        gl.enable(gl.BLEND);
        gl.blendFunc(gl.ONE, gl.ONE);
      }
      for (let i = 0; i < times; i++) gl.drawArrays(gl.TRIANGLES, 0, 3);
      gl.disable(gl.BLEND);
      good = targets.every((at, i) => this.holds(at, held, (texel) => expected(i * SIZE * SIZE + texel)));
    }
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.deleteFramebuffer(framebuffer);
    gl.deleteTexture(texture);
    gl.deleteProgram(program);
    return good;
  }

  private holds(attachment: number, held: TextureFormat, expected: (texel: number) => number): boolean {
    const { gl } = this;
    const read = new Uint32Array(4 * SIZE * SIZE);
    gl.readBuffer(attachment);
    if (held === "uint") gl.readPixels(0, 0, SIZE, SIZE, gl.RGBA_INTEGER, gl.UNSIGNED_INT, read);
    else gl.readPixels(0, 0, SIZE, SIZE, gl.RGBA, gl.FLOAT, new Float32Array(read.buffer));
    return Array.from({ length: SIZE * SIZE }, (_, texel) => read[4 * texel] === expected(texel)).every(Boolean);
  }

  /**
   * Returns a program that writes a value to each target; null if the program does not link. The shader's `number`
   * returns the float whose bits the function `bits` returns. The shader computes this float as a sum; on a device with
   * less precise floats, the sum is wrong.
   */
  private program(held: TextureFormat, count: number, value: string): WebGLProgram | null {
    const { gl } = this;
    const [type, written] = held === "uint" ? ["uvec4", `floatBitsToUint(${value})`] : ["vec4", value];
    const outputs = Array.from({ length: count }, (_, i) => i);
    const program = gl.createProgram();
    for (const [kind, text] of [
      [gl.VERTEX_SHADER, VERTEX],
      [
        gl.FRAGMENT_SHADER,
        `#version 300 es
precision highp float;
precision highp int;
${outputs.map((i) => `layout(location = ${i}) out highp ${type} y${i};`).join("\n")}
float number(uint texel) {
  return 0.5 + float(${bits(0, held) - HALF}u + texel * ${bits(1, held) - bits(0, held)}u) * ${2 ** -24};
}
void main() {
  uint texel = uint(gl_FragCoord.x) + uint(gl_FragCoord.y) * ${SIZE}u, at;
${outputs.map((i) => `  at = texel + ${i * SIZE * SIZE}u; y${i} = ${type}(${written});`).join("\n")}
}`,
      ],
    ] as const) {
      const shader = gl.createShader(kind)!;
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
      gl.deleteShader(shader); // takes effect when the program is deleted
    }
    gl.linkProgram(program);
    if (gl.getProgramParameter(program, gl.LINK_STATUS)) return program;
    gl.deleteProgram(program);
    return null;
  }

  private check(trying: number): void {
    if (!this.gl.isContextLost()) return;
    const next =
      trying === EXTRAS
        ? "Reload the page: it then uses neither blending nor 16-bit floats."
        : trying > FEW
          ? "Reload the page: it then draws to fewer textures at once."
          : "Reload the page to try again. If that does not help, restart the browser, or update the graphics driver.";
    throw new PageError(`The browser lost its graphics context while this page tested what it can draw to. ${next}`);
  }

  private remembered(): Remembered | null {
    const known: Partial<Remembered> = this.memory?.read(this.key) ?? {};
    const { storage, targets, blends, pairs, float16, trying, failed } = known;
    if (storage !== "float" && storage !== "uint") return null;
    if (typeof blends !== "boolean" || typeof pairs !== "boolean" || typeof float16 !== "boolean") return null;
    if (typeof targets !== "number" || typeof trying !== "number" || typeof failed !== "number") return null;
    return { storage, targets, blends, pairs, float16, trying, failed };
  }

  private remember(found: Drawable, trying = 0): void {
    const all: Remembered = { ...found, trying, failed: this.failed };
    this.memory?.write(this.key, all);
  }
}

const HALF = 0x3f000000; // bits of 0.5; floats from 0.5 to 1 have a spacing of 2^-24

/** Returns the bits of a 32-bit float between 0.5 and 1 that needs all fraction bits of the format `held`. */
const bits = (texel: number, held: TextureFormat = "float") =>
  held === "half" ? 0x3f002000 + texel * 0x2000 * 5 : 0x3f000001 + texel * 0x1357;

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

function numberOf(pattern: number): number {
  word[0] = pattern;
  return float[0]!;
}

function float32Bits(value: number): number {
  float[0] = value;
  return word[0]!;
}
