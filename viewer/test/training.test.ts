// Tests training code that needs no browser. Compares the tokenizer, the inputs of steps and the files with the
// desktop's; tests sessions and ping-pong states on simulated devices.

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { check, Player } from "../src/runtime/gl/player";
import type { Device } from "../src/runtime/gl/device";
import type { Program } from "../src/runtime/gl/program";
import made from "./bpe.json";
import { fixedWindows, rateAt, sortedIndex, splitAt, starts, windows } from "../src/training/batches";
import { BpeError, encodeText, trainBpe } from "../src/training/bpe";
import { clean, CLEANING } from "../src/training/cleaning";
import type { Offer } from "../src/runtime/engine/manifest";
import type { Model } from "../src/runtime/engine/model";
import {
  modelFiles,
  readModel,
  readSafetensors,
  readTokenizer,
  tokenizerFiles,
  writeSafetensors,
  type Tensors,
} from "../src/training/files";
import { afterOverflow, afterStep, FIRST, known } from "../src/training/loss-scale";
import type { Plan } from "../src/training/plan";
import { Session } from "../src/training/session";
import type { Store } from "../src/training/store";
import { Training } from "../src/training/training";
import { fitting, type Arrived, type Trainer } from "../src/training/trainer";

interface Case {
  text: string;
  size: number;
  vocab: string[];
  merges: string[];
  ids: number[];
}

/** Holds results of `glgpt tokenizer train`. tests/browser/test_page_training.py checks that they are current. */
const cases: Case[] = made;

describe("the loss scale", () => {
  it("doubles after 2,000 steps without an overflow, and halves after each overflow, down to 1", () => {
    expect(FIRST).toEqual({ value: 65536, steps: 0 });
    expect(afterStep(FIRST)).toEqual({ value: 65536, steps: 1 });
    expect(afterStep({ value: 65536, steps: 1999 })).toEqual({ value: 131072, steps: 0 });
    expect(afterStep({ value: 2 ** 24, steps: 1999 })).toEqual({ value: 2 ** 24, steps: 0 });
    expect(afterOverflow({ value: 4, steps: 7 })).toEqual({ value: 2, steps: 0 });
    expect(afterOverflow({ value: 1, steps: 7 })).toBeNull();
  });

  it("is ignored if a file lacks it or has an invalid one", () => {
    expect(known({ value: 4, steps: 7 })).toEqual({ value: 4, steps: 7 });
    for (const wrong of [undefined, { value: -1, steps: 0 }, { value: NaN, steps: 0 }, { value: 2, steps: 0.5 }]) {
      expect(known(wrong)).toBeNull();
    }
  });
});

describe("byte-level BPE", () => {
  it.each(cases.map((c, i) => [i, c] as const))("finds the desktop's merges and ids, text %i", (_, c) => {
    const bpe = trainBpe(c.text, c.size);
    expect(bpe.vocab).toEqual(c.vocab);
    expect(bpe.merges.map(([a, b]) => `${bpe.vocab[a]} ${bpe.vocab[b]}`)).toEqual(c.merges);
    expect(Array.from(encodeText(c.text, bpe))).toEqual(c.ids);
    expect(readTokenizer(tokenizerFiles(bpe))).toEqual(bpe);
  });

  it("refuses a vocabulary that is larger than the text gives, or too small for all bytes", () => {
    expect(() => trainBpe("abc", 300)).toThrow(BpeError);
    expect(() => trainBpe("abc", 256)).toThrow("too small");
  });

  it("is not slowed down by a very long word", () => {
    const text = "ab".repeat(200_000);
    const bpe = trainBpe(text, 262);
    expect(encodeText(text, bpe).length).toBe(400_000 / 32); // five merges: ab, abab, ...
  }, 30_000);

  it("keeps bytes unchanged without a vocabulary", () => {
    expect(Array.from(encodeText("aé", null))).toEqual([0x61, 0xc3, 0xa9]);
    expect(readTokenizer(tokenizerFiles(null))).toBeNull();
  });
});

describe("cleaning a text of repeats", () => {
  const markers = "*** START OF THE PROJECT GUTENBERG ".repeat(60_000);
  const blanks = `${" ".repeat(100_000)}x`;
  const lines = `${"\n".repeat(200_000)}x\n*** END OF THE PROJECT GUTENBERG`;
  it.each([
    ["markers", markers, markers.trimEnd()],
    ["blanks", blanks, blanks],
    ["lines", lines, "\n\nx\n"],
  ])(
    "takes linear time in its %s", // scanning to the end of the text from each position takes 10 to 40 seconds
    (_, text, cleaned) => {
      const begun = performance.now();
      expect(clean([text], CLEANING).text === cleaned).toBe(true);
      expect((performance.now() - begun) / 1000).toBeLessThan(3);
    },
    120_000,
  );
});

