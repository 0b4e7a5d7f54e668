// Tests the engine's logic that needs no browser: chunks, layouts, schemas, sampling, the loader's checks.

import { describe, expect, it, vi } from "vitest";
import { Capture } from "../src/runtime/engine/capture";
import { plan, sizes, writeIds } from "../src/runtime/engine/chunks";
import { parseIntervention, scales, writeInterventions, written } from "../src/runtime/engine/interventions";
import { memoryView, statistics } from "../src/runtime/engine/field";
import { guess, pick, playable } from "../src/runtime/engine/probe";
import { fromFloat16 } from "../src/runtime/gl/float16";
import { blocks, shape, unpack } from "../src/runtime/engine/layout";
import { digest, Loader } from "../src/runtime/engine/loader";
import { Names } from "../src/runtime/engine/names";
import {
  parseManifest,
  parseProgram,
  parseRecorded,
  parseReference,
  parseTokenizer,
  type Manifest,
  type Recording,
} from "../src/runtime/engine/manifest";
import { Model } from "../src/runtime/engine/model";
import { logProbabilities } from "../src/runtime/engine/probabilities";
import { measure, ties } from "../src/runtime/engine/tolerance";
import { check, type Player } from "../src/runtime/gl/player";
import { header, shaderError } from "../src/runtime/gl/shaders";
import { PageError } from "../src/runtime/gl/errors";
import type { Program, View } from "../src/runtime/gl/program";
import { alternatives, chosen, Sampler } from "../src/runtime/engine/sampling";
import { readAll, type Source } from "../src/runtime/engine/source";
import { LETTERS } from "../src/runtime/engine/byte-letters";
import { Tokenizer } from "../src/runtime/engine/tokenizer";
import { caption, interventionName } from "../src/app/ui/names";
import { countInWords } from "../src/app/ui/tools";
import { split } from "../src/app/features/passes/source";

const COSTS = { one_token: 4, per_chunk: 4 };

describe("chunks", () => {
  it("cover each token of a prompt once, do not exceed the context, and are not padded except for the last", () => {
    const known = [256, 64, 16, 1];
    for (const context of [256, 71]) {
      for (let tokens = 1; tokens <= context; tokens++) {
        let at = 0;
        for (const chunk of plan(tokens, context, known, COSTS)) {
          expect(chunk.start).toBe(at);
          expect(chunk.start + chunk.size).toBeLessThanOrEqual(context);
          at += chunk.valid;
          if (at < tokens) expect(chunk.valid).toBe(chunk.size);
        }
        expect(at).toBe(tokens);
      }
    }
  });
  it("begin where the caches end", () => {
    expect(plan(41, 256, [256, 64, 16, 1], COSTS, 40)).toEqual([{ start: 40, valid: 1, size: 1 }]);
  });
  it("are padded with their last id, since the values of a token that is not in the text could overflow", () => {
    const written: number[] = [];
    const write = (...[, , , , bytes]: Parameters<Player["write"]>) => {
      written.push(...new Float32Array(bytes.buffer).filter((_, i) => i % 4 === 0));
    };
    writeIds({ write } as unknown as Player, [1, 2, 3, 4, 5], { start: 2, valid: 2, size: 4 });
    expect(written).toEqual([3, 4, 4, 4]);
  });
  it("have the sizes in the names of the entries", () => {
    expect(sizes(["decode", "prefill_16", "prefill_256", "prefill_x"], "prefill_")).toEqual([256, 16]);
  });
});

