// Reads the recorded cases of the self-test, which glgpt/selftest/suite.py writes: passes, inputs, expected values.

import { fromBase64 } from "../engine/base64";
import { FORMATS } from "../engine/formats";
import { textOf } from "../engine/packed-program";
import type { Texels } from "../gl/player";
import type { Dtype, Program, TextureSpec } from "../gl/program";

export const ENTRY = "test";
const STEP = 8; // an array of kind "e" stores its values times 8, as 8-bit integers

type PassJson = [
  label: string,
  shader: string,
  inputs: [string, string][],
  outputs: [string, number][],
  viewport: [number, number],
  row: string | null,
  slices: number,
  clear: boolean,
  first_column: number,
  keys: number,
];

/** Textures and passes of a program with one entry. */
export interface Recorded {
  scalars: Record<string, number>;
  textures: [string, number, number, number, TextureSpec["format"], TextureSpec["role"]][];
  uploads: string[];
  passes: PassJson[];
  ping_pong: [string, string][];
}

interface CaseJson extends Recorded {
  op: string;
  format: string;
  shape: string;
  /** Maximum number of draw buffers (layers of textures) that a pass writes at once. */
  targets: number;
  inputs: Record<string, number>;
  outputs: [name: string, texture: string, dtype: Dtype, expected: number, atol: number, rtol: number][];
  /**
   * The property of the device that a case tests. For example, a case with the property "denormals" tests whether the
   * device keeps denormal numbers. Such a case does not count as passed, failed or skipped.
   */
  property?: string;
}

/** A program that is timed. If `flops` is 0, the program computes a token. */
export interface Timed extends Recorded {
  name: string;
  flops: number;
}

export interface SuiteJson {
  schema: number;
  glgpt: string;
  scalars: Program["scalars"];
  lines: string[];
  shaders: Record<string, number[]>;
  arrays: [kind: "e" | "f" | "u", base64: string][];
  cases: CaseJson[];
  speed: Timed[];
}

/** The expected values of a texture, in the order of its texels; NaN: any value is correct. */
export interface Expected {
  name: string;
  texture: string;
  dtype: Dtype;
  values: Float32Array;
  atol: number;
  rtol: number;
}

export interface Case extends Pick<CaseJson, "op" | "format" | "shape" | "targets" | "property" | "scalars"> {
  program: Program;
  /** The texels of each texture that is uploaded. */
  inputs: [texture: string, texels: Uint8Array][];
  expected: Expected[];
}

export class Suite {
  constructor(readonly json: SuiteJson) {}

  get ops(): string[] {
    return [...new Set(this.json.cases.map(({ op }) => op))];
  }

  /** Returns the cases of these ops, or of all ops if the list is empty. */
  cases(ops: readonly string[] = []): Case[] {
    const wanted = this.json.cases.filter(({ op }) => !ops.length || ops.includes(op));
    return wanted.map((each) => ({
      ...each,
      program: this.program(each),
      inputs: Object.entries(each.inputs).map(([name, at]) => [name, bytesOf(this.array(at))]),
      expected: each.outputs.map(([name, texture, dtype, at, atol, rtol]) => {
        return { name, texture, dtype, values: this.array(at) as Float32Array, atol, rtol };
      }),
    }));
  }

  program({ textures, passes, uploads, ping_pong }: Recorded): Program {
    const { schema, scalars, lines, shaders } = this.json;
    const used = new Set(passes.map(([, shader]) => shader));
    return {
      schema,
      scalars,
      views: {},
      textures: Object.fromEntries(
        textures.map(([name, width, height, layers, format, role]) => {
          return [name, { name, width, height, layers, format, role }] as const;
        }),
      ),
      shaders: Object.fromEntries([...used].map((name) => [name, textOf(shaders[name]!, lines)])),
      entries: {
        [ENTRY]: {
          name: ENTRY,
          inputs: uploads,
          outputs: {},
          ping_pong,
          passes: passes.map(([label, shader, inputs, outputs, viewport, row, slices, clear, first_column, keys]) => {
            return {
              label,
              shader,
              inputs,
              outputs,
              viewport,
              row,
              slices,
              clear,
              first_column,
              keys,
              flops: 0,
              nbytes: 0,
            };
          }),
        },
      },
    };
  }

  private array(at: number): Float32Array | Uint32Array {
    const [kind, base64] = this.json.arrays[at]!;
    const bytes = fromBase64(base64);
    if (kind === "e") return Float32Array.from(new Int8Array(bytes.buffer), (value) => value / STEP);
    return kind === "f" ? new Float32Array(bytes.buffer) : new Uint32Array(bytes.buffer);
  }
}

const bytesOf = ({ buffer, byteOffset, byteLength }: Float32Array | Uint32Array) =>
  new Uint8Array(buffer, byteOffset, byteLength);

/** The worst element of a texture: the element with the greatest `share`. */
export interface Off {
  output: string;
  error: number;
  allowed: number;
  /** `error` / `allowed`. */
  share: number;
}

/** Compares texels with their expected values. Returns the worst element. */
export function compare({ name, dtype, values, atol, rtol }: Expected, texels: Texels): Off {
  const read = FORMATS[dtype].reader(texels);
  const worst: Off = { output: name, error: 0, allowed: atol, share: 0 };
  values.forEach((wanted, place) => {
    if (Number.isNaN(wanted)) return;
    const ours = read(place);
    const error = Number.isFinite(ours) ? Math.abs(ours - wanted) : Infinity;
    const allowed = atol + rtol * Math.abs(wanted);
    const share = error > 0 ? error / Math.max(allowed, Number.MIN_VALUE) : 0;
    if (share > worst.share) Object.assign(worst, { error, allowed, share });
  });
  return worst;
}
