// Recognises a model's files. Finds the model's shape (an architecture with its sizes) among the shapes for which the
// page has programs, and a program whose storage formats can hold the types of the model's tensors.

import { Validator, type Schema } from "@cfworker/json-schema";
import playerSchema from "../../../schema/player.schema.json";
import type { PlayerDocument, ShapeEntry } from "../generated/player";
import type { PageMix, ShapeDocument } from "../generated/shape";
import { PageError } from "../gl/errors";
import { isGguf, readGguf, type GgufHeader, type Tensor, type Value } from "../gguf/reader";
import { readSafetensorsHeader } from "../gguf/safetensors";

/** The tensor of a parameter, and the number of the file that holds the tensor. */
export interface Place {
  file: number;
  tensor: Tensor;
}

/** A model whose files were recognised. */
export interface Recognised {
  title: string;
  /** The file to name in messages. */
  file: string;
  shape: ShapeEntry;
  files: readonly File[];
  /** Bytes of all files. */
  bytes: number;
  /** The header of a GGUF file; null for a folder's files. */
  gguf: GgufHeader | null;
  /**
   * `tensors`: the tensors of a folder's files, by name. `json`: its JSON files and its chat template, by file name.
   * Both are empty for a GGUF file.
   */
  tensors: ReadonlyMap<string, Place>;
  json: ReadonlyMap<string, unknown>;
  context: number;
}

export function parsePlayer(document: unknown): PlayerDocument {
  const version = (document as { schema?: unknown } | null)?.schema;
  const result = new Validator(playerSchema as Schema, "2020-12", true).validate(document);
  if (version !== 1 || !result.valid) {
    throw new PageError("player.json is damaged, or belongs to another version of glgpt. Export the page again.");
  }
  return document as PlayerDocument;
}

const MAX_JSON = 64 << 20; // maximum bytes of a JSON file
const MAX_TEMPLATE = 1 << 18; // maximum bytes of a chat template, as on the desktop
export const TEMPLATE = "chat_template.jinja";
const JSON_NAMES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"];

/** Reads the headers of a model's files. If the page cannot open the files, throws a PageError with the remedy. */
export async function recognise(given: readonly File[], player: PlayerDocument): Promise<Recognised> {
  const gguf: File[] = [];
  for (const file of given) if (file.name.toLowerCase().endsWith(".gguf") || (await isGguf(file))) gguf.push(file);
  if (gguf.length > 1) throw new PageError(`${gguf.length} GGUF files were given; open one at a time.`);
  if (gguf[0]) return recogniseGguf(gguf[0], player);
  return recogniseFolder(given, player);
}

async function recogniseGguf(file: File, player: PlayerDocument): Promise<Recognised> {
  const header = await readGguf(file, file.name);
  const architecture = header.metadata.get("general.architecture");
  if (typeof architecture !== "string") throw new PageError(`${file.name}: general.architecture is missing.`);
  const key = (name: string) => header.metadata.get(`${architecture}.${name}`);
  const vocab = header.tensors.get("token_embd.weight")?.shape[0];
  const misses = player.shapes.map((shape) => ({ shape, missed: missesGguf(shape, architecture, key, vocab) }));
  const divisors = header.tensors.get("rope_freqs.weight");
  const fitting = misses.filter(({ missed }) => !missed.length).map(({ shape }) => shape);
  const found: ShapeEntry[] = [];
  for (const shape of fitting) if (await sameDivisors(file, divisors, shape.gguf!.divisors)) found.push(shape);
  if (!found[0]) {
    const sizes = `${architecture}, ${shown(key("block_count"))} blocks of width ${shown(key("embedding_length"))}`;
    throw unknownShape(file.name, sizes, file.name, misses, player);
  }
  const context = key("context_length");
  const title = header.metadata.get("general.name");
  return {
    title: typeof title === "string" && title ? title : file.name.replace(/\.gguf$/i, ""),
    file: file.name,
    shape: found[0],
    files: [file],
    bytes: file.size,
    gguf: header,
    tensors: new Map(),
    json: new Map(),
    context: typeof context === "number" ? context : found[0].positions[1],
  };
}