describe("layouts", () => {
  it("unpack tiles", () => {
    const view = {
      texture: "x",
      rows: 3,
      cols: 10,
      tiles: [2, 2] as [number, number],
      dtype: "f32" as const,
      panel: 0,
      stack: 1,
    };
    const texels = new Float32Array(4 * 2 * 2 * 4); // four tiles of two rows of two texels
    for (let r = 0; r < 3; r++) {
      for (let c = 0; c < 10; c++) {
        const layer = Math.floor(r / 2) * 2 + Math.floor(c / 8);
        texels[((layer * 2 + (r % 2)) * 2 + Math.floor((c % 8) / 4)) * 4 + (c % 4)] = 100 * r + c;
      }
    }
    expect(Array.from(unpack(view, texels))).toEqual(
      [0, 1, 2].flatMap((r) => Array.from({ length: 10 }, (_, c) => 100 * r + c)),
    );
  });
  it.each([
    ["f32", 1],
    ["f32", 2],
    ["f32", 5],
    ["f16", 1],
    ["f16", 3],
  ] as const)("put tiles of %s into panels, %i of them one below the other, in bands of any height", (dtype, stack) => {
    const [rows, cols, height] = [6, 100, 3];
    const plain = { texture: "x", rows, cols, tiles: [2, 2] as [number, number], dtype, panel: 0, stack: 1 };
    const view = { ...plain, panel: 3, stack };
    const from = shape(plain);
    const to = shape(view);
    const source = Uint32Array.from({ length: 2 * from.across * height * from.width * 4 }, (_, i) => i);
    for (const band of [1, 2, 3]) {
      const texels = new Uint32Array(2 * to.across * height * stack * view.panel * 4);
      const seen = new Set<number>();
      for (let layer = 0; layer < 2 * from.across; layer++) {
        for (let y = 0; y < height; y += band) {
          for (const b of blocks(view, layer, y, Math.min(band, height - y))) {
            expect(b.stride).toBe(from.width);
            for (let i = 0; i < b.rows; i++) {
              for (let x = 0; x < b.width; x++) {
                const at = ((b.layer * stack * height + b.y + i) * view.panel + b.x + x) * 4;
                const old = ((layer * height + y + i) * from.width + b.skip + x) * 4;
                expect(seen.has(at)).toBe(false);
                seen.add(at);
                texels.set(source.subarray(old, old + 4), at);
              }
            }
          }
        }
      }
      const read = (v: View, bits: Uint32Array) => unpack(v, dtype === "f32" ? new Float32Array(bits.buffer) : bits);
      expect(Array.from(read(view, texels))).toEqual(Array.from(read(plain, source)));
    }
  });
  it("do not move tiles without panels", () => {
    const view = {
      texture: "x",
      rows: 6,
      cols: 50,
      tiles: [2, 2] as [number, number],
      dtype: "f32" as const,
      panel: 0,
      stack: 1,
    };
    const block = { layer: 3, x: 0, y: 1, width: 7, rows: 2, stride: 7, skip: 0 };
    expect([...blocks(view, 3, 1, 2)]).toEqual([block]);
  });
  it("unpack f16 numbers of two column tiles from one layer", () => {
    const halves = Uint16Array.from([0x3c00, 0xc000, 0, 0x3800, 0x4200, 0x7bff, 0x0001, 0]);
    const view = {
      texture: "x",
      rows: 1,
      cols: 7,
      tiles: [1, 2] as [number, number],
      dtype: "f16" as const,
      panel: 0,
      stack: 1,
    };
    expect(Array.from(unpack(view, new Uint32Array(halves.buffer)))).toEqual([1, -2, 0, 0.5, 3, 65504, 2 ** -24]);
    expect(fromFloat16(0xfc00)).toBe(-Infinity);
    expect(fromFloat16(0x7e00)).toBeNaN();
  });
});

