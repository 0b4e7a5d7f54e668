import { describe, expect, it, vi } from "vitest";
import { fromFloat16, toFloat16 } from "../src/runtime/gl/float16";
import { matrixOf } from "../src/runtime/engine/uploaded";
import { highLatency, Split } from "../src/runtime/engine/split";
import { decode, encode, packStates, unpackStates } from "../src/runtime/engine/split-wire";

describe("messages of a split model", () => {
  it("are read unchanged", () => {
    const message = encode({ op: "step", pos: 3 }, new Uint8Array([1, 2, 3]));
    const { header, payload } = decode(message.buffer);
    expect(header).toEqual({ op: "step", pos: 3 });
    expect([...payload]).toEqual([1, 2, 3]);
  });

  it("are refused if they are incomplete or malformed", () => {
    const message = encode({ op: "step" });
    for (const wrong of [new ArrayBuffer(0), message.buffer.slice(0, 8), encode({}).buffer]) {
      expect(() => decode(wrong)).toThrow("does not understand");
    }
  });
});

describe("guessing ahead", () => {
  it("begins if eight round trips take over 20 ms each on the network, and longer than both sides compute", () => {
    const trips = (networkMs: number, count = 8) =>
      Array.from({ length: count }, () => ({ localMs: 20, networkMs, remoteMs: 10 }));
    expect(highLatency(trips(31))).toBe(true);
    expect(highLatency(trips(29))).toBe(false);
    expect(highLatency(trips(31, 7))).toBe(false);
    expect(highLatency(trips(19).map((trip) => ({ ...trip, localMs: 1, remoteMs: 1 })))).toBe(false);
  });
});

describe("the connection to a server", () => {
  it("is closed and not opened again when the model is disposed of", async () => {
    const made: { close: () => void; onopen: () => void; onmessage: (event: object) => void; onclose: () => void }[] =
      [];
    const Socket = class {
      static readonly OPEN = 1;
      onopen = () => {};
      onmessage: (event: object) => void = () => {};
      onclose = () => {};
      send = () =>
        this.onmessage({ data: encode({ op: "opened", holds: "all", session: "s", held: 0, seq: 0 }).buffer });
      close = vi.fn(() => this.onclose());

      constructor() {
        made.push(this);
        setTimeout(() => this.onopen());
      }
    };
    vi.stubGlobal("WebSocket", Socket);
    const settings = { server: "ws://a", wire: "f32", digest: "", rest: "all", head: "server", stream: [] } as const;
    const split = new Split({ ...settings, stream: [] });
    await split.connect();
    split.close();
    expect(made[0]!.close).toHaveBeenCalled();
    await expect(split.connect()).rejects.toThrow("No server is needed now.");
    expect(made.length).toBe(1);
    vi.unstubAllGlobals();
  });
});

describe("hidden states as bytes", () => {
  it("rounds to the nearest f16 number, and to the even one of two equally near", () => {
    const cases: [number, number][] = [
      [0, 0],
      [1, 0x3c00],
      [-2, 0xc000],
      [65504, 0x7bff],
      [1 + 2 ** -11, 0x3c00],
      [1 + 3 * 2 ** -11, 0x3c02],
      [2 ** -14, 0x0400],
      [2 ** -24, 0x0001],
      [2 ** -25, 0x0000],
      [3 * 2 ** -25, 0x0002],
    ];
    for (const [x, bits] of cases) expect(toFloat16(x), String(x)).toBe(bits);
    expect(() => packStates(new Float32Array([65520]), 1, "f16")).toThrow("f16");
  });

  it("scales each row of int8 by its own peak", () => {
    const data = packStates(new Float32Array([127, -63.5, 0, 1, 0, 0, 0, 0, 2, 2, -2, 1]), 3, "int8");
    const scales = new DataView(data.buffer);
    expect([0, 4, 8].map((at) => scales.getFloat32(at, true))).toEqual([1, 1, Math.fround(2 / 127)]);
    expect([...new Int8Array(data.buffer, 12)]).toEqual([127, -64, 0, 1, 0, 0, 0, 0, 127, 127, -127, 64]);
  });

  it("reads what it wrote", () => {
    const states = new Float32Array([1.5, -2.25, 0, 127, 3, -127, 0.5, 2 ** -24]);
    for (const kind of ["f32", "f16"] as const) {
      const data = packStates(states, 2, kind) as Uint8Array<ArrayBuffer>;
      expect([...unpackStates(data, 2, 4, kind)]).toEqual([...states]);
    }
    const codes = packStates(states, 2, "int8") as Uint8Array<ArrayBuffer>;
    expect([...unpackStates(codes, 2, 4, "int8")]).toEqual([2, -2, 0, 127, 3, -127, 0, 0]);
    expect(() => unpackStates(codes, 2, 4, "f32")).toThrow("incomplete");
    expect(() =>
      unpackStates(packStates(new Float32Array([NaN]), 1, "f32") as Uint8Array<ArrayBuffer>, 1, 1, "f32"),
    ).toThrow("finite");
    for (let bits = 0; bits < 0x7c00; bits += 7) expect(toFloat16(fromFloat16(bits))).toBe(bits);
  });

  it("copies f32 unchanged", () => {
    const states = new Float32Array([1.5, -2.25]);
    expect([...new Float32Array(packStates(states, 1, "f32").buffer as ArrayBuffer)]).toEqual([1.5, -2.25]);
  });
});

describe("activations of a server", () => {
  const data = Float32Array.from({ length: 12 }, (_, i) => i);
  const about = (kind: "rows" | "heads" | "cache" | "pattern") => ({ kind, heads: 2, width: 2 });

  it("become matrices in a device's layout", () => {
    for (const kind of ["rows", "heads"] as const) {
      expect(matrixOf(about(kind), { shape: [3, 4], data })).toEqual({ rows: 3, cols: 4, values: data });
    }
    const cache = matrixOf(about("cache"), { shape: [2, 3, 2], data }); // the heads are next to each other in a row
    expect([cache.rows, cache.cols, [...cache.values]]).toEqual([3, 4, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]]);
    const pattern = matrixOf(about("pattern"), { shape: [2, 3, 2], data }); // row index: token * heads + head
    expect([pattern.rows, pattern.cols, [...pattern.values]]).toEqual([6, 2, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]]);
  });
});