describe("the inputs of a step", () => {
  it("draws the desktop's windows", () => {
    expect(starts(5, 1, 4, 1000)).toEqual([628, 621, 620, 595]);
    expect(starts(4294967295, 123456, 3, 1e9)).toEqual([605736951, 324309454, 505358127]);
    const ids = Uint16Array.from({ length: 1000 }, (_, i) => i % 97);
    const { inputs, targets } = windows(ids, starts(7, 3, 4, 994), 6);
    expect(Array.from(inputs).filter((_, i) => i % 4 === 1)).toEqual([50, 51, 52, 53, 54, 55]); // the second window
    expect(Array.from(targets.subarray(0, 4))).toEqual([93, 51, 17, 76]); // position 0 of all windows
    expect(fixedWindows(1000, 64, 512)).toEqual([0, 64, 192, 320, 448, 576, 704, 832]);
  });

  it("sorts rows by their ids", () => {
    const { order, runs } = sortedIndex(Float32Array.of(3, 1, 9, 3, 0, 8), 10);
    expect(Array.from(order)).toEqual([4, 0, 0, 0, 1, 1, 0, 0, 0, 3, 0, 0, 3, 3, 0, 0, 5, 0, 0, 0, 2, 1, 0, 0]);
    expect(Array.from(runs)).toEqual([0, 4, 0, 0, 4, 4, 0, 0, 4, 6, 0, 0]);
  });

  it("has the desktop's learning rates", () => {
    const rates = { steps: 200, lr: 1e-3, min_lr: 1e-4, warmup: 10, schedule: "cosine" as const };
    const expected = [0.0001, 0.001, 0.000999938487246611, 0.0005871607054625496, 0.0001];
    [1, 10, 11, 100, 200].forEach((step, i) => expect(rateAt(rates, step)).toBeCloseTo(expected[i]!, 15));
  });

  it("splits a text between two characters", () => {
    const bytes = new TextEncoder().encode("aaaaaaaa漢漢");
    expect(splitAt(bytes, 0.4)).toBe(8);
    expect(splitAt(bytes, 0.3)).toBe(11);
    expect(splitAt(bytes, 0)).toBe(14);
  });
});

describe("safetensors", () => {
  const tensors: Tensors = new Map([
    ["a", { shape: [2, 3], data: Float32Array.of(1, 2, 3, 4, 5, 6) }],
    ["é", { shape: [1], data: Float32Array.of(-0.5) }],
  ]);

  it("are unchanged after a round trip", () => {
    const bytes = writeSafetensors(tensors, { k: "v" });
    expect((bytes.length - 7 * 4) % 8).toBe(0);
    const found = readSafetensors(bytes);
    expect(found.tensors).toEqual(tensors);
    expect(found.metadata).toEqual({ k: "v" });
  });

  it("are refused if they are damaged", () => {
    const bytes = writeSafetensors(tensors, {});
    expect(() => readSafetensors(bytes.subarray(0, -1))).toThrow("incomplete");
    expect(() => readSafetensors(bytes.subarray(0, 20))).toThrow("header is incomplete");
    expect(() => readSafetensors(new TextEncoder().encode("hello"))).toThrow("too short");
  });
});

describe("parameters that share a tensor of a checkpoint", () => {
  const parameters = [
    { name: "q.weight", stored: "model.qkv.weight", shape: [2, 2], transposed: true },
    { name: "k.weight", stored: "model.qkv.weight", shape: [1, 2], transposed: true },
    { name: "norm.weight", stored: "model.norm.weight", shape: [2], transposed: false },
  ];
  const offer = { parameters, checkpoint: {} } as unknown as Offer;
  const tensor = (shape: number[], ...values: number[]) => ({ shape, data: Float32Array.from(values) });

  it("are rows of this tensor, both in a saved file and when a file is read", () => {
    const state: Tensors = new Map([
      ["q.weight", tensor([2, 2], 1, 2, 3, 4)],
      ["k.weight", tensor([1, 2], 5, 6)],
      ["norm.weight", tensor([2], 7, 8)],
    ]);
    const files = modelFiles(writeSafetensors(state, {}), offer, null);
    const saved = readSafetensors(files["model.safetensors"]!).tensors;
    expect([...saved]).toEqual([
      ["model.qkv.weight", tensor([3, 2], 1, 2, 3, 4, 5, 6)],
      ["model.norm.weight", tensor([2], 7, 8)],
    ]);
    const published = Object.entries(files).filter(([name]) => name !== "state.safetensors");
    const again = readModel(Object.fromEntries(published), [offer]);
    expect(readSafetensors(again.state).tensors).toEqual(state);
  });
});