describe("sampling", () => {
  const logits = Float32Array.from([1, 3, 2, 3, -1]);
  const settings = { temperature: 1, topK: null, topP: null, seed: 1 };
  it("is greedy at temperature 0, and takes the first of equal logits", () => {
    expect(new Sampler({ ...settings, temperature: 0 }).draw(logits, 0).id).toBe(1);
  });
  it("stays within top-k and top-p", () => {
    const seen = (more: object) => {
      const sampler = new Sampler({ ...settings, ...more });
      return [...new Set(Array.from({ length: 200 }, (_, step) => sampler.draw(logits, step).id))].sort();
    };
    expect(seen({ topK: 2 })).toEqual([1, 3]);
    expect(seen({ topP: 0.39 })).toEqual([1]);
    expect(seen({ topP: 0.5 })).toEqual([1, 3]);
    expect(seen({ temperature: 3 })).toEqual([0, 1, 2, 3, 4]);
  });
  it("refuses settings of other types and out of range", () => {
    const wrong: object[] = [
      ...[-1, NaN, Infinity, 1e31, 1e38, 1e300, "1", null].map((temperature) => ({ temperature })),
      ...[0, 1.1, NaN, "0.5"].map((topP) => ({ topP })),
      ...[-0.1, 1.1, NaN, "0.5"].map((minP) => ({ minP })),
      ...[0, 1e-300, 1e300, NaN, "1"].map((repetitionPenalty) => ({ repetitionPenalty })),
      ...[NaN, Infinity, 1e300, "1"].map((bias) => ({ logitBias: { 1: bias } })),
      ...[-1, 0.5, NaN, 2 ** 60, "1"].map((seed) => ({ seed })),
    ];
    for (const more of wrong) expect(() => new Sampler({ ...settings, ...more })).toThrow(/ is .*; it must be /);
    const hottest = new Sampler({ ...settings, temperature: 1e30, topP: 0.999999999, minP: 5e-324 }).scalars(
      0,
      200_000,
    );
    expect(Object.values(hottest).every((x) => Number.isFinite(Math.fround(x)))).toBe(true);
  });
  it("forbids tokens with a bias of -Infinity, and refuses logits of the model that are not finite", () => {
    const sampler = new Sampler({ ...settings, temperature: 5, logitBias: { 1: -Infinity, 3: -Infinity } });
    const found = sampler.adjusted(logits, []);
    expect(new Set(Array.from({ length: 100 }, (_, step) => sampler.draw(found, step).id))).toEqual(new Set([0, 2, 4]));
    for (const x of [NaN, Infinity, -Infinity]) {
      const broken = Float32Array.from([1, 3, x]);
      expect(() => new Sampler(settings).draw(broken, 0)).toThrow(/not finite/);
      expect(() => alternatives(broken, 2, 0)).toThrow(/not finite/);
      expect(() => new Sampler({ ...settings, logitBias: { 2: -Infinity } }).adjusted(broken, [])).toThrow(
        /not finite/,
      );
    }
    const all = new Sampler({ ...settings, logitBias: { 0: -Infinity, 1: -Infinity } });
    expect(() => all.adjusted(Float32Array.from([1, 2]), [])).toThrow(/forbids all/);
  });
  it("flattens the distribution by the temperature", () => {
    const sampler = new Sampler({ ...settings, temperature: 2 });
    const total = [1, 3, 2, 3, -1].reduce((sum, x) => sum + Math.exp(x / 2), 0);
    const { sampled } = sampler.draw(logits, 0);
    for (const id of logits.keys()) expect(sampled(id)).toBeCloseTo(Math.exp(logits[id]! / 2) / total, 6);
    const drawn = Array.from({ length: 2000 }, (_, step) => sampler.draw(logits, step).id);
    expect(drawn.filter((id) => id === 2).length / 2000).toBeCloseTo(Math.exp(1) / total, 1);
  });
  it("returns the most likely tokens with their probabilities", () => {
    const { top, p } = alternatives(logits, 2, 0);
    expect(top.map((c) => c.id)).toEqual([1, 3]);
    expect(p).toBeCloseTo(Math.exp(1) / (Math.exp(1) + 2 * Math.exp(3) + Math.exp(2) + Math.exp(-1)), 6);
  });
  it("reads the token that the device chose", () => {
    const texels = new Float32Array(40).fill(-1);
    texels.set([7, 1, 0, 0, 3, 2, 1, 0, 7, 1, 1, 0, 9, 0, 0, 0]);
    texels.set([4, 2, 2, 0], 36);
    const found = chosen(texels, new Sampler({ ...settings, temperature: 0.5 }));
    expect([found.id, found.undecided]).toEqual([7, false]);
    const { top, p, sampled } = found.weighed(8);
    expect(top.map((c) => c.id)).toEqual([3, 7, 9]);
    expect([p, sampled]).toEqual([Math.exp(-1) / 4, Math.exp(-2) / 2]);
    expect(top[1]).toEqual({ id: 7, p, sampled });
    expect([top[0]!.p, top[0]!.sampled, top[2]!.sampled]).toEqual([1 / 4, 1 / 2, 0]);
    expect(found.weighed(1).top.length).toBe(1);
    expect(chosen(texels.fill(1, 3, 4), new Sampler(settings)).undecided).toBe(true);
    expect(() => chosen(texels.fill(1, 2, 3), new Sampler(settings))).toThrow(PageError);
  });
  it("refuses settings out of range", () => {
    for (const bad of [{ temperature: -1 }, { topK: 0 }, { topP: 0 }, { topP: 1.1 }, { seed: -1 }]) {
      expect(() => new Sampler({ ...settings, ...bad })).toThrow(PageError);
    }
  });
});

const texture = { width: 4, height: 4, layers: 1, format: "float", role: "scratch" } as const;
const pass = {
  label: "p",
  shader: "s",
  inputs: [["u_x", "a"]],
  outputs: [["b", 0]],
  viewport: [4, 4],
  row: null,
  flops: 0,
  slices: 0,
  clear: false,
  first_column: 0,
  keys: 0,
  nbytes: 0,
};
const FAMILY = {
  blocks: ["h.{}.", "layers.{}."],
  positions: "rotary",
  stream: ["embed", "h.{}.post"],
  queries: "attn.q",
  adds: [{ part: "attn", out: "attn.out" }],
  stages: [{ title: "mix", shows: ["attn.z"], adds: "attn" }],
  names: [
    { name: "embed" },
    { name: "h.{}.attn", title: "attention" },
    { name: "h.{}.attn.z" },
    { name: "h.{}.post" },
    { name: "layers.{}.q", title: "to Q" },
    { name: "layers.{}.q.weight", about: "makes queries" },
  ],
};
const program = {
  schema: 2,
  textures: { a: { name: "a", ...texture }, b: { name: "b", ...texture } },
  shaders: { s: "void main() {}" },
  entries: { e: { name: "e", inputs: [], passes: [pass], outputs: {} } },
  views: {},
  scalars: { pos: "int" },
};

