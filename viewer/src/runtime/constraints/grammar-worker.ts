// Worker: finds which tokens may come next in a text that follows a grammar, with the library xgrammar (WebAssembly). A
// grammar that the library does not accept ends it, so the page then starts another worker.

import { GrammarCompiler, GrammarMatcher, TokenizerInfo } from "@mlc-ai/web-xgrammar";
import { PageError, reason } from "../gl/errors";
import type { Constraint } from "./constraint";
import { constraintGrammar } from "./grammar";

/** The text of each token, as `writtenBytes` writes it; "": it never comes. The last ends the text. */
export interface VocabularyJob {
  vocabulary: string[];
}

/** Begins a text that matches a constraint. */
export interface ConstraintJob {
  constraint: Constraint;
}

/** The ids of the tokens that come next. */
export interface TokensJob {
  tokens: readonly number[];
}

/** Ids that may come next: asks what follows each of those that fit, and leaves the text as it is. */
export interface GuessesJob {
  guesses: readonly number[];
}

export type Job = VocabularyJob | ConstraintJob | TokensJob | GuessesJob;

const MAX_FORCED = 256; // characters of a forced text, more than are guessed at once

/**
 * A bit for each token that may come next, lowest bit first, and the beginning of the text that comes next in any case;
 * none for a recursive grammar, where the library may search for its end forever.
 */
export interface Next {
  bits: Uint32Array;
  forced: string;
}

/** Says how the text continues, once or after each guess; or why it does not. After `refused` the worker works on. */
export type Answer = Next | { after: Next[] } | { failed: string } | { refused: string } | { ready: true };

let compiler: GrammarCompiler | null = null;
let matcher: GrammarMatcher | null = null;
let recursive = false; // the matcher's grammar
let said = ""; // by the library, before it ended

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
    if (!matcher!.acceptToken(token)) return { failed: `token ${token} does not fit it` };
  }
  return next(matcher!);
}

async function next(matcher: GrammarMatcher): Promise<Next> {
  const forced = recursive ? "" : matcher.findJumpForwardString().slice(0, MAX_FORCED);
  return { bits: new Uint32Array(await matcher.getNextTokenBitmask()), forced };
}

/** Returns what follows each of the tokens, up to the first that does not fit. The matcher stays where it is. */
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
