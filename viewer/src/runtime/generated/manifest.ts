// The types of viewer/schema/manifest.schema.json. Written by scripts/generate_schema.py.

/** A part of a block that adds to the residual stream, and the activation that it adds. */
export interface AddedPart {
  part: string;
  out: string;
}

/** The sizes of the model; the other fields are those of its family. */
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

/** The model family's names, with captions and explanations; {} in a name stands for a block's number. */
export interface Family {
  /** Prefixes of the names in a block; the first is that of its activations */
  blocks: readonly string[];
  /** absolute: a position's vector is added to the embedding; rotary: queries and keys are rotated */
  positions: "absolute" | "rotary";
  /** Names of the residual stream after the embedding and after a block */
  stream: readonly [string, string];
  /** Queries of a block: a state that only views read */
  queries: string;
  /** Parts of a block that add to the stream, in order, and the activation that each adds */
  adds: readonly AddedPart[];
  /** Cells of a block in the machine view, from the top: activations of the block, and their part of `adds` */
  stages: readonly ListedStage[];
  /** Activations, parameters, states and passes in display order, with a caption and an explanation */
  names: readonly NamedThing[];
}

/** An activation, as a manifest lists it; see `glgpt.models.activations.Activation`. */
export interface ListedActivation {
  name: string;
  kind: "rows" | "heads" | "cache" | "scores" | "pattern";
  heads: number;
  width: number;
}

/** The size and SHA-256 of a file. */
export interface ListedFile {
  /** size of a file; a page fetches no more than this */
  bytes: number;
  sha256: string;
}

/** A cell of a block: the activations of the block that it shows, and the part that adds them. */
export interface ListedStage {
  title: string;
  shows: readonly string[];
  adds: string | null;
}

/** An activation, parameter, state or pass, with its caption and explanation. */
export interface NamedThing {
  name: string;
  title?: string;
  about?: string;
}

/** The sampling settings of a page until a visitor changes them; missing filters are off. */
export interface PageSampling {
  temperature: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
}

/** The files of the programs recorded for one kernel and one layout of one-row products, and of their probes. */
export interface RecordingFiles {
  draw_buffers: number;
  kernel: string;
  rows: "strided" | "contiguous";
  /** only for devices that blend floats (EXT_float_blend) */
  blends?: boolean;
  /** only for devices whose derivatives differ from column to column of a quad */
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
 * A file of weights. A piece is (texture, layer, first row, rows). Pieces follow each other, in the layout of a texture
 * without panels.
 */
export interface Shard {
  file: string;
  /** size of a file; a page fetches no more than this */
  bytes: number;
  sha256: string;
  pieces: readonly (readonly [string, number, number, number])[];
}

/** The head that the tour shows. */
export interface ShownHead {
  layer: number;
  head: number;
  text: string;
  question: string;
  answer: string;
}

/** The server that can run a part of the model, and which part. */
export interface SplitServer {
  server: string;
  wire: "f32" | "f16" | "int8";
  digest: string;
  /** The part that the server runs; null: the page holds all blocks and sets the server's part at run time */
  rest: string | null;
  /** The side that computes the logits if the split point is fixed */
  head: "server" | "page";
  /** Names of the residual stream, after the embedding and after each block of both sides */
  stream: readonly string[];
  activations: readonly ListedActivation[];
}

/** The chat template of an instruct model. */
export interface TemplateSource {
  /** The Jinja template */
  source: string;
  /** That for messages with tools, if it differs */
  tools?: string;
  /** Special tokens by role, such as bos_token, which the template reads */
  named: Record<string, string>;
  /** The id of each special token, which only the template may write */
  special: Record<string, number>;
}

/** Constants shared by the desktop and the page. */
export interface Tuning {
  /** cost of decoding one token of a prompt, in units of a chunk's token */
  one_token: number;
  /** one_token for an entry that captures all activations */
  one_captured: number;
  /** cost of a chunk in addition to its tokens */
  per_chunk: number;
  /** panels are used if a one-row product takes less than this share of its time without them */
  panels_pay: number;
  /** maximum ratio of a probe's second best run to its best, if times are steady */
  steady: number;
  /** maximum operations of one draw */
  draw_flops: number;
  /** maximum number of tokens that the page issues at once */
  ahead: number;
  /** number of texts that `several` of a recording continues at once */
  texts?: number;
}

/** The contents of an exported folder. */
export interface ManifestDocument {
  /** Texts to start from; the page opens with the first. Empty without a tokenizer */
  prompts: readonly ExamplePrompt[];
  /** The chat format of an instruct model: ids of special tokens, texts, and null for the message */
  chat?: readonly (string | number | null)[] | null;
  chat_template?: TemplateSource | null;
  sampling?: PageSampling;
  head?: ShownHead | null;
  schema: 3;
  glgpt: string;
  /** the same as in index.html, by which a page notices files of another export */
  export_id?: string;
  model: string;
  /** the format of most weights */
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k";
  /** types of the model's GGUF file, if the weights are as stored there; the one of most weights first */
  stored?: readonly string[] | null;
  parameters?: number;
  /** address of the page's source, http or https */
  source?: string | null;
  /** the training data in a few words, such as: the plays of Shakespeare */
  trained_on?: string | null;
  config: Config;
  recordings: readonly RecordingFiles[];
  /** Attention patterns that interventions can set, in the order of their numbers (ops.set_pattern) */
  patterns?: readonly string[];
  tuning: Tuning;
  tokenizer: string | null;
  /** ids that end a text */
  eos?: readonly number[];
  /** null: a page without weights has none */
  reference: string | null;
  recorded?: string | null;
  training?: string | null;
  /** Activations in the order of computation */
  activations: readonly ListedActivation[];
  family: Family;
  split?: SplitServer | null;
  files: Record<string, ListedFile>;
  /** empty where a visitor opens the weights */
  shards: readonly Shard[];
}
