// The types of viewer/schema/manifest.schema.json. Written by scripts/generate_schema.py.

/** A part of a block (attention or MLP), and `out`, the activation that it adds to the residual stream. */
export interface AddedPart {
  part: string;
  out: string;
}

/** The sizes of the model; further fields are those of the model's family. */
export interface Config {
  vocab_size: number;
  n_positions: number;
  n_layer: number;
  n_head: number;
  n_embd: number;
  d_head: number;
}

/** A text to start from, and the caption of its button. */
export interface ExamplePrompt {
  title: string;
  text: string;
}

/** The names that a model family uses, with captions and explanations; {} in a name stands for a block's number. */
export interface Family {
  /** Prefixes of the names in a block; activations have the first prefix */
  blocks: readonly string[];
  /** absolute: a position's vector is added to the embedding; rotary: queries and keys are rotated */
  positions: "absolute" | "rotary";
  /** Names of the residual stream after the embedding and after a block */
  stream: readonly [string, string];
  /** State with a block's queries; only views of the page read it */
  queries: string;
  /** Parts of a block that add to the stream, in order, and the activation that each adds */
  adds: readonly AddedPart[];
  /** Cells of a block in the page's drawing of the model, from the top; a cell shows activations */
  stages: readonly ListedStage[];
  /** Activations, parameters, states and passes in display order, with a caption and an explanation */
  names: readonly NamedThing[];
}

/** An activation in a manifest; see `glgpt.models.activations.Activation`. */
export interface ListedActivation {
  name: string;
  kind: "rows" | "heads" | "cache" | "scores" | "pattern";
  heads: number;
  width: number;
}

/** The size and SHA-256 of a file. */
export interface ListedFile {
  /** size of a file in bytes; a page fetches no more bytes of the file */
  bytes: number;
  sha256: string;
}

/**
 * A stage in a manifest: `shows` are the activations that the cell shows. `adds` is the part of the block (attention or
 * MLP) whose output is added to the residual stream here; None: nothing is added.
 */
export interface ListedStage {
  title: string;
  shows: readonly string[];
  adds: string | null;
}

/** An activation, parameter, state or pass, with its caption `title` and its explanation `about`. */
export interface NamedThing {
  name: string;
  title?: string;
  about?: string;
}

/** The sampling settings of a page until a visitor changes them. A missing `top_k`, `top_p` or `min_p` is off. */
export interface PageSampling {
  temperature: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
}

/**
 * The files of a recording and of its probes. `draw_buffers` is the number of outputs of a pass that the device must
 * support. In a one-row product (as in decoding a token), a fragment takes neighbouring columns if `rows` is
 * "contiguous", and distant ones if it is "strided".
 */
export interface RecordingFiles {
  draw_buffers: number;
  kernel: string;
  rows: "strided" | "contiguous";
  /** only for devices that blend floats (EXT_float_blend) */
  blends?: boolean;
  /** only for devices that compute separate derivatives for each column of a quad, which is a block of 2 x 2 pixels */
  pairs?: boolean;
  generate: string;
  capture: string;
  product: string;
  row: string;
  interventions?: string;
  several?: string;
  masked?: string;
}

/**
 * A file of weights. A piece is a list [texture, layer, first row, number of rows] and stands for these rows of texels.
 * The file holds the pieces one after the other. Rows have the layout of a texture without panels (strips of contiguous
 * columns).
 */
export interface Shard {
  file: string;
  /** size of a file in bytes; a page fetches no more bytes of the file */
  bytes: number;
  sha256: string;
  pieces: readonly (readonly [string, number, number, number])[];
}

/** The attention head that the page's tour shows for a text, with a question about the head and the answer. */
export interface ShownHead {
  layer: number;
  head: number;
  text: string;
  question: string;
  answer: string;
}

/** The server that can run a part of the model (blocks, and perhaps the head), and a description of that part. */
export interface SplitServer {
  server: string;
  wire: "f32" | "f16" | "int8";
  digest: string;
  /** The part that the server runs; null: the page holds all blocks, and its visitor chooses which of them the server runs */
  rest: string | null;
  /** The side that computes the logits if `rest` is not null */
  head: "server" | "page";
  /** Names of the residual stream's states: after the embedding, and after each block of the model */
  stream: readonly string[];
  activations: readonly ListedActivation[];
}

/** The chat template of an instruct model. */
export interface TemplateSource {
  /** The Jinja template */
  source: string;
  /** Template for messages with tools, if different */
  tools?: string;
  /** The special tokens that the template reads, by role, such as bos_token */
  named: Record<string, string>;
  /** The id of each special token; only the template may write these tokens */
  special: Record<string, number>;
}

/** Constants shared by the desktop and the page. A chunk is a group of tokens that the model reads at once. */
export interface Tuning {
  /** cost of a forward pass of a single token; the unit is the cost of a token in a chunk */
  one_token: number;
  /** the same cost in a program that captures all activations */
  one_captured: number;
  /** cost of a chunk in addition to that of its tokens, in the same unit */
  per_chunk: number;
  /** panels (strips of weights) are used if a one-row product with panels takes less than this share of the time without panels */
  panels_pay: number;
  /** times are steady if the second-shortest is less than this many times the shortest */
  steady: number;
  /** maximum number of floating-point operations in one draw */
  draw_flops: number;
  /** maximum number of tokens whose passes are queued at once */
  ahead: number;
  /** number of texts that the program `several` continues at once */
  texts?: number;
}

/** The contents of an exported folder. */
export interface ManifestDocument {
  /** Texts to start from; the page opens with the first. Empty without a tokenizer */
  prompts: readonly ExamplePrompt[];
  /** The chat format of an instruct model, in order: ids of special tokens, texts, and null, which stands for the message */
  chat?: readonly (string | number | null)[] | null;
  chat_template?: TemplateSource | null;
  sampling?: PageSampling;
  head?: ShownHead | null;
  schema: 3;
  glgpt: string;
  /** id of the export; index.html contains the id of the export it belongs to */
  export_id?: string;
  model: string;
  /** the format of most weights */
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k" | "q2_k";
  /** tensor types of the model's GGUF file, if the page has the file's weights unchanged; the first is the type of most weights */
  stored?: readonly string[] | null;
  parameters?: number;
  /** address of the page's source code, http or https */
  source?: string | null;
  /** the training data in a few words, such as: the plays of Shakespeare */
  trained_on?: string | null;
  config: Config;
  recordings: readonly RecordingFiles[];
  /** Names of the attention patterns that interventions can set; in ops.set_pattern, the first has the number 1 */
  patterns?: readonly string[];
  tuning: Tuning;
  tokenizer: string | null;
  /** ids that end a text */
  eos?: readonly number[];
  /** reference.json; null: a page without weights has no reference */
  reference: string | null;
  recorded?: string | null;
  training?: string | null;
  /** Activations in the order of computation */
  activations: readonly ListedActivation[];
  family: Family;
  split?: SplitServer | null;
  files: Record<string, ListedFile>;
  /** empty in a page without weights, where a visitor opens a file */
  shards: readonly Shard[];
}
