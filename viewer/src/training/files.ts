// Writes and reads the files of a saved model: those that Hugging Face's libraries load, and the state from which
// `Trainer.load` resumes on the desktop.

import { LETTERS } from "../runtime/engine/byte-letters";
import { strToU8, unzipSync, zipSync } from "fflate";
import type { Offer } from "../runtime/engine/manifest";
import { PageError } from "../runtime/gl/errors";
import { EOS, type Bpe } from "./bpe";
import type { Scale } from "./loss-scale";

export interface Tensor {
  shape: number[];
  data: Float32Array<ArrayBuffer>;
}

export type Tensors = Map<string, Tensor>;
export type Files = Record<string, Uint8Array<ArrayBuffer>>;

/** Writes a safetensors file: the header's length, the header as JSON, and the numbers. */
export function writeSafetensors(tensors: Tensors, metadata: Record<string, string>): Uint8Array<ArrayBuffer> {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let at = 0;
  for (const [name, { shape, data }] of tensors) {
    header[name] = { dtype: "F32", shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
  }
  const text = strToU8(JSON.stringify(header));
  const start = 8 + Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(start + at);
  new DataView(out.buffer).setBigUint64(0, BigInt(start - 8), true);
  out.fill(0x20, 8, start);
  out.set(text, 8);
  at = start;
  for (const { data } of tensors.values()) {
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return out;
}

export function readSafetensors(bytes: Uint8Array): { tensors: Tensors; metadata: Record<string, string> } {
  const fail = (why: string) =>
    new PageError(`The model's .safetensors file is invalid: ${why}. Save the model again with 32-bit floats.`);
  if (bytes.length < 8) throw fail("it is too short");
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (!(size > 1 && 8 + size <= bytes.length)) throw fail("its header is incomplete");
  let header: Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }>;
  try {
    header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size))) as typeof header;
  } catch {
    throw fail("its header is not JSON");
  }
  const tensors: Tensors = new Map();
  let metadata: Record<string, string> = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") {
      metadata = entry as unknown as Record<string, string>;
      continue;
    }
    const [from, to] = entry.data_offsets;
    if (entry.dtype !== "F32") throw fail(`${name} is ${entry.dtype}`);
    if (to - from !== 4 * entry.shape.reduce((a, b) => a * b, 1) || 8 + size + to > bytes.length) {
      throw fail(`${name} is incomplete`);
    }
    const data = new Float32Array(bytes.slice(8 + size + from, 8 + size + to).buffer);
    tensors.set(name, { shape: entry.shape, data });
  }
  return { tensors, metadata };
}

/** Returns the files of a GPT-2 tokenizer. If `bpe` is null, the tokenizer has one token per byte and no merges. */
export function tokenizerFiles(bpe: Bpe | null): Files {
  const vocab: Record<string, number> = {};
  if (bpe) bpe.vocab.forEach((token, id) => (vocab[token] = id));
  else LETTERS.forEach((letter, byte) => (vocab[letter] = byte));
  const merges = bpe ? bpe.merges.map(([a, b]) => `${bpe.vocab[a]} ${bpe.vocab[b]}\n`) : [];
  const eos = bpe ? EOS : null;
  const config = {
    tokenizer_class: "GPT2Tokenizer",
    add_prefix_space: false,
    bos_token: eos,
    eos_token: eos,
    unk_token: eos,
  };
  // The JSON is built by hand, because a JavaScript object lists keys that look like numbers first.
  const pairs = Object.entries(vocab).sort((a, b) => a[1] - b[1]);
  return {
    "vocab.json": strToU8(`{${pairs.map(([token, id]) => `${JSON.stringify(token)}:${id}`).join()}}`),
    "merges.txt": strToU8(`#version: 0.2\n${merges.join("")}`),
    "tokenizer_config.json": strToU8(`${JSON.stringify(config, null, 1)}\n`),
  };
}

/** Reads a tokenizer written by `tokenizerFiles` or the desktop; returns null if it has one token per byte. */
export function readTokenizer(files: Files): Bpe | null {
  const text = (name: string) => {
    const data = files[name];
    if (!data) throw new PageError(`${name} is missing next to the weights: ${WANTED}.`);
    return new TextDecoder().decode(data);
  };
  let ids: Record<string, number>;
  try {
    ids = JSON.parse(text("vocab.json")) as Record<string, number>;
  } catch (error) {
    throw error instanceof PageError ? error : new PageError("vocab.json is not JSON.");
  }
  const vocab: string[] = [];
  for (const [token, id] of Object.entries(ids)) vocab[id] = token;
  const lines = text("merges.txt")
    .split("\n")
    .filter((line) => line && !line.startsWith("#version"));
  if (!lines.length && LETTERS.every((letter, byte) => ids[letter] === byte)) return null;
  const merges = lines.map((line): [number, number] => {
    const [left, right, ...more] = line.split(" ").map((token) => ids[token]);
    if (left === undefined || right === undefined || more.length) {
      throw new PageError(`merges.txt: "${line.slice(0, 40)}" is not a pair of tokens of vocab.json.`);
    }
    return [left, right];
  });
  return { vocab, merges };
}

