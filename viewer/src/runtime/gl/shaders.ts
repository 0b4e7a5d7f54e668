// Compiles shaders. If the browser compiles in parallel, all shaders are submitted at once; otherwise they are compiled
// one at a time, so that frames and draws run in between.

import { PageError } from "./errors";
import { Reader } from "./readback";
import { pause, TASK } from "./wait";
import type { Device, Options } from "./device";

export const VERTEX = `#version 300 es
// One triangle, computed from gl_VertexID. Vertices 0 to 2 cover the viewport; 3 to 5 are corners of the viewport and
// cover half of it: see \`Device.covering\`. A pass with slices draws one triangle for each slice.
#ifdef SLICES
flat out highp int slice_of_k;
#endif
void main() {
#ifdef SLICES
  slice_of_k = gl_InstanceID;
#endif
  float far = gl_VertexID < 3 ? 3.0 : 1.0;
  gl_Position = vec4(gl_VertexID % 3 == 1 ? far : -1.0, gl_VertexID % 3 == 2 ? far : -1.0, 0.0, 1.0);
}
`;

export function header(options: Options): string {
  return (
    "#version 300 es\n" +
    (options.fetch === "textureLod" ? "#define FETCH_LOD\n" : "") +
    (options.storage === "uint" ? "#define STORAGE_UINT\n" : "")
  );
}

/**
 * Compiles and links fragment shaders. Resolves to the programs by name when all are ready; `Device.compiling` counts
 * the ready ones. `still` is called after each wait. If `still` throws or a shader fails, the programs made so far are
 * deleted. In a browser without parallel compilation, a query of a program's status blocks until all commands issued
 * before the query are done. Fences do not block, so a fence is polled after each shader, before all queries, and the
 * page stays responsive. `busy`: something else draws too, so a fence is polled before each query in any browser.
 */
export async function compileAll(
  device: Device,
  texts: ReadonlyMap<string, string>,
  options: Options,
  busy = false,
  still = stillOf(device),
): Promise<Map<string, WebGLProgram>> {
  if (!texts.size) return new Map();
  const { gl, generation } = device;
  const ready = device.compiles(texts.size);
  const made: Made = { programs: new Map(), shaders: new Map(), vertices: [] };
  try {
    await compiled(device, texts, options, ready, busy, still, made);
    return made.programs;
  } catch (error) {
    if (device.isCurrent(generation)) made.programs.forEach((program) => gl.deleteProgram(program));
    throw error;
  } finally {
    ready(texts.size); // also after a failure, which ends the compilation
    if (device.isCurrent(generation))
      for (const shader of [...made.shaders.values(), ...made.vertices]) gl.deleteShader(shader);
  }
}

/** The objects that a compilation creates. */
interface Made {
  programs: Map<string, WebGLProgram>;
  shaders: Map<string, WebGLShader>;
  vertices: WebGLShader[];
}

/** Returns a function that throws ContextLost if the device's current context is gone. */
function stillOf(device: Device): () => void {
  const { generation } = device;
  return () => device.still(generation);
}

async function compiled(
  device: Device,
  texts: ReadonlyMap<string, string>,
  options: Options,
  ready: (compiled: number) => void,
  busy: boolean,
  still: () => void,
  { programs: found, shaders, vertices }: Made,
): Promise<void> {
  const { gl, parallel } = device;
  const vertex = vertexShader(gl, VERTEX);
  const sliced = vertexShader(gl, VERTEX.replace("\n", "\n#define SLICES 1\n"));
  vertices.push(vertex, sliced);
  const reader = Reader.of(device);
  for (const [name, text] of texts) {
    const shader = gl.createShader(gl.FRAGMENT_SHADER)!;
    gl.shaderSource(shader, header(options) + text);
    gl.compileShader(shader);
    const program = gl.createProgram();
    gl.attachShader(program, text.includes("slice_of_k;") ? sliced : vertex);
    gl.attachShader(program, shader);
    gl.linkProgram(program);
    found.set(name, program);
    shaders.set(name, shader);
    if (parallel && found.size < texts.size) continue;
    await reader.passed();
    still();
    if (!parallel) ready(found.size);
  }
  let done = 0;
  let since = performance.now();
  for (const [name, program] of found) {
    if (performance.now() - since > TASK) {
      await pause();
      since = performance.now();
    }
    still();
    if (parallel) {
      while (!gl.getProgramParameter(program, parallel.COMPLETION_STATUS_KHR) && !device.lost) {
        await pause();
        still();
      }
    } else {
      await pause(); // one at a time, so that no frame waits for all shaders
      still();
    }
    if (busy) {
      await reader.passed();
      still();
    }
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) {
      still();
      const shader = shaders.get(name)!;
      const said = gl.getShaderInfoLog(shader) || gl.getProgramInfoLog(program) || "no message";
      throw new PageError(shaderError(name, header(options) + (texts.get(name) ?? ""), said));
    }
    if (parallel) ready(++done);
  }
}

function vertexShader(gl: WebGL2RenderingContext, text: string): WebGLShader {
  const shader = gl.createShader(gl.VERTEX_SHADER)!;
  gl.shaderSource(shader, text);
  gl.compileShader(shader);
  return shader;
}

/** Returns an error message with the first line of the driver's message `said`, and the source line that it names. */
export function shaderError(name: string, text: string, said: string): string {
  const line = /(?:ERROR|error): *\d+:(\d+)/.exec(said)?.[1];
  const source = line ? text.split("\n")[Number(line) - 1]?.trim() : undefined;
  const where = source ? `\n  line ${line}: ${source}` : "";
  return `Shader ${name} does not compile: ${said.split("\n")[0]}${where}`;
}
