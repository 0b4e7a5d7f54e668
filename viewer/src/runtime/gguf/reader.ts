// Reads the header of a GGUF file, versions 2 and 3: the metadata, and the place of every tensor. A file is untrusted:
// every count is checked against the remaining bytes and against limits, which equal those of glgpt/gguf/reader.py.

import { PageError } from "../gl/errors";
import { OTHERS, TYPES, type TensorType } from "./block-types";

const MAX_HEADER = 128 << 20; // maximum bytes; Gemma's 262,144 tokens take 7 million bytes
const MAX_ENTRIES = 1 << 16; // maximum keys, and maximum tensors
const MAX_TEXTS = 1 << 20; // maximum strings in all arrays
const MAX_NAME = 256; // maximum bytes of a key or of a tensor's name
const MAX_DIMENSIONS = 4;
const MAX_ALIGNMENT = 1 << 20;
const ALIGNMENT = 32; // default, if the file does not set it
const FIRST = 1 << 20; // bytes of the first read; if the header is longer, four times as many are read from the start
const [STRING, ARRAY, BOOL] = [8, 9, 7];
/** Bytes of a value, by type. Strings and arrays have no fixed size. */
const SIZES: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };

export type Value = string | number | bigint | boolean | string[] | ArrayLike<number> | readonly bigint[];

/** The place of a tensor in a file. */
export interface Tensor {
  name: string;
  type: TensorType;
  /** The last axis is contiguous. */
  shape: number[];
  offset: number;
  bytes: number;
}

export interface GgufHeader {
  name: string;
  metadata: ReadonlyMap<string, Value>;
  tensors: ReadonlyMap<string, Tensor>;
}

/** True if a file begins with the four bytes of a GGUF file. */
export async function isGguf(file: Blob): Promise<boolean> {
  return new TextDecoder("latin1").decode(await file.slice(0, 4).arrayBuffer()) === "GGUF";
}

/** Thrown if the header is longer than the bytes that were read. */
class Short extends Error {}

/** Reads the header. If the file is not a complete GGUF file, throws a PageError that names it. */
export async function readGguf(file: Blob, name: string): Promise<GgufHeader> {
  for (let read = FIRST; ; read *= 4) {
    const data = new DataView(await file.slice(0, Math.min(read, MAX_HEADER)).arrayBuffer());
    try {
      return new Cursor(data, file.size, name).header();
    } catch (error) {
      if (!(error instanceof Short)) throw error;
      if (read >= file.size) throw new PageError(`${name} is not a valid GGUF file: it is truncated.`);
      if (read >= MAX_HEADER) {
        throw new PageError(`${name} is not a valid GGUF file: its header exceeds ${MAX_HEADER >> 20} MiB.`);
      }
    }
  }
}

class Cursor {
  private at = 0;
  private texts = 0;
  private readonly decoder = new TextDecoder();

  constructor(
    private readonly data: DataView,
    private readonly size: number,
    private readonly name: string,
  ) {}

  private problem(what: string): PageError {
    return new PageError(`${this.name} is not a valid GGUF file: ${what}.`);
  }

  /** Returns the position of the next `count` bytes and skips them. Throws Short if they were not read yet. */
  private take(count: number): number {
    if (!(count <= this.size - this.at)) throw this.problem("it is truncated");
    if (count > this.data.byteLength - this.at) throw new Short();
    this.at += count;
    return this.at - count;
  }

  private integer32(): number {
    return this.data.getUint32(this.take(4), true);
  }

  /** Returns an integer of eight bytes. It may be rounded only above 2^53, which exceeds every limit. */
  private integer64(): number {
    return Number(this.data.getBigUint64(this.take(8), true));
  }

  private count(what: string): number {
    const found = this.integer64();
    if (found > MAX_ENTRIES) {
      throw this.problem(`it has ${found.toLocaleString("en")} ${what}; at most ${MAX_ENTRIES} are supported`);
    }
    return found;
  }

  private string(): string {
    const count = this.integer64();
    return this.decoder.decode(new Uint8Array(this.data.buffer, this.take(count), count));
  }

  /** Returns a key or the name of a tensor. */
  private label(): string {
    const count = this.integer64();
    if (count > MAX_NAME) throw this.problem(`a name has ${count} bytes; at most ${MAX_NAME} are supported`);
    const text = this.decoder.decode(new Uint8Array(this.data.buffer, this.take(count), count));
    if (text.includes("\ufffd")) throw this.problem("a name is not UTF-8");
    return text;
  }

  private number(kind: number, at: number): number | bigint | boolean {
    switch (kind) {
      case 0:
        return this.data.getUint8(at);
      case 1:
        return this.data.getInt8(at);
      case 2:
        return this.data.getUint16(at, true);
      case 3:
        return this.data.getInt16(at, true);
      case 4:
        return this.data.getUint32(at, true);
      case 5:
        return this.data.getInt32(at, true);
      case 6:
        return this.data.getFloat32(at, true);
      case BOOL:
        return this.data.getUint8(at) !== 0;
      case 12:
        return this.data.getFloat64(at, true);
      default: {
        const value = kind === 10 ? this.data.getBigUint64(at, true) : this.data.getBigInt64(at, true);
        return Number.isSafeInteger(Number(value)) ? Number(value) : value;
      }
    }
  }