/** Returns the keys in which a file differs from a shape: all keys if the architecture differs. */
function missesGguf(
  { gguf, vocab: expected }: ShapeEntry,
  architecture: string,
  key: (name: string) => Value | undefined,
  vocab: number | undefined,
): string[] {
  if (gguf?.architecture !== architecture)
    return ["general.architecture", ...(gguf?.values ?? []).map(([name]) => name)];
  const missed = gguf.values
    .filter(([name, value, optional]) => {
      const own = key(name);
      return own === undefined ? !optional : !equal(common(own), value);
    })
    .map(([name]) => name);
  for (const [name, neutral] of gguf.neutral) {
    const own = key(name);
    const whole = name === "attention.sliding_window" && Number(own) >= Number(key("context_length") ?? Infinity);
    if (own !== undefined && !whole && !equal(common(own), neutral)) missed.push(name);
  }
  const scaling = key("rope.scaling.type");
  if (scaling !== undefined && scaling !== "none" && !gguf.values.some(([name]) => name === "rope.scaling.type")) {
    missed.push("rope.scaling.type");
  }
  const factor = Number(key("rope.scaling.factor") ?? key("rope.scale_linear") ?? 1); // without a type: linear scaling
  if (scaling === undefined && factor !== 0 && factor !== 1) missed.push("rope.scaling.factor");
  if (vocab !== expected) missed.push("vocab_size");
  return missed;
}

/** Returns the common element if `value` is an array of equal elements, else `value`. The desktop does the same. */
function common(value: Value): unknown {
  if (typeof value !== "object") return value;
  const [first] = Array.from(value as ArrayLike<unknown>);
  return Array.from(value as ArrayLike<unknown>).every((each) => each === first) ? first : value;
}

async function sameDivisors(
  file: Blob,
  tensor: Tensor | undefined,
  expected: readonly number[] | null,
): Promise<boolean> {
  if (!tensor || !expected) return !tensor && !expected;
  if (tensor.type.name !== "F32" || tensor.bytes !== 4 * expected.length) return false;
  const data = new DataView(await file.slice(tensor.offset, tensor.offset + tensor.bytes).arrayBuffer());
  return expected.every((value, i) => Math.abs(data.getFloat32(4 * i, true) - value) <= 1e-4 * value);
}

