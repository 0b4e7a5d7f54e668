// The types of viewer/schema/tokenizer.schema.json. Written by scripts/generate_schema.py.

/** Represents each byte as a letter; may be a normalizer, a pre-tokenizer, a post-processor or a decoder. */
export interface ByteLevel {
  type: "ByteLevel";
  add_prefix_space?: boolean;
  trim_offsets?: boolean;
  use_regex?: boolean;
}

/** Replaces the blanks before words by another character; a pre-tokenizer or a decoder. */
export interface Metaspace {
  type: "Metaspace";
  replacement: string;
  prepend_scheme?: "first" | "never" | "always";
  add_prefix_space?: boolean | null;
  split?: boolean;
}

export interface AddedId {
  content: string;
  single_word?: boolean;
  lstrip?: boolean;
  rstrip?: boolean;
  normalized?: boolean;
  special?: boolean;
  id: number;
}

export interface Back {
  type: "Replace";
  pattern: Text;
  content: string;
}

export interface Bpe {
  type?: "BPE";
  vocab: Readonly<Record<string, number>>;
  merges: readonly unknown[];
  unk_token?: string | null;
  continuing_subword_prefix?: "" | null;
  end_of_word_suffix?: "" | null;
  fuse_unk?: boolean;
  byte_fallback?: boolean;
  ignore_merges?: boolean;
}

export interface Bytes {
  type: "ByteFallback" | "Fuse" | "Strip";
}

export interface Decoders {
  type: "Sequence";
  decoders: readonly (ByteLevel | Metaspace | Bytes | Back)[];
}

export interface Digits {
  type: "Digits";
  individual_digits?: boolean;
}

export interface Named {
  id: string;
}

export interface Normalizers {
  type: "Sequence";
  normalizers: readonly (Unicode | Strip | Prepend | Replace | ByteLevel)[];
}

export interface Pair {
  type: "BertProcessing" | "RobertaProcessing";
  cls: readonly [string, number];
  sep: readonly [string, number];
}

export interface PostProcessors {
  type: "Sequence";
  processors: readonly (ByteLevel | Template | Pair)[];
}

export interface PreTokenizers {
  type: "Sequence";
  pretokenizers: readonly (Whitespace | Split | Digits | Punctuation | ByteLevel | Metaspace)[];
}

export interface Prepend {
  type: "Prepend";
  prepend: string;
}

export interface Punctuation {
  type: "Punctuation";
  behavior?: "Removed" | "Isolated" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";
}

export interface Regex {
  Regex: string;
}

export interface Replace {
  type: "Replace";
  pattern: Text | Regex;
  content: string;
}

export interface Sequence {
  id: "A";
}

export interface Special {
  ids: readonly number[];
}

export interface SpecialPiece {
  SpecialToken: Named;
}

export interface Split {
  type: "Split";
  pattern: Text | Regex;
  behavior: "Removed" | "Isolated" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous";
  invert?: boolean;
}

export interface Strip {
  type: "Strip";
  strip_left?: boolean;
  strip_right?: boolean;
}

export interface Template {
  type: "TemplateProcessing";
  single: readonly (SpecialPiece | TextPiece)[];
  special_tokens: Record<string, Special>;
}

export interface Text {
  String: string;
}

export interface TextPiece {
  Sequence: Sequence;
}

export interface Unicode {
  type: "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents";
}

export interface Whitespace {
  type: "Whitespace" | "WhitespaceSplit";
}

/** The tokenizer.json of an exported page: a checked file, to which the export adds the fields declared here. */
export interface TokenizerSchema {
  model: Bpe;
  added_tokens: readonly AddedId[];
  normalizer?: Normalizers | Unicode | Strip | Prepend | Replace | ByteLevel | null;
  pre_tokenizer?: PreTokenizers | Whitespace | Split | Digits | Punctuation | ByteLevel | Metaspace | null;
  post_processor?: PostProcessors | ByteLevel | Template | Pair | null;
  decoder?: Decoders | ByteLevel | Metaspace | Bytes | Back | null;
  schema: 3;
  /** ids that the tokenizer adds before a prompt */
  prefix: readonly number[];
  /** ids that the tokenizer adds after a prompt */
  suffix: readonly number[];
  vocab_size: number;
}
