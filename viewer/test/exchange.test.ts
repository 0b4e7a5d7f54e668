// Tests a member of a federation: the bytes of its updates (as in glgpt/federation/protocol.py), the windows of its
// shard, and the links with which it joins.

import { expect, test } from "vitest";
import { starts } from "../src/training/batches";
import { toFloat16 } from "../src/runtime/gl/float16";
import { encode, shardStarts } from "../src/training/exchange";
import { readLink } from "../src/training/invitation";

test("f16 numbers are rounded like NumPy's", () => {
  // These are the values in the table of tests/federation/test_protocol.py.
  const values = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1 / 3,
    65504.0,
    65520.0,
    6.1e-5,
    6.0e-5,
    5.9e-8,
    2.9e-8,
    3.0e-8,
    1.00048828125,
    1.0014648,
  ];
  const bits = [0, 32768, 15360, 48128, 13653, 31743, 31744, 1023, 1007, 1, 0, 1, 15360, 15362];
  expect(values.map(toFloat16)).toEqual(bits);
  expect(toFloat16(NaN) & 0x7c00).toBe(0x7c00);
});

test("every f16 number survives a round trip", () => {
  const wrong: number[] = [];
  for (let bits = 0; bits < 0x7c00; bits++) {
    const exponent = bits >> 10;
    const value = exponent ? (1 + (bits & 1023) / 1024) * 2 ** (exponent - 15) : (bits & 1023) * 2 ** -24;
    if (toFloat16(value) !== bits || toFloat16(-value) !== (bits | 0x8000)) wrong.push(bits);
  }
  expect(wrong).toEqual([]);
});

test("a change is encoded", () => {
  const before = Float32Array.of(1, 2, 3, 4);
  const after = Float32Array.of(1.5, 2, 2, 4.25);
  expect(new Float32Array(encode("exact", after, before).bytes.buffer)).toEqual(after);
  expect([...new Float32Array(encode("f32", after, before).bytes.buffer)]).toEqual([0.5, 0, -1, 0.25]);
  const halves = encode("f16", after, before);
  expect(halves.scale).toBe(1);
  expect([...new Uint16Array(halves.bytes.buffer)]).toEqual([0x3800, 0, 0xbc00, 0x3400]);
  const { bytes } = encode("int8", after, before);
  expect(bytes.length).toBe(4 + 4);
  expect(new DataView(bytes.buffer).getFloat32(0, true)).toBeCloseTo(1 / 127, 8);
  expect([...new Int8Array(bytes.buffer, 4)]).toEqual([64, 0, -127, 32]);
  expect(() => encode("f32", after, before.subarray(1))).toThrow(/number of parameters differs/);
});

test("no two shards share a window", () => {
  const drawn = [0, 1, 2].map((i) => new Set(shardStarts(9, 4, 50, 100, [i, 3])));
  for (const [i, places] of drawn.entries()) for (const at of places) expect(at % 3).toBe(i);
  expect(Math.max(...drawn.flatMap((d) => [...d]))).toBeLessThan(100);
  expect(shardStarts(77, 3, 12, 999, [0, 1])).toEqual(starts(77, 3, 12, 999));
});

test("a link is read", () => {
  for (const link of [
    "http://h:1/#a.b",
    "http://h:1/train/#view=train&together=a.b",
    " http://h:1/train/index.html#together=a.b&tokens=3",
  ]) {
    expect(readLink(link)).toEqual({ base: "http://h:1/", token: "a.b" });
  }
  expect(readLink("https://h/x/train/#together=a.b").base).toBe("https://h/x/");
  for (const link of ["", "a.b", "ftp://h/#a.b", "http://h/#nothing"])
    expect(() => readLink(link)).toThrow(/not an invitation/);
});
