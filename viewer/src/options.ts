// Defines the options and results of the scriptable object's calls that generate texts.

import type { Constraint } from "./runtime/constraints/constraint";
import type { Names } from "./runtime/engine/options";
import { samplingOptions, type SamplingOptions, type Token } from "./runtime/engine/sampling";
import type { SpeculationStats } from "./runtime/engine/speculation";
import { PageError } from "./runtime/gl/errors";

export interface GenerateOptions {
  prompt?: string;
  ids?: number[];
  tokens?: number;
  temperature?: number;
  topK?: number | null;
  topP?: number | null;
  minP?: number | null;
  /** Penalizes tokens already in the text (higher is stronger). The page then reads all logits, which takes longer. */
  repetitionPenalty?: number | null;
  /** Values to add to logits, by token id. */
  logitBias?: Record<number, number> | null;
  /** Stop at the model's end-of-text token (default: true). */
  eos?: boolean;
  /**
   * Guess tokens and check several in one step: the text stays the same and arrives sooner. With `constraint`, the
   * guesses are the tokens that the constraint forces, such as the keys of an object. Without a constraint, the guesses
   * are the tokens that followed an earlier occurrence of the text's last tokens. Guessing pauses while it costs more
   * time than it saves. Default: true with a constraint on a GPU, else false.
   */
  speculate?: boolean;
  /** Constrains the whole text. The first constraint loads a file of 0.4 MB. */
  constraint?: Constraint | null;
  seed?: number;
  /** Number of tokens already sampled with this seed. A text then continues as if it had not been stopped. */
  drawn?: number;
  stop?: string;
  /** Number of most likely tokens to report to `onToken`. */
  alternatives?: number;
  onToken?: (token: Token & { text: string }) => void;
  signal?: AbortSignal;
}

// `COMMON`: the options of every generation; `SHARED`: those of `generate` and `continuations`
const COMMON = {
  tokens: true,
  temperature: true,
  topK: true,
  topP: true,
  minP: true,
  repetitionPenalty: true,
  logitBias: true,
  eos: true,
  seed: true,
  stop: true,
  signal: true,
} as const;
const SHARED = { ...COMMON, prompt: true, ids: true } as const;

/** Options of a single text, not of texts in a batch. */
const ONE_TEXT = { constraint: true, speculate: true, alternatives: true, onToken: true } as const;

export const GENERATE: Names<GenerateOptions> = { ...SHARED, ...ONE_TEXT, drawn: true };

export interface Generated {
  ids: number[];
  text: string;
  prefillMs: number;
  /** Milliseconds from the first token to the last. */
  decodeMs: number;
  seed: number;
  stopped: "tokens" | "eos" | "text" | "aborted";
  /** Counts of guesses. Present with `speculate`, or if any guesses were checked. */
  speculation?: SpeculationStats;
}

/** One of several texts that continue a prompt. */
export type Continuation = Pick<Generated, "ids" | "text" | "seed"> & {
  /** `context`: the context is full, or the rows of the KV cache that the texts share are full. */
  stopped: Generated["stopped"] | "context";
};

export interface ChatOptions extends Omit<GenerateOptions, "prompt" | "ids" | "drawn"> {
  /** The number of oldest messages, after the system message, that the model no longer reads (default: 0). */
  dropped?: number;
}

export const CHAT: Names<ChatOptions> = { ...COMMON, ...ONE_TEXT, dropped: true };

/** An answer, the number of tokens of its prompt, and the number of oldest messages that the prompt leaves out. */
export type Answered = Generated & { promptTokens: number; dropped: number };

export interface ContinuationsOptions extends Omit<
  GenerateOptions,
  "drawn" | "constraint" | "speculate" | "alternatives" | "onToken"
> {
  /** Called with all texts after each token. The array holds the same objects each time. */
  onTexts?: (texts: readonly Continuation[]) => void;
  /** Called while the first call compiles its shaders, with the numbers of compiled and of all shaders. */
  onCompiled?: (compiled: number, shaders: number) => void;
}

export const CONTINUATIONS: Names<ContinuationsOptions> = { ...SHARED, onTexts: true, onCompiled: true };

/** Returns the sampling options of a call. The default temperature is 0.8. */
export function samplingOf(options: GenerateOptions | ContinuationsOptions): SamplingOptions {
  const { temperature = 0.8 } = options;
  return samplingOptions({ ...options, temperature });
}

/** Throws PageError for an invalid number of tokens or alternatives, or an invalid stop text. */
export function checkLimits(tokens: number, stop: unknown, alternatives = 0): void {
  for (const [name, value] of Object.entries({ tokens, alternatives })) {
    if (!(Number.isInteger(value) && value >= 0)) {
      throw new PageError(`${name} is ${value}; it must be a non-negative integer.`);
    }
  }
  if (stop !== undefined && typeof stop !== "string") throw new PageError("stop must be a string.");
}