  private value(kind: number): Value {
    if (kind === STRING) return this.string();
    if (kind === ARRAY) return this.array();
    const size = SIZES[kind];
    if (!size) throw this.problem(`the metadata has a value of the unknown type ${kind}`);
    return this.number(kind, this.take(size));
  }

  private array(): Value {
    const kind = this.integer32();
    const count = this.integer64();
    if (kind === STRING) {
      this.texts += count;
      if (!(this.texts <= MAX_TEXTS)) throw this.problem(`its arrays have more than ${MAX_TEXTS} strings`);
      const found: string[] = [];
      for (let i = 0; i < count; i++) found.push(this.string());
      return found;
    }
    const size = SIZES[kind];
    if (!size) {
      throw this.problem(`the metadata has an array of ${kind === ARRAY ? "arrays" : `the unknown type ${kind}`}`);
    }
    const from = this.take(count * size);
    return Array.from({ length: count }, (_, i) => Number(this.number(kind, from + i * size)));
  }

  header(): GgufHeader {
    const begins = this.decoder.decode(new Uint8Array(this.data.buffer, this.take(4), 4));
    if (begins !== "GGUF") throw this.problem("it does not begin with GGUF");
    const version = this.integer32();
    if (version !== 2 && version !== 3) {
      throw new PageError(`${this.name} is a GGUF file of version ${version}; this page reads versions 2 and 3.`);
    }
    const count = this.count("tensors");
    const keys = this.count("keys");
    const metadata = new Map<string, Value>();
    for (let i = 0; i < keys; i++) {
      const key = this.label();
      if (metadata.has(key)) throw this.problem(`the key ${JSON.stringify(key)} appears twice`);
      metadata.set(key, this.value(this.integer32()));
    }
    const parts = metadata.get("split.count") ?? 1;
    if (parts !== 1) {
      throw new PageError(`${this.name} is one of several files of a model; this page reads models in one file.`);
    }
    const alignment = metadata.get("general.alignment") ?? ALIGNMENT;
    const power = typeof alignment === "number" && alignment >= 8 && Number.isInteger(Math.log2(alignment));
    if (!power || alignment > MAX_ALIGNMENT) {
      throw this.problem("general.alignment is not a power of two from 8 to 1,048,576");
    }
    const tensors = Array.from({ length: count }, () => this.tensor());
    const start = Math.ceil(this.at / alignment) * alignment;
    return { name: this.name, metadata, tensors: this.placed(tensors, start, alignment) };
  }

  private tensor(): Tensor {
    const name = this.label();
    const dimensions = this.integer32();
    if (dimensions > MAX_DIMENSIONS) throw this.problem(`tensor ${name} has ${dimensions} dimensions`);
    const shape = Array.from({ length: dimensions }, () => this.integer64()).reverse();
    const number = this.integer32();
    const type = TYPES.get(number);
    if (!type) {
      const known = [...TYPES.values()].map((each) => each.name).join(", ");
      const other = OTHERS[number] ?? `number ${number}`;
      throw new PageError(`${this.name}: tensor ${name} has type ${other}; this page reads ${known}.`);
    }
    if (!shape.length || shape.includes(0) || shape.at(-1)! % type.block) {
      throw this.problem(`tensor ${name} has shape [${shape.join(", ")}], which ${type.name} cannot hold`);
    }
    const bytes = (shape.reduce((a, b) => a * b, 1) / type.block) * type.bytes;
    return { name, type, shape, offset: this.integer64(), bytes };
  }

  /**
   * Returns the tensors by name. Throws PageError if a tensor is outside the file, overlaps another tensor, is not
   * aligned, or appears twice.
   */
  private placed(tensors: Tensor[], start: number, alignment: number): Map<string, Tensor> {
    const found = new Map<string, Tensor>();
    let [end, previous] = [0, ""];
    for (const tensor of tensors.sort((a, b) => a.offset - b.offset)) {
      const { name, offset, bytes } = tensor;
      if (found.has(name)) throw this.problem(`tensor ${name} appears twice`);
      if (offset < end) throw this.problem(`tensor ${name} overlaps ${previous}`);
      if (offset % alignment) throw this.problem(`tensor ${name} is not at a multiple of ${alignment} bytes`);
      [end, previous] = [offset + bytes, name];
      if (start + end > this.size) {
        throw this.problem(
          `it is truncated: tensor ${name} ends ${start + end - this.size} bytes after the end of the file`,
        );
      }
      found.set(name, { ...tensor, offset: start + offset });
    }
    return found;
  }
}
