// Worker: uses the library xgrammar (WebAssembly) to find the tokens that may come next in a text that must match a
// grammar. A grammar that the library does not accept aborts its WebAssembly module; the page starts another worker.

import { GrammarCompiler, GrammarMatcher, TokenizerInfo } from "@mlc-ai/web-xgrammar";
import { PageError, reason } from "../gl/errors";
import type { Constraint } from "./constraint";
import { constraintGrammar } from "./grammar";

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

const MAX_FORCED = 256; // maximum characters of `Next.forced`, more than the page guesses in one step

/**
 * `bits`: one bit per token, lowest bit first; 1: the token may come next. `forced`: the beginning of the text that
 * must come next. `forced` is empty for a recursive grammar, because the library's search for the end of the forced
 * text might not stop.
 */
export interface Next {
  bits: Uint32Array;
  forced: string;
}

/**
 * The answer to a job: how the text may continue, how it may continue after each guess (`after`), why the job failed,
 * or that the vocabulary is loaded (`ready`). The worker can still be used after `refused`, but not after `failed`.
 */
export type Answer = Next | { after: Next[] } | { failed: string } | { refused: string } | { ready: true };

let compiler: GrammarCompiler | null = null;
let matcher: GrammarMatcher | null = null;
let recursive = false; // `Grammar.recursive` of the matcher's grammar
let said = ""; // the latest fatal message that the library logged

console.warn = console.error = (...parts: unknown[]) => {
  const fatal = /\[FATAL\] \S+: (.*)/.exec(parts.join(" "));
  if (fatal) said = fatal[1]!;
};

async function answered(job: Job): Promise<Answer> {
  if ("vocabulary" in job) {
    const { vocabulary } = job;
    const { length } = vocabulary;
    const info = await TokenizerInfo.createTokenizerInfo(vocabulary, "raw", false, length, length - 1);
    compiler = await GrammarCompiler.createGrammarCompiler(info, false);
    return { ready: true };
  }
  if ("constraint" in job) {
    matcher?.dispose();
    matcher = null;
    const grammar = constraintGrammar(job.constraint);
    const compiled = await compiler!.compileGrammar(grammar.text);
    recursive = grammar.recursive;
    matcher = await GrammarMatcher.createGrammarMatcher(compiled);
    compiled.dispose();
    return next(matcher);
  }
  if ("guesses" in job) return { after: await afterEach(matcher!, job.guesses) };
  for (const token of job.tokens) {
    if (!matcher!.acceptToken(token)) return { failed: `token ${token} does not match the grammar` };
  }
  return next(matcher!);
}

async function next(matcher: GrammarMatcher): Promise<Next> {
  const forced = recursive ? "" : matcher.findJumpForwardString().slice(0, MAX_FORCED);
  return { bits: new Uint32Array(await matcher.getNextTokenBitmask()), forced };
}

/** Returns what may follow each token, up to the first token that does not match. The matcher's text is unchanged. */
async function afterEach(matcher: GrammarMatcher, tokens: readonly number[]): Promise<Next[]> {
  const found: Next[] = [];
  for (const token of tokens) {
    if (!matcher.acceptToken(token)) break;
    found.push(await next(matcher));
  }
  matcher.rollBack(found.length);
  return found;
}

let before: Promise<unknown> = Promise.resolve();
addEventListener("message", ({ data }: MessageEvent<Job>) => {
  before = before.then(async () => {
    const answer = await answered(data).catch((error: unknown): Answer => {
      return error instanceof PageError ? { refused: error.message } : { failed: said || reason(error) };
    });
    const made = "bits" in answer ? [answer] : "after" in answer ? answer.after : [];
    postMessage(answer, { transfer: made.map(({ bits }) => bits.buffer) });
  });
});
