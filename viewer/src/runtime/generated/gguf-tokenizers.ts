// The tokenizers of GGUF files, as in glgpt/gguf/tokenizer_files.py. Written by scripts/generate_schema.py.

export const NORMAL = 1;
export const UNKNOWN = 2;
export const CONTROL = 3;
export const USER_DEFINED = 4;
export const UNUSED = 5;
export const BYTE = 6;
export const MAX_MERGES = 1048576;
export const MAX_TOKEN = 256;
export const MAX_CHARACTERS = 4194304;
export const NO_TOKEN = 4294967295;
export const BLANK = "\u2581";
export const ROLES = {
  bos: "bos",
  eos: "eos",
  unknown: "unk",
  padding: "pad",
  seperator: "sep",
  mask: "mask",
} as const;
export const ENDS = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"] as const;
export const WHOLE_WORDS = ["llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"] as const;
export const NORMALIZERS = { qwen2: { type: "NFC" } } as const;
export const STEPS = [
  [{ type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true }],
  [
    { type: "Digits", individual_digits: true },
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
  ],
  [
    {
      type: "Split",
      pattern: {
        Regex: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      },
      behavior: "Isolated",
      invert: false,
    },
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
  ],
  [
    {
      type: "Split",
      pattern: {
        Regex: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      },
      behavior: "Isolated",
      invert: false,
    },
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
  ],
  [
    {
      type: "Split",
      pattern: {
        Regex: "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      },
      behavior: "Isolated",
      invert: false,
    },
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
  ],
  [
    { type: "Split", pattern: { Regex: "[\\p{P}\\$\\+<=>\\^~\\|]+" }, behavior: "Isolated", invert: false },
    {
      type: "Split",
      pattern: { Regex: "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)" },
      behavior: "Isolated",
      invert: false,
    },
    { type: "Split", pattern: { Regex: "\\p{N}+" }, behavior: "Isolated", invert: false },
    { type: "Split", pattern: { Regex: "[0-9][0-9][0-9]" }, behavior: "Isolated", invert: false },
    { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
  ],
] as const;
export const PRE_TOKENIZERS = {
  "gpt-2": 0,
  "phi-2": 0,
  olmo: 0,
  smollm: 1,
  "llama-bpe": 2,
  llama3: 2,
  "llama-v3": 2,
  falcon3: 2,
  dbrx: 2,
  "smaug-bpe": 2,
  qwen2: 3,
  "deepseek-r1-qwen": 3,
  tekken: 4,
  default: 5,
} as const;