describe("a saved state", () => {
  const parameters = [{ name: "w", stored: "w", shape: [2, 3], transposed: false }];
  const offer = { parameters } as unknown as Plan["offer"];
  const state = (...values: number[]) => {
    return writeSafetensors(new Map([["w", { shape: [2, values.length / 2], data: Float32Array.from(values) }]]), {});
  };

  it("is accepted if its tensors have the shapes of the offer", () => {
    const found = fitting(offer, state(1, 2, 3, 4, 5, 6), null);
    expect([...found.keys()]).toEqual(["w", "w.moment", "w.squares"]);
    expect(Array.from(found.get("w.squares")!)).toEqual([0, 0, 0, 0, 0, 0]);
  });

  it("is refused if a tensor has another shape or a value that is not finite", () => {
    expect(() => fitting(offer, state(1, 2), null)).toThrow("w is 2 x 1; this size has 2 x 3");
    expect(() => fitting(offer, state(1, 2, 3, NaN, 5, 6), null)).toThrow("w holds a NaN");
    expect(() => fitting(offer, state(1, 2, 3, -Infinity, 5, 6), null)).toThrow("w holds a NaN");
  });
});

describe("the steps of a session", () => {
  const BATCH = 4;
  const CONTEXT = 8;
  const STEP = 40; // ms per step on the simulated device
  const device = { generation: 0, lost: false } as unknown as Device;

  const keep = vi.fn(() => Promise.resolve());
  let now = 0;
  beforeEach(() => void vi.spyOn(performance, "now").mockImplementation(() => now));
  afterEach(() => void vi.restoreAllMocks());

  /**
   * Returns a session on a simulated device. Step 1 takes `first` ms, each other step takes STEP ms, and the results of
   * three steps arrive at once.
   */
  function session(steps: number, first: number): Session {
    const late: Arrived[] = [];
    let free = 0;
    const trainer = {
      steps: 0,
      submit: () => {
        const step = ++trainer.steps;
        free = Math.max(free, now) + (step === 1 ? first : STEP);
        late.push({ step, loss: 1, gradNorm: 1, at: free });
        if (late.length <= 3) return Promise.resolve([]);
        const heard = late[0]!.at > now ? late[2]!.at : late[0]!.at;
        for (const result of late.slice(0, 3)) result.at = Math.max(result.at, heard);
        now = Math.max(now, heard);
        return Promise.resolve([late.shift()!]);
      },
      drain: () => {
        now = Math.max(now, free);
        return Promise.resolve(late.splice(0));
      },
      state: () => Promise.resolve(new Uint8Array(8)),
      close: () => {},
    };
    const plan = {
      offer: { recipe: { batch: BATCH, context: CONTEXT } },
      train: new Uint16Array(100),
      validation: new Uint16Array(0),
      bpe: null,
      rates: { steps, lr: 0.5, min_lr: 0.125, warmup: 0, schedule: "constant" },
      seed: 0,
      evalEvery: 0,
      sampleEvery: 0,
    } as unknown as Plan;
    return new Session(plan, device, () => Promise.resolve(trainer as unknown as Trainer), keep);
  }

  it.each([10, 200])("have the device's speed in tokens per second over %i steps", async (steps) => {
    const made = session(steps, 3000);
    await made.open();
    await made.start();
    expect(made.status).toBe("done");
    expect(made.points.length).toBe(steps);
    const right = (1000 * BATCH * CONTEXT) / STEP;
    expect(made.tokensPerS).toBeCloseTo(right, 6);
    for (const { tokensPerS } of made.points) expect(tokensPerS).toBeLessThan(1.001 * right);
    for (const { tokensPerS } of made.points.slice(40)) expect(tokensPerS).toBeGreaterThan(0.9 * right);
  });

  it("can change their learning rate while paused, and the final rate in proportion", async () => {
    const made = session(2, 0);
    await made.open();
    const running = made.start();
    expect(() => made.setRate(0.25)).toThrow("Pause the training before");
    await running;
    made.setRate(0.25);
    expect(made.plan.rates).toMatchObject({ lr: 0.25, min_lr: 0.0625 });
    for (const wrong of [0, NaN, 1e40]) expect(() => made.setRate(wrong)).toThrow("must be above 0");
    expect(made.checkpoint!.rates).toEqual(made.plan.rates);
  });

  it("store no scores that are computed after the session was closed", async () => {
    const made = session(2, 0);
    await made.open();
    await made.start();
    await made.close();
    keep.mockClear();
    await made.keepScores();
    expect(keep).not.toHaveBeenCalled();
  });

  /** Returns the page's training, with this session. `build` creates the trainer of a federation. */
  function lending(made: Session, build: () => Promise<object>): Training {
    const model = { device } as unknown as Model;
    const found = new Training(
      () => model,
      {} as unknown as Store,
      () => Promise.resolve(),
    );
    const offers = { ready: () => Promise.resolve({ sizes: [{ digest: "d" }] }), program: () => Promise.resolve({}) };
    Object.assign(found, { offers, trainer: build });
    vi.spyOn(found, "session", "get").mockReturnValue(made);
    return found;
  }

  it("continue after a federation that borrowed the device twice, as it does after a lost context", async () => {
    const made = session(2, 0);
    await made.open();
    const training = lending(made, () => Promise.resolve({ close: () => {} }));
    await training.lend("d", 0);
    const { trainer } = await training.lend("d", 0);
    training.giveBack(trainer);
    await training.settled();
    await made.start();
    expect(made.status).toBe("done");
  });

  it("continue if the trainer of a federation cannot be created", async () => {
    const made = session(2, 0);
    await made.open();
    const training = lending(made, () => Promise.reject(new Error("out of memory")));
    await expect(training.lend("d", 0)).rejects.toThrow("out of memory");
    training.giveBack(undefined);
    await training.settled();
    await made.start();
    expect(made.status).toBe("done");
  });
});

