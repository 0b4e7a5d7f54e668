// Worker: uses the library xgrammar (WebAssembly) to find the tokens that may come next in a text that must match a
// grammar. If the library rejects a grammar, its WebAssembly module aborts, and the page must start another worker.

import { GrammarCompiler, GrammarMatcher, TokenizerInfo } from "@mlc-ai/web-xgrammar";
import { PageError, reason } from "../gl/errors";
import { constraintGrammar } from "./grammar";
import type { Answer, Job, Next } from "./jobs";

const MAX_FORCED = 256; // maximum characters of `Next.forced`, more than the page guesses in one step

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
  for (const token of job.tokens) append(matcher!, token);
  return next(matcher!);
}

function append(matcher: GrammarMatcher, token: number): void {
  if (!matcher.acceptToken(token)) throw new Error(`token ${token} does not match the grammar`);
}

/** Returns what may follow the matcher's text. */
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
