// Example prompts and sampling settings (glgpt/page/prompts.py, glgpt/checkpoint/generation_config.py). Written by scripts/generate_schema.py.

export const NEUTRAL_PROMPTS = [
  "The capital of France is",
  "Once upon a time",
  "The three primary colours are",
  "Water boils at",
] as const;
export const QUESTIONS = [
  "What is the capital of France?",
  "Why is the sky blue?",
  "Write a poem about the sea.",
  "Give me tips for sleeping well.",
] as const;
export const TEXT_SAMPLING = { temperature: 0.8, top_p: 0.9 } as const;
export const CHAT_SAMPLING = { temperature: 0.2, top_p: 0.9 } as const;
export const RANGES = { temperature: [0, 100], top_k: [-1, 2147483647], top_p: [0, 1], min_p: [0, 1] } as const;
export const GGUF_KEYS = {
  "general.sampling.temp": "temperature",
  "general.sampling.top_k": "top_k",
  "general.sampling.top_p": "top_p",
  "general.sampling.min_p": "min_p",
} as const;
