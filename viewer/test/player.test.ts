// Tests which parts of a texture a player draws, clears and reads, and that closing a player deletes its programs. The
// simulated context records the calls.

import { expect, test } from "vitest";
import { ContextLost, Device } from "../src/runtime/gl/device";
import { readField, writtenBy } from "../src/runtime/engine/field";
import { Player } from "../src/runtime/gl/player";
import type { Pass, Program } from "../src/runtime/gl/program";
import { pause } from "../src/runtime/gl/wait";

const RECORDED = ["viewport", "scissor", "clear", "drawArrays", "drawArraysInstanced", "enable", "disable"];
const COUNTED = ["createProgram", "deleteProgram", "createShader", "deleteShader"];
const BINDING = ["useProgram", "uniformBlockBinding"];
const TARGET = { width: 12, height: 6, layers: 1, format: "float", role: "state" } as const;

type Call = [name: string, ...values: unknown[]];
type Playing = { player: Player; calls: Call[] };

function pass(changes: Partial<Pass>): Pass {
  const outputs: [string, number][] = [["a", 0]];
  const whole = { label: "p", shader: "s", inputs: [], outputs, viewport: [12, 6] as [number, number], row: null };
  return { ...whole, slices: 0, clear: false, first_column: 0, keys: 0, flops: 0, nbytes: 0, ...changes };
}

/** Returns a player of one pass, and its recorded calls. `hear` receives the name of every other call. */
function playing(changes: Partial<Pass>, renderer: string, hear: (name: string) => void = () => {}): Playing {
  const calls: Call[] = [];
  const gl = new Proxy<Record<string, unknown>>(
    {},
    {
      get: (_, key: string) => {
        if (RECORDED.includes(key)) return (...values: unknown[]) => void calls.push([key, ...values]);
        if (COUNTED.includes(key)) return () => (calls.push([key]), {});
        if (/^(create|fence)/.test(key)) return () => ({});
        if (key === "getProgramParameter") return () => true;
        if (key === "getSyncParameter") return () => "SIGNALED";
        if (key === "getError") return () => "NO_ERROR";
        return key === key.toUpperCase() ? key : () => (hear(key), 0);
      },
    },
  );
  const device = Object.assign(Object.create(Device.prototype) as object, {
    ...{ gl, renderer, maxViewport: 8192, generation: 0, parallel: null },
    ...{ limits: { maxTextureSize: 16, maxLayers: 4, drawBuffers: 4, textureUnits: 4, uniformBlock: 64 } },
    ...{ still: () => {}, compiles: () => () => {}, texture: () => ({}), framebuffer: () => ({}) },
  }) as unknown as Device;
  Object.defineProperty(device, "lost", { value: false });
  const program: Program = {
    schema: 2,
    textures: { a: { name: "a", ...TARGET } },
    shaders: { s: "" },
    entries: { e: { name: "e", inputs: [], passes: [pass(changes)], outputs: {} } },
    views: {},
    scalars: { pos: "int" },
  };
  return { player: new Player(device, program, { fetch: "texelFetch", storage: "float" }, new Map(), 100), calls };
}

/** Plays one pass at row 4 and returns its calls. */
async function played(changes: Partial<Pass>, renderer: string): Promise<Call[]> {
  const { player, calls } = playing(changes, renderer);
  await player.prepare("e");
  player.set("pos", 4);
  calls.length = 0;
  player.play("e");
  return calls;
}

const draw = (first: number): Call => ["drawArrays", "TRIANGLES", first, 3];
const limited = (...calls: Call[]): Call[] => [["enable", "SCISSOR_TEST"], ...calls, ["disable", "SCISSOR_TEST"]];

test.each([
  ["a GPU", "GPU", [12, 6], 0],
  ["a software driver", "llvmpipe", [24, 12], 3],
])("%s draws whole targets or columns, in bands if expensive", async (_, renderer, [width, height], first) => {
  const view = (y: number): Call => ["viewport", 0, y, width, height];
  const box = (...values: number[]): Call => ["scissor", ...values];
  expect(await played({}, renderer)).toEqual([view(0), draw(first)]);
  const skipping = { first_column: 8 };
  expect(await played(skipping, renderer)).toEqual([view(0), ...limited(box(8, 0, 4, 6), draw(first))]);
  const bands = [box(7, 0, 2, 6), draw(first), box(9, 0, 3, 6), draw(first)];
  const [, ...calls] = await played({ first_column: 7, flops: 200 }, renderer);
  expect(calls).toEqual([...limited(box(7, 0, 5, 6), ...limited(...bands)).slice(0, -1), ["disable", "SCISSOR_TEST"]]);
});

