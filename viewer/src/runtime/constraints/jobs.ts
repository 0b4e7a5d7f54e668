// Defines the jobs of the worker that follows grammars, and its answers.

import type { Constraint } from "./constraint";

/**
 * Loads the vocabulary: the text of each token as `writtenBytes` encodes it, or "" for a token that is never allowed.
 * The last item is not a token of the model: it stands for the end of the text.
 */
export interface VocabularyJob {
  vocabulary: string[];
}

/** Starts a text that must match a constraint. */
export interface ConstraintJob {
  constraint: Constraint;
}

/** Appends the tokens with these ids to the text. */
export interface TokensJob {
  tokens: readonly number[];
}

/**
 * Requests what may follow each of these guessed tokens, up to the first token that does not match the grammar. Leaves
 * the text unchanged.
 */
export interface GuessesJob {
  guesses: readonly number[];
}

export type Job = VocabularyJob | ConstraintJob | TokensJob | GuessesJob;

/**
 * `bits`: one bit per token, lowest bit first; 1: the token may come next. `forced`: the text that must come
 * next, or the beginning of this text. `forced` is empty for a recursive grammar, because the library's search for the
 * end of the forced text might not stop.
 */
export interface Next {
  bits: Uint32Array;
  forced: string;
}

/**
 * The answer to a job: how the text may continue; how the text may continue after each guess (`after`); that the
 * vocabulary is loaded (`ready`); or why the job was not done. The worker can still be used after `refused`, but not
 * after `failed`.
 */
export type Answer = Next | { after: Next[] } | { failed: string } | { refused: string } | { ready: true };
