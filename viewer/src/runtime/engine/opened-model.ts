// Opens a visitor's model: builds its manifest, tokenizer and weights from the model's files and the page's programs.

import { TemplateRenderer } from "../chat/renderer";
import { ChatTemplate, templateSources, type ChatTemplateData, type TemplateSources } from "../chat/template";
import type { PageSampling } from "../generated/manifest";
import { NEUTRAL_PROMPTS, QUESTIONS } from "../generated/sampling";
import type { PlayerDocument } from "../generated/player";
import type { ShapeDocument } from "../generated/shape";
import { PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { textureBytes } from "../gl/program";
import { TYPE_NAMES } from "../gguf/block-types";
import type { Answer, Job } from "../gguf/packing-worker";
import PackingWorker from "../gguf/packing-worker?worker&inline";
import { tokenizerFiles, type TokenizerDocument } from "../gguf/tokenizer";
import { Loader, matches, type Expected } from "./loader";
import { parseManifest, parseTokenizer, type Manifest } from "./manifest";
import type { Weights } from "./model";
import { unpacked, type Packed } from "./packed-program";
import { packingOf } from "./packing-plan";
import {
  commandFor,
  mixFor,
  needsFloat32,
  placesOf,
  recognise,
  TEMPLATE,
  type Place,
  type Recognised,
} from "./player-files";
import { ggufSampling, modelSampling } from "./sampling-defaults";
import { HttpSource, readAll } from "./source";
import { Tokenizer, tokenizerData, type Vocabulary } from "./tokenizer";

const MAX_UNZIPPED = 256 << 20; // maximum bytes of an unpacked file of the page
const COMPARED = 4 << 20; // bytes of each of two tensors that are compared at once

/** A model that the page can load. */
export interface Opened {
  loader: Loader;
  tokenizer: Vocabulary | null;
  weights: Weights;
}

/**
 * A model whose files fit one of the page's programs. `open` returns what loading needs. `shape` names the architecture
 * with its sizes, and `mix` the choice of storage formats for the weights.
 */
export interface Openable {
  title: string;
  shape: string;
  mix: string;
  /** True if quantised weights are decoded to float32, because no other mix of the page can hold them all. */
  decoded: boolean;
  /** If `decoded`: the command that adds a program which takes less memory; null if there is none. */
  smaller: string | null;
  parameters: number;
  /** Bytes of the files (`file`), of the textures of the weights, and of all textures that generate text (`all`). */
  bytes: { file: number; weights: number; all: number };
  /** Maximum tokens of a text: those of the model's context (`context`), or of the page's program if it has fewer. */
  positions: number;
  context: number;
  tokenizer: boolean;
  open(): Opened;
}

/**
 * Reads the headers of a model's files and finds a program for them in the folder `base`. If there is none, throws a
 * PageError with the remedy.
 */
export async function openable(files: readonly File[], player: PlayerDocument, base: URL): Promise<Openable> {
  const model = await recognise(files, player);
  const source = new HttpSource(new URL(`${model.shape.folder}/`, base));
  const document = (await unzipped(source, "shape.bin", model.shape)) as ShapeDocument;
  const places = placesOf(model, document);
  await checkTied(model, document);
  const mix = mixFor(document, places, player.holds);
  const types = typesOf(document, places);
  const decoded = mix.dtype === "f32" && types.some((type) => TYPE_NAMES.get(type)!.unpack !== null);
  const { tokenizer, eos, template, sampling } = vocabulary(model);
  const lines = (await unzipped(source, "../sources.bin", player.sources)) as string[];
  const about = document.manifest as { config: { n_positions: number } };
  const positions = Math.min(about.config.n_positions, model.context);
  const manifest = parseManifest({
    ...about,
    config: { ...about.config, n_positions: positions },
    model: model.title,
    dtype: mix.dtype,
    stored: model.gguf ? types : null,
    recordings: mix.recordings,
    tokenizer: null,
    eos,
    chat: tokenizer && template ? await messageFormat(template, tokenizer) : null,
    chat_template: template,
    sampling,
    reference: null,
    prompts: tokenizer ? (template ? QUESTIONS : NEUTRAL_PROMPTS).map((text) => ({ title: text, text })) : [],
    files: document.files,
    shards: [],
  });
  return {
    title: model.title,
    shape: model.shape.name,
    mix: mix.name,
    decoded,
    smaller: decoded && !types.some(needsFloat32) ? commandFor(model.file) : null,
    parameters: model.shape.parameters,
    bytes: { file: model.bytes, ...mix.bytes },
    positions,
    context: model.context,
    tokenizer: tokenizer !== null,
    open: () => {
      const loader = Loader.of(manifest, source, (program) => unpacked(program as Packed, lines));
      const weights = new FileWeights(model, document, places, loader);
      return { loader, tokenizer, weights };
    },
  };
}

/** Returns the tensor types of the weights of matrix products in a file. The type with the most values comes first. */
function typesOf(document: ShapeDocument, places: ReadonlyMap<string, Place>): string[] {
  const counts = new Map<string, number>();
  for (const { name, product, matrix } of document.parameters) {
    const type = places.get(name)!.tensor.type.name;
    if (product) counts.set(type, (counts.get(type) ?? 0) + matrix[0] * matrix[1]);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).map(([type]) => type);
}

/** Returns the format in which the Text view encodes its prompt as a chat message; null: the template fails. */
async function messageFormat(template: ChatTemplateData, tokenizer: Vocabulary): Promise<Manifest["chat"]> {
  const chat = new ChatTemplate(template, tokenizer, new TemplateRenderer());
  try {
    return await chat.pieces();
  } catch {
    return null; // the Chat view shows the template's error
  } finally {
    chat.close();
  }
}

/** Returns the content of a gzipped JSON file of the export. Checks its digest. */
async function unzipped(source: HttpSource, name: string, { bytes, sha256 }: Expected): Promise<unknown> {
  const file = name.replace("../", "");
  const packed = await source.bytes(name, bytes);
  if (!(await matches(packed, { bytes, sha256 }))) {
    throw new PageError(`${file} is not what was exported. Reload the page, or export it again.`);
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(new TextDecoder().decode(await readAll(stream, file, MAX_UNZIPPED)));
}

/** Throws PageError if a folder's files hold tied tensors (such as embedding and head) with different values. */
async function checkTied({ tensors, files, file }: Recognised, document: ShapeDocument): Promise<void> {
  for (const [copy, original] of Object.entries(document.tied)) {
    const [a, b] = [tensors.get(copy), tensors.get(original)];
    if (!a || !b) continue;
    let same = a.tensor.type === b.tensor.type && a.tensor.bytes === b.tensor.bytes;
    for (let at = 0; same && at < a.tensor.bytes; at += COMPARED) {
      const [left, right] = await Promise.all(
        [a, b].map(async (place) => {
          const { offset, bytes } = place.tensor;
          return new Uint8Array(
            await files[place.file]!.slice(offset + at, offset + Math.min(bytes, at + COMPARED)).arrayBuffer(),
          );
        }),
      );
      same = left!.every((byte, i) => byte === right![i]);
    }
    if (!same) {
      throw new PageError(`${file}: tensor ${copy} differs from ${original}, though config.json ties them.`);
    }
  }
}

interface Words {
  tokenizer: Vocabulary | null;
  /** The ids that end a text. */
  eos: number[];
  template: Manifest["chat_template"];
  sampling: PageSampling;
}

/** Returns the tokenizer of a model's files, the ids that end a text, the chat template and the sampling settings. */
function vocabulary(model: Recognised): Words {
  const { vocab } = model.shape;
  if (model.gguf) {
    const found = tokenizerFiles(model.gguf.metadata, model.file);
    const generation = ggufSampling(model.gguf.metadata);
    if (!found) return words(null, {}, [], null, vocab, generation);
    return words(found.document, found.roles, found.ends, templateSources(found.template), vocab, generation);
  }
  const [document, generation, about, config] = JSON_FILES.map(
    (name) => model.json.get(name) as Record<string, unknown> | undefined,
  );
  const given = [generation, config].map((file) => [file?.["eos_token_id"] ?? []].flat()).find((ids) => ids.length);
  const ends = (given ?? []).filter((id): id is number => Number.isInteger(id));
  const roles: Record<string, string> = {};
  for (const [role, token] of Object.entries(about ?? {})) {
    const text = typeof token === "object" ? (token as { content?: unknown } | null)?.content : token;
    if (role.endsWith("_token") && typeof text === "string") roles[role] = text;
  }
  const template = templateSources(model.json.get(TEMPLATE) ?? about?.["chat_template"]);
  return words(document ? documentOf(document) : null, roles, ends, template, vocab, generation ?? {});
}

const JSON_FILES = ["tokenizer.json", "generation_config.json", "tokenizer_config.json", "config.json"] as const;

/**
 * Returns the tokenizer of a tokenizer.json with the ids that end a text, the chat template and the sampling settings.
 * `ends` are the ids that end a text; if none is in the vocabulary, the `eos_token` of `roles` ends a text, or else
 * `<|endoftext|>`. Throws PageError if the page does not support the tokenizer.
 */
function words(
  document: TokenizerDocument | null,
  roles: Record<string, string>,
  ends: readonly number[],
  template: TemplateSources | null,
  vocab: number,
  generation: Record<string, unknown>,
): Words {
  const eos = ends.filter((id) => id >= 0 && id < vocab);
  const sampling = modelSampling(generation, Boolean(document && template));
  if (!document) return { tokenizer: null, eos, template: null, sampling };
  const data = parseTokenizer(tokenizerData({ document, roles }), "tokenizer.json");
  if (!eos.length) {
    const own = roles["eos_token"] ?? "<|endoftext|>";
    const id = data.added_tokens.find(({ content }) => content === own)?.id ?? data.model.vocab[own];
    if (id !== undefined && id < vocab) eos.push(id);
  }
  const special = Object.fromEntries(
    data.added_tokens.filter((t) => t.special).map(({ content, id }) => [content, id]),
  );
  return {
    tokenizer: new Tokenizer(data),
    eos,
    template: template && { ...template, named: roles, special },
    sampling,
  };
}

/** Returns a tokenizer.json as the page reads it: of several post-processors, only `TemplateProcessing` remains. */
function documentOf(found: Record<string, unknown>): TokenizerDocument {
  const processor = found["post_processor"] as { processors?: { type?: unknown }[] } | null | undefined;
  const steps = Array.isArray(processor?.processors) ? processor.processors : [processor as { type?: unknown } | null];
  const template = steps.find((step) => step?.type === "TemplateProcessing") ?? null;
  const added = Array.isArray(found["added_tokens"]) ? found["added_tokens"] : [];
  const { vocab } = (found["model"] ?? {}) as { vocab?: unknown };
  if (typeof vocab !== "object" || vocab === null || Array.isArray(vocab)) {
    throw new PageError("tokenizer.json holds no BPE vocabulary, the only kind that this page supports.");
  }
  return { ...found, added_tokens: added, post_processor: template } as unknown as TokenizerDocument;
}

/** The weights in a model's files. A worker packs them into texels. */
class FileWeights implements Weights {
  readonly own = true;
  readonly gradual = true;

  constructor(
    private readonly model: Recognised,
    private readonly document: ShapeDocument,
    private readonly places: ReadonlyMap<string, Place>,
    private readonly loader: Loader,
  ) {}

  shared(): ReadonlyMap<string, WebGLTexture> {
    return new Map();
  }

  version(): string {
    return "";
  }

  async fill(player: Player): Promise<void> {
    const { device, program } = player;
    const { generation } = device;
    const packings = this.document.parameters
      .filter(({ name }) => program.views[name])
      .map((parameter) => {
        const { name } = parameter;
        return packingOf(parameter, this.places.get(name)!, program.views[name]!, this.model.gguf !== null);
      });
    this.loader.begins(textureBytes(program, ["weight"]));
    const worker = new PackingWorker();
    try {
      await new Promise<void>((resolve, reject) => {
        worker.onerror = (event) => reject(new PageError(`The weights cannot be unpacked: ${event.message}`));
        worker.onmessage = ({ data }: MessageEvent<Answer>) => {
          try {
            if ("problem" in data) throw new PageError(`${this.model.file}: ${data.problem}`);
            if ("done" in data) {
              resolve();
              return;
            }
            device.still(generation);
            const { name, block, texels } = data.band;
            player.writeBlock(name, block, texels);
            this.loader.uploaded(texels.length);
            worker.postMessage(null);
          } catch (error) {
            reject(error instanceof Error ? error : new Error(String(error)));
          }
        };
        worker.postMessage({ files: this.model.files, packings } satisfies Job);
      });
    } finally {
      worker.terminate();
    }
  }
}
