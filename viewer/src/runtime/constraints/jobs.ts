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

/**
 * Appends these tokens one by one, and stops after the first token that changes which tokens are allowed next. All of
 * them are among the tokens that are allowed before the job.
 */
export interface SameJob {
  same: readonly number[];
}

export type Job = VocabularyJob | ConstraintJob | TokensJob | GuessesJob | SameJob;

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
 * The answer to a job: how the text may continue (with the number of appended tokens after a `SameJob`); how the text
 * may continue after each guess (`after`); that the vocabulary is loaded (`ready`); or why the job was not done.
 * The worker can still be used after `refused`, but not after `failed`.
 */
export type Answer =
  Next | (Next & { appended: number }) | { after: Next[] } | { failed: string } | { refused: string } | { ready: true };

/** True if `a` and `b` allow the same tokens and force the same text. */
export function equal(a: Next, b: Next): boolean {
  return a.forced === b.forced && a.bits.length === b.bits.length && a.bits.every((word, i) => word === b.bits[i]);
}
