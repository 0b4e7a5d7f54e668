// The types of viewer/schema/manifest.schema.json. Written by scripts/generate_schema.py.

/** Activations in the order of computation */
export type Activations = readonly {
  name: string;
  kind: "rows" | "heads" | "cache" | "scores" | "pattern";
  heads: number;
  width: number;
}[];

/** The model family's names, with captions and explanations; {} in a name stands for a block's number */
export interface Family {
  /** Prefixes of the names in a block; the first is that of its activations */
  blocks: readonly string[];
  /** absolute: a position's vector is added to the embedding; rotary: queries and keys are rotated */
  positions: "absolute" | "rotary";
  /** Names of the residual stream after the embedding and after a block */
  stream: readonly [string, string];
  /** Parts of a block that add to the stream, in order, and the activation that each adds */
  adds: readonly {
    part: string;
    out: string;
  }[];
  /** Cells of a block in the machine view, from the top: activations of the block, and their part of `adds` */
  stages: readonly {
    title: string;
    shows: readonly string[];
    adds: string | null;
  }[];
  /** Activations, parameters, states and passes in display order, with a caption and an explanation */
  names: readonly {
    name: string;
    title?: string;
    about?: string;
  }[];
}

export type Size = number;

/** size of a file; a page fetches no more than this */
export type Bytes = number;

export type File = string;

export type Digest = string;

export interface ManifestDocument {
  schema: 3;
  glgpt: string;
  /** the same as in index.html, so that files of two exports are told apart */
  export_id?: string;
  model: string;
  /** the format of most weights */
  dtype: "f32" | "f16" | "q8" | "q4" | "q5_1" | "q4_k" | "q5_k" | "q6_k";
  /** types of the model's GGUF file, if the weights are as stored there; the one of most weights first */
  stored?: readonly string[] | null;
  parameters?: Size;
  /** address of the page's source, http or https */
  source?: string | null;
  /** the training data in a few words, such as: the plays of Shakespeare */
  trained_on?: string | null;
  config: {
    vocab_size: number;
    n_positions: number;
    n_layer: number;
    n_head: number;
    n_embd: number;
    d_head: number;
  };
  recordings: readonly {
    draw_buffers: number;
    kernel: string;
    rows: "strided" | "contiguous";
    /** only for devices that blend floats (EXT_float_blend) */
    blends?: boolean;
    generate: File;
    capture: File;
    product: File;
    row: File;
    interventions?: File;
    several?: File;
    masked?: File;
  }[];
  patterns?: readonly string[];
  tuning: {
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
  };
  tokenizer: File | null;
  /** ids that end a text */
  eos?: readonly number[];
  /** null: a page without weights has none */
  reference: File | null;
  recorded?: File | null;
  training?: File | null;
  activations: Activations;
  family: Family;
  /** Texts to start from; the page opens with the first. Empty without a tokenizer */
  prompts: readonly {
    title: string;
    text: string;
  }[];
  /** The chat format of an instruct model: ids of special tokens, texts, and null for the message */
  chat?: null | readonly (string | number | null)[];
  /** The chat template of an instruct model; null or absent: none */
  chat_template?: null | {
    /** The Jinja template */
    source: string;
    /** Special tokens by role, such as bos_token, which the template reads */
    named: Record<string, string>;
    /** The id of each special token, which only the template may write */
    special: Record<string, number>;
  };
  /** The head that the tour shows */
  head?: null | {
    layer: number;
    head: number;
    text: string;
    question: string;
    answer: string;
  };
  /** The server that can run a part of the model, and which part */
  split?: null | {
    server: string;
    wire: "f32" | "f16" | "int8";
    digest: string;
    /** The part that the server runs; null: the page holds all blocks and sets the server's part at run time */
    rest: string | null;
    /** The side that computes the logits if the split point is fixed */
    head: "server" | "page";
    /** Names of the residual stream, after the embedding and after each block of both sides */
    stream: readonly string[];
    activations: Activations;
  };
  files: Record<string, {
    bytes: Bytes;
    sha256: Digest;
  }>;
  /** empty where a visitor opens the weights */
  shards: readonly {
    file: File;
    bytes: Bytes;
    sha256: Digest;
    pieces: readonly (readonly [string, number, number, number])[];
  }[];
}
