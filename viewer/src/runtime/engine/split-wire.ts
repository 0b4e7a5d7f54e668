// Encodes and decodes the messages of docs/reference/protocols.md (a JSON header and a payload) and hidden states.

import type { WIRES } from "../generated/protocols";
import type { ServerMessage } from "../generated/split-messages";
import { PageError } from "../gl/errors";
import { fromFloat16, isFiniteFloat16, toFloat16 } from "../gl/float16";
import { decodeInt8, encodeInt8, int8Bytes } from "../gl/int8";

export type Wire = (typeof WIRES)[number];

/** Encodes a message: the length of the JSON (4 bytes, little-endian), the JSON, the payload. */
export function encode(header: object, payload: Uint8Array = new Uint8Array()): Uint8Array<ArrayBuffer> {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const out = new Uint8Array(4 + text.length + payload.length);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(text, 4);
  out.set(payload, 4 + text.length);
  return out;
}

/** Returns a server's message and its payload. Of the message's fields, only `op` is checked. */
export function decode(data: ArrayBuffer): { header: ServerMessage; payload: Uint8Array<ArrayBuffer> } {
  const size = data.byteLength < 4 ? 0 : new DataView(data).getUint32(0, true);
  try {
    if (size < 2 || 4 + size > data.byteLength) throw new Error();
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, size))) as ServerMessage;
    if (typeof (header.op as unknown) !== "string") throw new Error();
    return { header, payload: new Uint8Array(data, 4 + size) };
  } catch {
    throw new PageError("The server sent a message that this page does not understand; its version may differ.");
  }
}

/** Encodes hidden states `[rows, width]` for the server. */
export function packStates(states: Float32Array, rows: number, kind: Wire): Uint8Array {
  const width = states.length / rows;
  if (kind === "f32") return new Uint8Array(states.slice().buffer);
  if (kind === "f16") {
    const halves = new Uint16Array(states.length);
    for (let i = 0; i < states.length; i++) halves[i] = toFloat16(states[i]!);
    if (!halves.every(isFiniteFloat16)) {
      throw new PageError("A hidden state exceeds the range of f16; export the page with --wire f32.");
    }
    return new Uint8Array(halves.buffer);
  }
  return encodeInt8(states, width);
}

/** Decodes hidden states `[rows, width]` from the server. */
export function unpackStates(data: Uint8Array<ArrayBuffer>, rows: number, width: number, kind: Wire): Float32Array {
  const count = rows * width;
  const bytes = kind === "int8" ? int8Bytes(count, width) : count * { f32: 4, f16: 2 }[kind];
  if (data.length !== bytes) throw new PageError("The server's answer is incomplete.");
  const out =
    kind === "int8"
      ? decodeInt8(data, count, width)
      : kind === "f32"
        ? new Float32Array(data.slice().buffer)
        : Float32Array.from(new Uint16Array(data.slice().buffer), fromFloat16);
  if (out.some((x) => !Number.isFinite(x))) throw new PageError("The server's answer has numbers that are not finite.");
  return out;
}