describe("schemas", () => {
  it("accept valid documents and name the errors of others", () => {
    expect(parseProgram(program, "program.json")).toBe(program);
    expect(() => parseProgram({ ...program, schema: 1 }, "program.json")).toThrow(/schema version 1/);
    const bad = structuredClone(program) as unknown as Program;
    bad.textures["a"]!.width = 0;
    expect(() => parseProgram(bad, "program.json")).toThrow(/program.json is damaged: #\/textures\/a\/width/);
    expect(() => parseManifest({ schema: 3 })).toThrow(/manifest.json is damaged/);
    expect(() => parseManifest(null)).toThrow(/schema version/);
    const run = {
      schema: 2,
      prompt: null,
      ids: [1],
      greedy: [],
      device: "",
      tolerance: { relative: 0.02, single: 8, floor: 1e-4, kl: 0.05 },
      activations: {},
    };
    expect(() => parseReference({ ...run, logits: { first: 0, data: "AAAA" } }, "reference.json")).not.toThrow();
    expect(() => parseReference({ ...run, logits: { first: -1, data: "" } }, "reference.json")).toThrow(/logits/);
  });
});

describe("player", () => {
  const limits = { maxTextureSize: 8, maxLayers: 8, drawBuffers: 4, textureUnits: 16, uniformBlock: 16384 };
  const played = program as unknown as Program;
  it("refuses programs that exceed a device's limits, and passes that no device can draw", () => {
    expect(() => check(played, { limits })).not.toThrow();
    expect(() => check(played, { limits: { ...limits, maxTextureSize: 2 } })).toThrow(/allows at most 2 x 2/);
    expect(() => check(played, { limits: { ...limits, drawBuffers: 0 } })).toThrow(/writes 1 targets/);
    const loop = structuredClone(played);
    loop.entries["e"]!.passes[0]!.inputs = [["u_x", "b"]];
    expect(() => check(loop, { limits })).toThrow(/reads a texture that it writes/);
    const rows = structuredClone(played);
    Object.assign(rows.entries["e"]!.passes[0]!, { slices: 2, row: "pos" });
    expect(() => check(rows, { limits })).toThrow("2 slices must be 0 in a pass with a row");
  });
  it("gives shaders the desktop's header, and shows an error with its source line", () => {
    expect(header({ fetch: "textureLod", storage: "uint" })).toBe(
      "#version 300 es\n#define FETCH_LOD\n#define STORAGE_UINT\n",
    );
    expect(shaderError("s", "a\nb c\n", "ERROR: 0:2: 'c' : undeclared")).toMatch(/line 2: b c/);
  });
});

describe("the probe", () => {
  const recording = (kernel: string, rows: "strided" | "contiguous"): Recording => ({
    ...{ draw_buffers: 8, kernel, rows },
    ...{ generate: "", capture: "", product: kernel, row: rows },
  });
  const all = [recording("4x4", "strided"), recording("4x4", "contiguous"), recording("4x8", "strided")];
  const both = ["texelFetch", "textureLod"] as const;
  it("takes contiguous columns if they are fast enough, then the fastest product for the chosen columns", () => {
    const measured = {
      "4x4 texelFetch": 3,
      "4x4 textureLod": 2,
      "4x8 texelFetch": 1,
      "4x8 textureLod": 1.5,
      "4x4-contiguous texelFetch": 7,
      "4x4-contiguous textureLod": 6,
    };
    const rows = {
      "strided texelFetch": 5,
      "contiguous texelFetch": 4,
      "strided textureLod": 1,
      "contiguous textureLod": 0.9,
    };
    expect(pick(all, both, { ...measured, ...rows }, 0.8)).toEqual({ recording: all[2], fetch: "texelFetch" });
    const paying = { ...measured, ...rows, "contiguous textureLod": 0.7 };
    expect(pick(all, both, paying, 0.8)).toEqual({ recording: all[1], fetch: "textureLod" });
    expect(pick(all, ["texelFetch"], paying, 0.8)).toEqual({ recording: all[2], fetch: "texelFetch" });
  });
  it("prefers recordings with blending, and among these the ones with pairs, on devices that support them", () => {
    const blended = { ...recording("4x8", "strided"), blends: true };
    const paired = { ...blended, pairs: true };
    const every = [...all, blended, paired];
    expect(playable(every, 8, { blends: true, pairs: true })).toEqual([all[1], paired]);
    expect(playable(every, 8, { blends: true, pairs: false })).toEqual([all[1], blended]);
    for (const pairs of [true, false]) expect(playable(every, 8, { blends: false, pairs })).toEqual(all);
    const narrow = { ...recording("4x4", "strided"), draw_buffers: 4 };
    expect(playable([narrow, blended, paired], 4, { blends: true, pairs: true })).toEqual([narrow]);
  });
  it("takes the choice of measured devices of the same kind until this device is measured", () => {
    const wide = { ...recording("8x4", "contiguous"), draw_buffers: 8 };
    const narrow = all.slice(0, 2).map((each) => ({ ...each, draw_buffers: 4 }));
    const known = [...narrow, all[2]!, wide];
    const llvmpipe = "ANGLE (Mesa/X.org, llvmpipe (LLVM 15.0.6 256 bits), OpenGL ES 3.2)";
    const swiftshader = "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) (0x0000C0DE)), SwiftShader driver)";
    for (const software of [llvmpipe, swiftshader]) {
      expect(guess(known, both, software)).toEqual({ recording: wide, fetch: "textureLod" });
    }
    expect(guess(known, both, "ANGLE (NVIDIA, NVIDIA H200)")).toEqual({ recording: all[2], fetch: "texelFetch" });
    expect(guess(narrow.slice(1), ["textureLod"], "")).toEqual({ recording: narrow[1], fetch: "textureLod" });
  });
  it("takes the first recording and fetch if nothing was measured", () => {
    expect(pick([all[1]!], ["textureLod"], {}, 0.8)).toEqual({ recording: all[1], fetch: "textureLod" });
  });
});

describe("captures", () => {
  it("return -Infinity as the score of a key after the query or before the query's window", async () => {
    const view = { texture: "s", rows: 3, cols: 4, tiles: [1, 1], dtype: "f32", panel: 0, stack: 1 };
    const texels = Float32Array.from([1, 9, 9, 9, 2, 3, 9, 9, -1e30, 4, 5, 9]);
    const player = {
      program: { entries: { logits_3: { outputs: { s: view } } } },
      prepare: () => Promise.resolve(),
      read: () => Promise.resolve(texels),
      ...{ write: () => {}, set: () => {}, play: () => {} },
    };
    const activations = new Map([["s", { name: "s", kind: "scores", heads: 1, width: 4 }]]);
    const manifest = { activations, config: { n_positions: 4 }, tuning: { one_captured: 16, per_chunk: 4 } };
    const found = await new Capture(manifest as unknown as Manifest, player as unknown as Player).run([1, 2, 3], ["s"]);
    const none = -Infinity;
    expect(found.get("s")).toEqual({ shape: [1, 3, 3], data: Float32Array.of(1, none, none, 2, 3, none, none, 4, 5) });
  });
});

describe("pictures", () => {
  it("exclude masked values from the range", () => {
    const found = statistics(Float32Array.from([-1e30, 1, 3, -2, 2]));
    expect(found).toMatchObject({ low: -2, high: 3, mean: 1, inner: [-2, 3] });
    expect(found.bins.reduce((a, b) => a + b)).toBe(4);
  });
  it("show the memory layout", () => {
    const spec = { name: "x", width: 3, height: 2, layers: 4, format: "float", role: "scratch" } as const;
    expect(memoryView(spec)).toMatchObject({ rows: 8, cols: 12, tiles: [4, 1], dtype: "f32" });
    expect(memoryView({ ...spec, format: "uint" })).toMatchObject({ rows: 8, cols: 24, tiles: [4, 2], dtype: "f16" });
  });
  it("separate a shader's own text from the recorder's header", () => {
    const text = "#define X_W 4\n#define STORE_Y(v) out_0 = v[0];\n// y = x\nvoid main() {}\n";
    expect(split(text)).toEqual(["#define X_W 4\n#define STORE_Y(v) out_0 = v[0];", "// y = x\nvoid main() {}"]);
  });
  it("show a number of parameters in words", () => {
    expect([970, 151072, 5_066_752, 134_515_008, 999_700_000, 1.5576e9].map(countInWords)).toEqual([
      "970",
      "151,000",
      "5.07 million",
      "135 million",
      "1 billion",
      "1.56 billion",
    ]);
  });
});

describe("names", () => {
  const activation = (name: string, kind: "rows" | "heads") =>
    [name, { kind, heads: kind === "heads" ? 2 : 1, width: 4 }] as const;
  const blocks = [...Array(12).keys()];
  const activations = new Map([
    activation("embed", "rows"),
    ...blocks.flatMap((i) => [
      activation(`h.${i}.attn.z`, "heads"),
      activation(`h.${i}.attn.out`, "rows"),
      activation(`h.${i}.post`, "rows"),
    ]),
  ]);
  const names = Names.of({ family: FAMILY, activations } as unknown as Manifest);
  it("belong to blocks as the manifest says", () => {
    expect(names.place("h.11.attn.z")).toEqual({ block: 11, prefix: "h.{}.", part: "attn.z" });
    expect(names.place("layers.3.q.weight")).toMatchObject({ block: 3, part: "q.weight" });
    expect(["embed", "h.x.attn", "layers", "h.", "lens.h.1.post"].map((name) => names.block(name))).toEqual([
      -1, -1, -1, -1, -1,
    ]);
    expect([names.whole("h.7"), names.whole("h.7.attn"), names.whole("embed")]).toEqual([7, -1, -1]);
    expect(names.inOther("layers.3.q.weight", 10)).toBe("layers.10.q.weight");
    expect(names.inOther("embed", 10)).toBeNull();
  });
  it("are sorted by the number of the block, also if there are more than ten", () => {
    expect(names.stream(12)).toEqual(["embed", ...blocks.map((i) => `h.${i}.post`)]);
    expect(names.sorted(["h.10.post", "cut.10", "h.2.post", "cut.9", "layers.2.q.weight", "h.2.attn.z"])).toEqual([
      "cut.9",
      "cut.10",
      "h.2.attn.z",
      "h.2.post",
      "layers.2.q.weight",
      "h.10.post",
    ]);
  });
  it("are explained and captioned as the manifest says", () => {
    expect([names.about("layers.11.q.weight"), names.about("other")]).toEqual(["makes queries", ""]);
    expect(["layers.1.q", "h.0.attn.sums"].map((label) => caption(names, label))).toEqual(["to Q", "sums"]);
    const joined = "layers.1.q, layers.1.sums"; // the label of two passes that are joined
    expect([names.block(joined), names.about(joined), caption(names, joined)]).toEqual([1, "", "q, sums"]);
    expect([names.title("layers.1.q, layers.1.q"), names.about("layers.1.q.weight, h.0.x")]).toEqual([
      "to Q, to Q",
      "makes queries",
    ]);
    expect(["h.11", "h.11.attn", "h.11.attn.1*2"].map((change) => interventionName(names, change))).toEqual([
      "block 11",
      "attention of block 11",
      "head 1 of block 11 × 2",
    ]);
  });
});

describe("the tokenizer", () => {
  const data = {
    schema: 3,
    model: { vocab: Object.fromEntries([...LETTERS, "ab"].map((token, id) => [token, id])), merges: ["a b"] },
    added_tokens: [{ content: "<end>", id: 300, special: true }],
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false },
    decoder: { type: "ByteLevel" },
    ...{ prefix: [300], suffix: [97], vocab_size: 301 },
  };
  const made = (fields: object) => () => new Tokenizer(parseTokenizer({ ...data, ...fields }, "tokenizer.json"));
  it("merges by rank, keeps special texts whole, and decodes what it encoded", () => {
    const tokenizer = made({})();
    expect(tokenizer.encode("ab ba<end>")).toEqual([256, 32, 98, 97, 300]);
    expect(tokenizer.prompt("ab")).toEqual([300, 256, 97]);
    expect(tokenizer.decode([256, 32, 98, 97])).toBe("ab ba");
    expect(tokenizer.label(32)).toBe("·");
  });
  it("puts a message between the tokens of a chat's format; special tokens in the message are plain text", () => {
    const tokenizer = made({})();
    expect(tokenizer.turn([300, "a", null, 300, "b"], "b<end>")).toEqual([
      300,
      256,
      ...tokenizer.encodeOrdinary("<end>"),
      300,
      98,
    ]);
    expect(tokenizer.encodeOrdinary("<end>")).toHaveLength(5);
  });
  const { model } = data;
  it.each([
    [{ prefix: [-1] }, /tokenizer.json is damaged: #\/prefix\/0/],
    [{ normalizer: { type: "Precompiled" } }, /tokenizer.json is damaged: #\/normalizer/],
    [{ normalizer: { type: "Prepend", prepend: "x".repeat(65) } }, /tokenizer.json is damaged: #\/normalizer/],
    [{ model: { ...model, vocab: { a: "b" } } }, /its vocabulary does not map tokens to ids/],
    [{ model: { ...model, vocab: { a: 2 ** 24 } } }, /its vocabulary does not map tokens to ids/],
    [{ model: { ...model, vocab: { a: 1, b: 1 } } }, /two tokens have the same id/],
    [{ model: { ...model, merges: ["a q"] } }, /the merge "a q" .* Export the model again/],
    [{ model: { ...model, merges: [["a", "b", ""]] } }, /is not a pair of tokens/],
    [{ model: { ...model, unk_token: "<unk>" } }, /its vocabulary lacks "<unk>"/],
    [
      { pre_tokenizer: { type: "Split", pattern: { Regex: "(a+)*b" }, behavior: "Isolated" } },
      /the regular expression \(a\+\)\*b is not supported by this page/,
    ],
    [
      { normalizer: { type: "Sequence", normalizers: Array(4).fill(doubling("a")) } },
      /the replacements expand one character to more than 8/,
    ],
  ])("is refused if it is damaged: %j", (fields, why) => {
    expect(made(fields)).toThrow(why);
  });
});

function doubling(text: string) {
  return { type: "Replace", pattern: { String: text }, content: text + text };
}

describe("changes of a model", () => {
  it("are the same after they were written", () => {
    for (const word of ["h.3.attn.5", "h.3.mlp*-0.5", "h.2~a%7Eb%2C~~4", "h.2@7@x%40y", "h.1.attn:uniform"]) {
      expect(written(parseIntervention(word))).toBe(word);
      expect(scales(word)).toBe(/^h\.3/.test(word));
    }
    expect(parseIntervention("h.2@7@x%40y").patch).toEqual({ position: 7, text: "x@y" });
    expect(parseIntervention("h.2~a%7Eb%2C~~4").steering).toEqual({ towards: "a~b,", away: "" });
  });

  it("are refused if they are malformed", () => {
    for (const word of [
      "h.3*",
      "h.3*x",
      "h.3*1*2",
      "h.2~a~b",
      "h.2~a~b~",
      "h.2@a@x",
      "h.2@1.5@x",
      "h.2@-1@x",
      "h.2@1",
      "h.2@1@%",
      "h.2~%~~1",
      "h.1:",
      "h.1:a:b",
    ]) {
      expect(() => parseIntervention(word), word).toThrow("is not a change of a part");
    }
    expect(() => parseIntervention("h.2~~~4")).toThrow("h.2~~~4 steers between two empty texts");
  });

  it("write nothing if a part is patched at two tokens", () => {
    const view = { rows: 1, cols: 4, tiles: [1, 1], dtype: "f32" };
    const views = { "edit.a.gain": view, "edit.a.shift": view, "edit.a.at": view };
    const manifest = { activations: new Map([["a", { heads: 1, width: 4 }]]) } as unknown as Manifest;
    const write = vi.fn();
    const patches = [1, 2].map((at) => ({ name: "a", head: null, gain: 0, shift: null, at }));
    const player = { program: { views }, write } as unknown as Player;
    expect(() => writeInterventions(player, manifest, patches)).toThrow("only one token");
    expect(write).not.toHaveBeenCalled();
    writeInterventions(player, manifest, patches.slice(1));
    expect(write).toHaveBeenCalledTimes(3);
  });
});

describe("probabilities of a text", () => {
  it.each([
    [[1, 9], 1, "Id 9 is outside the vocabulary of 8."],
    [[], 1, "is empty"],
    [[1, 2], 0, "from is 0; it must be an integer from 1 to the number of ids, 2."],
    [[1, 2], 3, "from is 3"],
  ])("are refused for the ids %j from token %d on", async (ids, from, why) => {
    const manifest = { config: { vocab_size: 8, n_positions: 4 } };
    const model = Object.assign(Object.create(Model.prototype) as Model, { manifest });
    await expect(logProbabilities(model, ids, from)).rejects.toThrow(why);
  });
});

describe("tolerance", () => {
  const tolerance = { relative: 0.02, single: 8, floor: 1e-4, kl: 0.05 };
  it("requires the same size and the same infinities", () => {
    expect(measure(Float32Array.from([NaN]), Float32Array.from([1]), 1, tolerance).excess).toBe(Infinity);
    expect(measure(Float32Array.from([Infinity, 1]), Float32Array.from([Infinity, 1]), 2, tolerance).excess).toBe(0);
    expect(measure(new Float32Array(1), new Float32Array(2), 1, tolerance).excess).toBe(Infinity);
  });

  it("accepts either of two almost equally likely tokens as the greedy token", () => {
    const logits = Float32Array.from([1, 10, 9.95, 9, 0]);
    expect([ties(logits, 1, 2, tolerance), ties(logits, 1, 3, tolerance)]).toEqual([true, false]);
  });
});

describe("loader", () => {
  const encode = (text: string) => new TextEncoder().encode(text);
  const good = encode("weights");
  const shard = { file: "weights-00.bin", bytes: good.length, sha256: "0".repeat(64), pieces: [["w", 0, 0, 1]] };
  const manifest = {
    schema: 3,
    glgpt: "0",
    model: "m",
    dtype: "f32",
    tokenizer: null,
    reference: "reference.json",
    tuning: { ...COSTS, one_captured: 16, panels_pay: 0.8, steady: 1.3, draw_flops: 1e10, ahead: 3 },
    activations: [{ name: "h.0.resid", kind: "rows", heads: 1, width: 1 }],
    family: FAMILY,
    prompts: [],
    files: {},
    config: { vocab_size: 1, n_positions: 1, n_layer: 1, n_head: 1, n_embd: 1, d_head: 1 },
    recordings: [
      { draw_buffers: 8, kernel: "4x8", rows: "contiguous", generate: "a", capture: "b", product: "c", row: "d" },
    ],
    shards: [shard],
  };
  async function folder(answers: Uint8Array<ArrayBuffer>[]) {
    const found = { ...manifest, shards: [{ ...shard, sha256: await digest(good) }] };
    const bytes = vi.fn(async (name: string, _max: number, onBytes?: (n: number) => void) => {
      if (name === "manifest.json") return encode(JSON.stringify(found));
      const data = answers.shift() ?? encode("wrong!!");
      onBytes?.(data.length);
      return data;
    });
    const source: Source = { cache: null, bytes };
    return { loader: await Loader.open(source), bytes };
  }
  it("fetches a damaged shard again, without the cache, and counts the shard's bytes once", async () => {
    const { loader, bytes } = await folder([encode("broken!"), encode("weights")]);
    const got = [];
    for await (const shard of loader.shards()) got.push(new TextDecoder().decode(shard.data));
    expect(got).toEqual(["weights"]);
    expect(loader.progress.value).toMatchObject({ done: 7, total: 7 });
    expect(bytes.mock.calls.at(-1)![3 as never]).toBe(true);
  });
  it("names a shard that stays damaged", async () => {
    const { loader } = await folder([]);
    await expect(loader.shards().next()).rejects.toThrow(/weights-00.bin, fetched 3 times.*SHA-256/);
  });
  it.each([
    ["n_layer", 1e6, "config"],
    ["n_head", 1e6, "config"],
    ["vocab_size", 1e12, "config"],
    ["ahead", 1e9, "tuning"],
  ])("refuses %s of %d", (name, value, of) => {
    const changed = { ...manifest, [of]: { ...manifest[of as "config"], [name]: value } };
    expect(() => parseManifest(changed)).toThrow(
      new RegExp(`manifest.json is damaged: #/${of}/${name}: .* Export the model again.`),
    );
  });
  it("refuses a model with more blocks than activations, more heads than a page shows, or terabytes of files", () => {
    const config = (fields: object) => ({ ...manifest, config: { ...manifest.config, ...fields } });
    expect(() => parseManifest(config({ n_layer: 2 }))).toThrow(/2 blocks and names 1 activations/);
    const activations = [...Array(64).keys()].map((i) => ({ ...manifest.activations[0], name: `h.${i}.resid` }));
    expect(() => parseManifest({ ...config({ n_layer: 64, n_head: 1000 }), activations })).toThrow(
      /64 blocks of 1000 heads/,
    );
    expect(() => parseManifest({ ...manifest, shards: [{ ...shard, bytes: 1e13 }] })).toThrow(/shards.*bytes/);
  });
  it("refuses a recorded text that lacks the attention of a block", () => {
    const tokens = ["a", "b"].map((text, id) => ({ id, text, label: text }));
    const recorded = {
      schema: 1,
      prompt: "a",
      seed: 1,
      given: 1,
      tokens,
      machine: { cell: [1, 1], at: [1], pictures: ["AAAA"] },
    };
    const attention = { tokens: 2, data: "AAAA" };
    const of = (n_layer: number) => () =>
      parseRecorded({ ...recorded, attention }, "recorded.json", { ...manifest.config, n_layer });
    expect(of(1)).not.toThrow();
    expect(of(2)).toThrow(/recorded.json is damaged: it has attention of fewer than 2 blocks/);
  });
  it("reads no more of a file than the manifest says", async () => {
    const parts = [encode("ab"), encode("cd"), encode("ef")];
    const stream = (cut = false) =>
      new ReadableStream<Uint8Array<ArrayBuffer>>({
        pull(controller) {
          const part = parts[taken++];
          if (part) controller.enqueue(part);
          else if (cut) controller.error(new TypeError("reset"));
          else controller.close();
        },
      });
    let taken = 0;
    const heard: number[] = [];
    expect(new TextDecoder().decode(await readAll(stream(), "a.bin", 6, 1, (n) => heard.push(n)))).toBe("abcdef");
    expect(heard).toEqual([2, 2, 2]);
    taken = 0;
    await expect(readAll(stream(), "a.bin", 3)).rejects.toThrow("a.bin has more than 3 bytes");
    taken = 0;
    await expect(readAll(stream(true), "a.bin", 9)).rejects.toThrow("a.bin ended after 6 bytes.");
  });
});