async function recogniseFolder(given: readonly File[], player: PlayerDocument): Promise<Recognised> {
  const weights = given.filter(({ name }) => name.endsWith(".safetensors"));
  if (!weights.length) {
    const names = given.slice(0, 3).map(({ name }) => name);
    throw new PageError(
      `${names.join(", ") || "Nothing"} is not a model file. Open a .gguf file, or config.json, ` +
        "tokenizer.json and the .safetensors files of a Hugging Face folder together.",
    );
  }
  const json = new Map<string, unknown>();
  for (const file of given) if (JSON_NAMES.includes(file.name)) json.set(file.name, await readJson(file));
  const template = given.find(({ name }) => name === TEMPLATE);
  if (template) {
    if (template.size > MAX_TEMPLATE)
      throw new PageError(`${TEMPLATE} has ${template.size} bytes; at most ${MAX_TEMPLATE} are read.`);
    json.set(TEMPLATE, await template.text());
  }
  const config = json.get("config.json") as Record<string, unknown> | undefined;
  if (!config) throw new PageError("config.json is missing: open it together with the .safetensors files.");
  const tensors = new Map<string, Place>();
  for (const [number, file] of weights.entries()) {
    for (const [name, tensor] of await readSafetensorsHeader(file, file.name)) {
      if (tensors.has(name)) throw new PageError(`${file.name}: tensor ${name} is in another file too.`);
      tensors.set(name, { file: number, tensor });
    }
  }
  const misses = player.shapes.map((shape) => ({ shape, missed: missesConfig(shape, config) }));
  const found = misses.find(({ missed }) => !missed.length)?.shape;
  const kind = `${shown(config["model_type"])}, width ${shown(config["hidden_size"] ?? config["n_embd"])}`;
  if (!found) throw unknownShape("config.json", kind, "config.json", misses, player);
  const title = config["_name_or_path"];
  const bytes = weights.reduce((sum, { size }) => sum + size, 0);
  return {
    title: typeof title === "string" && title ? title.replace(/.*\//, "") : found.name,
    file: weights[0]!.name,
    shape: found,
    files: weights,
    bytes,
    gguf: null,
    tensors,
    json,
    context: Number(config["max_position_embeddings"] ?? found.positions[1]),
  };
}

async function readJson(file: File): Promise<unknown> {
  if (file.size > MAX_JSON) throw new PageError(`${file.name} is larger than the limit of ${MAX_JSON >> 20} MiB.`);
  try {
    const found = JSON.parse(await file.text()) as unknown;
    if (found && typeof found === "object" && !Array.isArray(found)) return found;
  } catch {
    // reported below
  }
  throw new PageError(`${file.name} is not a JSON object; download it again.`);
}

/** Returns the fields in which a config.json differs from a shape: all fields if the model type differs. */
function missesConfig({ config }: ShapeEntry, given: Record<string, unknown>): string[] {
  const kind = config.values.find(([name]) => name === "model_type");
  if (!(kind?.[1] as unknown[]).includes(given["model_type"]))
    return ["model_type", ...config.values.map(([name]) => name)];
  const missed = config.values
    .filter(([name, values, optional]) => {
      const own = given[name];
      if (own === undefined || own === null) return !optional && !(values as unknown[]).includes(null);
      return !(values as unknown[]).some((value) => equal(normal(name, own), normal(name, value)));
    })
    .map(([name]) => name);
  return config.rope && !sameRope(config.rope, given) ? [...missed, "rope_scaling"] : missed;
}

/** Expands GPT-Neo's field `attention_types` to one kind per layer. Returns the values of other fields unchanged. */
function normal(name: string, value: unknown): unknown {
  if (name !== "attention_types" || !Array.isArray(value)) return value;
  return (value as [unknown[], number][]).flatMap(([kinds, count]) =>
    Array.from({ length: count }, () => kinds).flat(),
  );
}

/** True if a config.json has the expected settings of RoPE, in `rope_parameters` or in the older fields. */
function sameRope(expected: Record<string, unknown>, given: Record<string, unknown>): boolean {
  const scaling = (given["rope_parameters"] ?? given["rope_scaling"] ?? {}) as Record<string, unknown>;
  const own: Record<string, unknown> = {
    rope_theta: given["rope_theta"] ?? given["rotary_emb_base"] ?? 10000,
    partial_rotary_factor: given["partial_rotary_factor"] ?? given["rotary_pct"] ?? 1,
    ...scaling,
  };
  own["rope_type"] ??= own["type"] ?? "default";
  const names = new Set([...Object.keys(expected), "partial_rotary_factor"]);
  return [...names].every((name) => {
    const value = expected[name] ?? (name === "partial_rotary_factor" ? 1 : undefined);
    return typeof value === "object" || own[name] === undefined || equal(own[name], value);
  });
}

/** True for equal values. Numbers are rounded to float32 before they are compared, because GGUF stores float32. */
function equal(a: unknown, b: unknown): boolean {
  if (typeof a === "number" && typeof b === "number") return Math.fround(a) === Math.fround(b);
  return JSON.stringify(a) === JSON.stringify(b);
}

const shown = (value: unknown) => (value === undefined ? "unknown" : JSON.stringify(value).slice(0, 60));

/** Returns the error for a shape without a program. The message has the command that adds a program for the shape. */
function unknownShape(
  name: string,
  sizes: string,
  path: string,
  misses: { shape: ShapeEntry; missed: string[] }[],
  player: PlayerDocument,
): PageError {
  const nearest = misses.reduce((a, b) => (b.missed.length < a.missed.length ? b : a));
  const near =
    nearest.missed.length <= 3 ? ` It differs from ${nearest.shape.name} in ${nearest.missed.join(", ")}.` : "";
  const known = player.shapes.map((shape) => shape.name).join(", ");
  return new PageError(
    `${name} has a shape for which this page has no program (${sizes}).${near} The page has programs for ${known}. ` +
      `If glgpt supports the model, this command adds a program: ${commandFor(path)}`,
  );
}

/** Returns the command that exports the page with the shape of a file. */
export const commandFor = (path: string) => `glgpt export --player --shape ${quoted(path)} --out player`;

const quoted = (path: string) => (/^[\w./-]+$/.test(path) ? path : `'${path.replace(/'/g, "'\\''")}'`);

/** Returns the tensor of each parameter. Throws PageError for a missing or extra tensor, or one with wrong sizes. */
export function placesOf(model: Recognised, document: ShapeDocument): Map<string, Place> {
  const found = new Map<string, Place>();
  const all = model.gguf ? fromGguf(model.gguf) : withoutPrefix(model.tensors, document);
  for (const { name, gguf, checkpoint, rows } of document.parameters) {
    const wanted = model.gguf ? gguf : { ...checkpoint, name: short(checkpoint.name, document) };
    if (!wanted) throw new PageError(`${model.file}: GGUF has no tensor for ${name}.`);
    const place = all.get(wanted.name);
    if (!place) throw new PageError(`${model.file}: tensor ${wanted.name} is missing. Download the file again.`);
    const { shape } = place.tensor;
    if (shape.join() !== wanted.shape.join()) {
      throw new PageError(
        `${model.file}: tensor ${wanted.name} has shape [${shape.join(", ")}]; ` +
          `a ${model.shape.name} has [${wanted.shape.join(", ")}].`,
      );
    }
    found.set(name, rows ? rowsOf(place, rows) : place);
    if (!rows || rows[1] === shape[0]) all.delete(wanted.name);
  }
  for (const [copy, original] of Object.entries(document.tied)) {
    const [a, b] = [all.get(short(copy, document)), found.get(short(original, document))];
    if (!model.gguf && a && b) all.delete(short(copy, document));
  }
  const [extra] = all.keys();
  if (extra !== undefined) {
    throw new PageError(`${model.file}: tensor ${extra} is not part of a ${model.shape.name}.`);
  }
  return found;
}

/** Returns the part of a tensor that holds the rows `first` to `end` - 1. */
function rowsOf({ file, tensor }: Place, [first, end]: readonly [number, number]): Place {
  const [all, ...columns] = tensor.shape as [number, ...number[]];
  const row = tensor.bytes / all;
  const offset = tensor.offset + first * row;
  return { file, tensor: { ...tensor, shape: [end - first, ...columns], offset, bytes: (end - first) * row } };
}

const short = (name: string, { prefix }: ShapeDocument) => (name.startsWith(prefix) ? name.slice(prefix.length) : name);

function fromGguf({ tensors }: GgufHeader): Map<string, Place> {
  const own = [...tensors.values()].filter(({ name }) => name !== "rope_freqs.weight");
  return new Map(own.map((tensor) => [tensor.name, { file: 0, tensor }]));
}

function withoutPrefix(tensors: ReadonlyMap<string, Place>, document: ShapeDocument): Map<string, Place> {
  const buffers = new RegExp(`^(?:${document.buffers})$`);
  const own = [...tensors].map(([name, place]) => [short(name, document), place] as const);
  return new Map(own.filter(([name]) => !buffers.test(name)));
}

/** True for types whose weights would be rounded by a product with f16 inputs. */
export const needsFloat32 = (type: string) => type === "F32" || type === "BF16";

/**
 * Returns the mix (a choice of a storage format for each weight) with the fewest bytes of weights, among those whose
 * formats can hold the weights of all matrix products. The mix F32 can always hold them.
 */
export function mixFor(
  document: ShapeDocument,
  places: ReadonlyMap<string, Place>,
  holds: PlayerDocument["holds"],
): PageMix {
  const types = document.parameters.map((p) => ({ ...p, type: places.get(p.name)!.tensor.type }));
  const products = types.filter(({ product }) => product);
  // In the other mixes, the inputs of products are f16. As on the desktop, a model whose weights they would round takes
  // the mix of f32.
  const plain = products.some(({ type }) => needsFloat32(type.name));
  const fits = ({ dtype, formats }: PageMix) =>
    plain ? dtype === "f32" : products.every(({ name, type }) => holds[formats[name]!]?.includes(type.name));
  return document.mixes.filter(fits).sort((a, b) => a.bytes.weights - b.bytes.weights)[0]!;
}
