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

/** The id of the next token. */
export interface TokenJob {
  token: number;
}

export type Job = VocabularyJob | ConstraintJob | TokenJob;

/** A bit for each token that may come next, lowest bit first; or why there is none. After `refused` it works on. */
export type Answer = { bits: Uint32Array } | { failed: string } | { refused: string } | { ready: true };

let compiler: GrammarCompiler | null = null;
let matcher: GrammarMatcher | null = null;
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
    const compiled = await compiler!.compileGrammar(constraintGrammar(job.constraint));
    matcher = await GrammarMatcher.createGrammarMatcher(compiled);
    compiled.dispose();
  } else if (!matcher!.acceptToken(job.token)) return { failed: `token ${job.token} does not fit it` };
  return { bits: new Uint32Array(await matcher!.getNextTokenBitmask()) };
}

let before: Promise<unknown> = Promise.resolve();
addEventListener("message", ({ data }: MessageEvent<Job>) => {
  before = before.then(async () => {
    const answer = await answered(data).catch((error: unknown): Answer => {
      return error instanceof PageError ? { refused: error.message } : { failed: said || reason(error) };
    });
    if ("bits" in answer) postMessage(answer, { transfer: [answer.bits.buffer] });
    else postMessage(answer);
  });
});