export interface About {
  config: Offer["config"];
  recipe: Offer["recipe"];
  lr: number;
  seed: number;
  step: number;
  /** The loss scale of the next step, if the training computes in f16. */
  loss_scale?: Scale;
}

export const MOMENTS = ["moment", "squares"] as const;

/**
 * Returns the parameters that each tensor of a checkpoint stores, by the tensor's name. A tensor may store the rows of
 * several parameters one after another.
 */
function storedTensors(offer: Offer): Map<string, Offer["parameters"]> {
  const found = new Map<string, Offer["parameters"]>();
  for (const parameter of offer.parameters) {
    const others = found.get(parameter.stored) ?? [];
    found.set(parameter.stored, [...others, parameter]);
  }
  return found;
}

function joined(parts: Tensor[]): Tensor {
  const [first, ...others] = parts as [Tensor, ...Tensor[]];
  if (!others.length) return first;
  const data = new Float32Array(parts.reduce((sum, part) => sum + part.data.length, 0));
  let at = 0;
  for (const part of parts) {
    data.set(part.data, at);
    at += part.data.length;
  }
  const rows = parts.reduce((sum, { shape }) => sum + shape[0]!, 0);
  return { shape: [rows, ...first.shape.slice(1)], data };
}

/**
 * Returns the files of a model folder that the desktop can load. `state` is a safetensors file with the parameters and
 * AdamW's moments.
 */
export function modelFiles(state: Uint8Array<ArrayBuffer>, offer: Offer, bpe: Bpe | null): Files {
  const { tensors } = readSafetensors(state);
  const named: Tensors = new Map();
  for (const [stored, parameters] of storedTensors(offer)) {
    named.set(stored, joined(parameters.map(({ name }) => tensors.get(name)!)));
  }
  const end = bpe ? 0 : null;
  const config = { ...offer.checkpoint, bos_token_id: end, eos_token_id: end };
  return {
    "config.json": strToU8(`${JSON.stringify(config, null, 1)}\n`),
    "model.safetensors": writeSafetensors(named, { format: "pt" }),
    "state.safetensors": state,
    ...tokenizerFiles(bpe),
  };
}

/** Returns a value as the contents of a JSON file. */
export const written = (value: unknown): Uint8Array<ArrayBuffer> => strToU8(`${JSON.stringify(value, null, 1)}\n`);

export function zip(files: Files): Uint8Array<ArrayBuffer> {
  return zipSync(files, { level: 0 });
}

/** Returns the contents of chosen files by file name. A zip file is unpacked: the files in it are returned instead. */
export async function chosenFiles(list: Iterable<File>): Promise<Files> {
  const found: Files = {};
  for (const file of list) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    if (!file.name.toLowerCase().endsWith(".zip")) {
      found[file.name] = bytes;
      continue;
    }
    try {
      for (const [name, data] of Object.entries(unzipSync(bytes))) {
        found[name.split("/").at(-1)!] = data;
      }
    } catch {
      throw new PageError(`${file.name} is not a readable zip file.`);
    }
  }
  return found;
}

/** A model whose training can continue. Without a saved state, `about` is null and training starts at step 0. */
export interface Loaded {
  config: Record<string, unknown>;
  state: Uint8Array<ArrayBuffer>;
  about: About | null;
  bpe: Bpe | null;
}

const WANTED =
  "choose the .zip that Download saved, or a run's config.json, model.safetensors, vocab.json and merges.txt together";

export function readModel(files: Files, offers: readonly Offer[]): Loaded {
  const state = files["state.safetensors"];
  if (!state && !files["model.safetensors"]) {
    const names = Object.keys(files).slice(0, 3).join(", ");
    const what = names || "The selection";
    throw new PageError(`${what} holds no model: ${WANTED}. To train on a text, choose it in Train, step Data.`);
  }
  const bpe = readTokenizer(files);
  if (state) {
    const said = readSafetensors(state).metadata["glgpt"];
    if (said) {
      const about = JSON.parse(said) as About;
      return { config: about.config, state, about, bpe };
    }
  }
  const weights = files["model.safetensors"] ?? state;
  const config = files["config.json"];
  if (!weights || !config) throw new PageError(`config.json is missing next to the weights: ${WANTED}.`);
  const { tensors } = readSafetensors(weights);
  const known = new Map(offers.flatMap((offer) => [...storedTensors(offer)]));
  const named: Tensors = new Map();
  for (const [stored, tensor] of tensors) {
    const parameters = known.get(stored) ?? [];
    if (parameters.length > 1) {
      let at = 0;
      for (const { name, shape } of parameters) {
        const data = tensor.data.slice(at, (at += shape.reduce((a, b) => a * b, 1)));
        named.set(name, { shape: [...shape], data });
      }
    } else named.set(parameters[0]?.name ?? stored, tensor);
  }
  const parsed = JSON.parse(new TextDecoder().decode(config)) as Record<string, unknown>;
  return { config: parsed, state: writeSafetensors(named, {}), about: null, bpe };
}