test.each([
  [4, 2],
  [100, 12],
])("with %d keys, the first %d columns are drawn", async (keys, columns) => {
  const [, ...calls] = await played({ keys }, "llvmpipe");
  expect(calls).toEqual(limited(["scissor", 0, 0, columns, 6], draw(3)));
});

test("the scissor limits a draw to one row if the viewport is larger than the row", async () => {
  const row = { viewport: [12, 1] as [number, number], row: "pos" };
  expect(await played(row, "GPU")).toEqual([["viewport", 0, 4, 12, 1], draw(0)]);
  const boxed = limited(["scissor", 0, 4, 12, 1], draw(3));
  expect(await played(row, "llvmpipe")).toEqual([["viewport", 0, 4, 24, 2], ...boxed]);
});

test.each(["GPU", "llvmpipe"])("on %s, only the drawn part of a target is cleared", async (renderer) => {
  const calls = await played({ viewport: [12, 2], slices: 3, clear: true }, renderer);
  const names = calls.map(([name, value]) => `${name} ${String(value)}`);
  expect(calls).toContainEqual(["scissor", 0, 0, 12, 2]);
  expect(names.indexOf("enable SCISSOR_TEST")).toBeLessThan(names.indexOf("clear COLOR_BUFFER_BIT"));
  expect(names.at(-1)).toBe("disable SCISSOR_TEST");
});

test.each([0, 1, 2, 3])("a player closed %d tasks after its preparation began deletes its programs", async (tasks) => {
  const { player, calls } = playing({}, "GPU");
  const prepared = player.prepare("e").then(
    () => "prepared",
    (error: unknown) => (error instanceof ContextLost ? "ended" : String(error)),
  );
  await Promise.resolve(); // until the compilation has begun
  for (let i = 0; i < tasks; i++) await pause();
  const ready = player.isPrepared("e");
  player.close();
  expect(await prepared).toBe(ready ? "prepared" : "ended");
  const count = (name: string) => calls.filter(([call]) => call === name).length;
  expect(count("createProgram")).toBe(1);
  expect(count("deleteProgram")).toBe(1);
  expect(count("deleteShader")).toBe(count("createShader"));
});

test.each([1, 2, 3, 4, 5])("a player closed %d promises after its first binding binds no more", async (promises) => {
  const bound: string[] = [];
  const closeSoon = async (name: string) => {
    if (!BINDING.includes(name)) return;
    bound.push(name);
    if (bound.length > 1) return;
    for (let i = 0; i < promises; i++) await Promise.resolve();
    player.close();
    bound.push("closed");
  };
  const { player } = playing({}, "GPU", (name) => void closeSoon(name));
  await player.prepare("e").catch(() => {});
  expect(bound.at(-1)).toBe("closed");
});

test("a viewport of twice the size of a target is used only if the device supports this size", () => {
  const covering = (size: number) =>
    Device.prototype.covering.call({ software: true, maxViewport: 64 } as unknown as Device, size, 8);
  expect([covering(32), covering(33)]).toEqual([
    [64, 16, 3],
    [33, 8, 0],
  ]);
});

test.each([0, 1, 2])("a picture of what a pass wrote has only the drawn column of texels, %d", async (drawn) => {
  const spec = { name: "a", ...TARGET, width: 3, height: 2, layers: 2 };
  const texels = Float32Array.from({ length: 48 }, (_, i) => (Math.floor((i % 12) / 4) !== drawn ? 999 : i));
  const player = { spec: () => spec, read: () => Promise.resolve(texels) } as unknown as Player;
  const { view, rows, firstColumn } = writtenBy(player, "a", pass({ first_column: drawn, viewport: [drawn + 1, 2] }));
  const { values, high } = await readField(player, view, rows, 0, firstColumn);
  const expected = [0, 12, 24, 36].flatMap((row) => [0, 1, 2, 3].map((i) => row + 4 * drawn + i));
  expect([...values]).toEqual(expected);
  expect(high).toBe(expected.at(-1));
});

test("a matrix in panels is read whole, though its texture may be wider than its columns", async () => {
  const view = { texture: "a", rows: 2, cols: 8, tiles: [1, 1], dtype: "f32", panel: 4, stack: 1 } as const;
  const texels = Float32Array.from({ length: 32 }, (_, i) => i);
  const player = { spec: () => ({ name: "a", ...TARGET, width: 4, height: 2 }), read: () => Promise.resolve(texels) };
  const { values } = await readField(player as unknown as Player, view, 2);
  expect([...values]).toEqual([...texels.subarray(0, 8), ...texels.subarray(16, 24)]);
});
