// Reads the first texel of a texture bit by bit, without a fence. In Chrome on an H200, a fence for each token delays
// each token by half a millisecond. For each bit, an occlusion query tells whether a draw wrote its pixel.

import { ContextLost, type Device, type Options } from "./device";
import { LOSS_REPORT_MS, Reader } from "./readback";
import { compileAll } from "./shaders";

const ID_BITS = 20; // bits of the first component, a token's id
const BITS = ID_BITS + 2; // the last two are flags: 1 if the third or fourth component is above 0
const MEASURED_BROWSERS = /Chrome\//; // browsers in which these reads were measured on a GPU

// Draw i writes its pixel only if bit i is 1. The last draw always writes; if its query says otherwise, the context is
// lost.
const FRAGMENT = `precision highp float;
uniform highp sampler2DArray texels;
uniform highp int bit;
out vec4 written;
void main() {
  vec4 texel = texelFetch(texels, ivec3(0), 0);
  if (bit < ${ID_BITS} ? (int(texel.x) >> bit & 1) < 1 : bit < ${BITS} && texel[bit - ${ID_BITS - 2}] <= 0.0) discard;
  written = texel;
}`;

// A texel with which a new reader is tested, and its bits.
const KNOWN = [0x55555, 0, 1, 0];
const KNOWN_BITS = 0x555555;

export class BitReader {
  private readonly bit: WebGLUniformLocation | null;
  private readonly target: WebGLTexture;
  private readonly framebuffer: WebGLFramebuffer;

  private constructor(
    private readonly device: Device,
    private readonly program: WebGLProgram,
  ) {
    const { gl } = device;
    gl.useProgram(program);
    gl.uniform1i(gl.getUniformLocation(program, "texels"), 0);
    this.bit = gl.getUniformLocation(program, "bit");
    this.target = device.texture(1, 1, 1, "float");
    this.framebuffer = device.framebuffer([[this.target, 0]]);
  }

  /**
   * Compiles the shader and reads a known texel. Resolves to null if the caller must read with a fence: in a browser
   * that was not measured, if an id below `end` may have more than 20 bits, if the device stores floats as integers,
   * or if the known texel is read wrong. Rejects with ContextLost if the context is lost.
   */
  static async open(device: Device, options: Options, end: number): Promise<BitReader | null> {
    if (options.storage === "uint" || end > 2 ** ID_BITS || !MEASURED_BROWSERS.test(navigator.userAgent)) return null;
    const { gl, generation } = device;
    let reader: BitReader | null = null;
    try {
      const programs = await compileAll(device, new Map([["bits", FRAGMENT]]), options, true);
      reader = new BitReader(device, programs.get("bits")!);
      const texture = device.texture(1, 1, 1, "float");
      gl.texSubImage3D(gl.TEXTURE_2D_ARRAY, 0, 0, 0, 0, 1, 1, 1, gl.RGBA, gl.FLOAT, new Float32Array(KNOWN));
      const bits = await reader.bits(texture);
      if (device.isCurrent(generation)) gl.deleteTexture(texture);
      if (bits === KNOWN_BITS) return reader;
    } catch (error) {
      if (error instanceof ContextLost) throw error;
      console.warn("tokens are read with a fence:", error);
    }
    device.still(generation);
    reader?.close();
    return null;
  }

  /**
   * Reads the first texel: the id, 0 instead of the second component, and the flags as 0 or 1. The commands are
   * issued before the call returns. Rejects with ContextLost if the context is lost.
   */
  async read(texture: WebGLTexture): Promise<number[]> {
    const { device } = this;
    const { generation } = device;
    const bits = await this.bits(texture);
    const lost = bits >> BITS === 0;
    if (lost) await device.sleep(LOSS_REPORT_MS);
    device.still(generation);
    if (lost) throw new ContextLost();
    return [bits & (2 ** ID_BITS - 1), 0, (bits >> ID_BITS) & 1, (bits >> (ID_BITS + 1)) & 1];
  }

  /** Draws the bits of the first texel. Resolves to the bits, with bit `BITS` set. */
  private async bits(texture: WebGLTexture): Promise<number> {
    const { gl } = this.device;
    const queries = Array.from({ length: BITS + 1 }, () => gl.createQuery());
    gl.useProgram(this.program);
    gl.bindFramebuffer(gl.DRAW_FRAMEBUFFER, this.framebuffer);
    gl.viewport(0, 0, 1, 1);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D_ARRAY, texture);
    queries.forEach((query, i) => {
      gl.uniform1i(this.bit, i);
      gl.beginQuery(gl.ANY_SAMPLES_PASSED, query);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
      gl.endQuery(gl.ANY_SAMPLES_PASSED);
    });
    try {
      await Reader.of(this.device).answered(queries[BITS]!);
      const set = (query: WebGLQuery) => Number(gl.getQueryParameter(query, gl.QUERY_RESULT));
      return queries.reduce<number>((bits, query, i) => bits | (set(query) << i), 0);
    } finally {
      for (const query of queries) gl.deleteQuery(query);
    }
  }

  /** Releases GPU resources. */
  close(): void {
    const { gl } = this.device;
    gl.deleteProgram(this.program);
    gl.deleteFramebuffer(this.framebuffer);
    gl.deleteTexture(this.target);
  }
}