describe("ping-pong states", () => {
  const texture = (name: string) => ({
    name,
    width: 1,
    height: 1,
    layers: 1,
    format: "float" as const,
    role: "state" as const,
  });
  const pass = (from: string, to: string) => ({
    label: "copy",
    shader: "s",
    inputs: [["x", from]] as [string, string][],
    outputs: [[to, 0]] as [string, number][],
    viewport: [1, 1] as [number, number],
    row: null,
    slices: 0,
    clear: false,
    first_column: 0,
    keys: 0,
    flops: 0,
    nbytes: 0,
  });
  const program: Program = {
    schema: 1,
    textures: { a: texture("a"), b: texture("b"), c: texture("c") },
    shaders: { s: "" },
    entries: {
      flip: { name: "flip", inputs: [], passes: [pass("a", "b")], outputs: {}, ping_pong: [["a", "b"]] },
      look: { name: "look", inputs: [], passes: [pass("a", "c")], outputs: {} },
    },
    views: {},
    scalars: { pos: "int", lr: "float" },
  };
  const bound: unknown[] = [];
  const drawn: unknown[] = [];
  /** Returns a player on a device that records the textures that are bound and the framebuffers that are drawn into. */
  const made = () => {
    const gl = new Proxy<Record<string, unknown>>(
      {},
      {
        get: (_: unknown, key: string | symbol) => {
          if (key === "bindTexture") return (_target: number, t: unknown) => bound.push(t);
          if (key === "bindFramebuffer") return (_target: number, f: unknown) => drawn.push(f);
          if (key === "createBuffer" || key === "createShader" || key === "createProgram" || key === "fenceSync")
            return () => ({});
          if (key === "getProgramParameter") return () => true;
          if (key === "getSyncParameter") return () => 1; // 1 is SIGNALED, since all constants are 1
          return typeof key === "string" && key === key.toUpperCase() ? 1 : () => 0;
        },
      },
    );
    let textures = 0;
    const device = {
      gl,
      lost: false,
      generation: 0,
      still: () => {},
      isCurrent: () => true,
      compiles: () => () => {},
      parallel: null,
      limits: { maxTextureSize: 4, maxLayers: 4, drawBuffers: 4, textureUnits: 4, uniformBlock: 64 },
      texture: () => `texture ${textures++}`,
      covering: (width: number, height: number) => [width, height, 0],
      framebuffer: (attachments: [string, number][]) => `into ${attachments[0]![0]}`,
    } as unknown as Device;
    check(program, device);
    return new Player(device, program, { fetch: "texelFetch", storage: "float" });
  };

  it("swap names after each play", async () => {
    const player = made();
    await player.prepare("flip", "look");
    const played = (name: string) => {
      bound.length = drawn.length = 0;
      player.play(name);
      return [bound.at(-1), drawn.at(-1)];
    };
    expect(played("flip")).toEqual(["texture 0", "into texture 1"]);
    expect(played("look")).toEqual(["texture 1", "into texture 2"]);
    expect(played("flip")).toEqual(["texture 1", "into texture 0"]);
    expect(played("flip")).toEqual(["texture 0", "into texture 1"]);
    expect(player.texture("a")).toBe("texture 1");
  });
  it("refuse a scalar that does not fit", () => {
    const player = made();
    player.set("pos", 2 ** 32 - 1); // fits, since a seed may have any 32 bits
    const wrong: [string, number][] = [
      ["pos", 1.5],
      ["pos", 2 ** 32],
      ["pos", NaN],
      ["lr", 1e39],
      ["lr", NaN],
      ["other", 1],
    ];
    const refused = /program has no scalar|does not fit its scalar's type/;
    for (const [name, value] of wrong) expect(() => player.set(name, value)).toThrow(refused);
  });
});
