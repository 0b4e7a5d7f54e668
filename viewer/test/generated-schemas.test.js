// Tests texts of generated schemas, which the desktop's test of constraints also uses.

import { Validator } from "@cfworker/json-schema";
import { beforeAll, expect, test, vi } from "vitest";
import shared from "../../tests/page/shared_cases.json";
import { Grammars } from "../src/runtime/constraints/grammars";

vi.mock("@mlc-ai/web-xgrammar", async () => (await import("./xgrammar")).xgrammar());

// Each byte is a token, so characters outside ASCII have several tokens. Further tokens end or join JSON values.
const WORDS = '"}|"]|", "|": |}}|]}|, |{"|null|true|ab|Größe|12|.5|\\"|é'.split("|");
const TOKENS = [
  ...Array.from({ length: 256 }, (_, byte) => [byte]),
  ...WORDS.map((word) => [...new TextEncoder().encode(word)]),
];
const END = TOKENS.length;
const VOCABULARY = { size: END + 1, ends: [END], bytes: (id) => TOKENS[id] };
const CLOSING = new Set([...'"}],'].map((character) => character.charCodeAt(0)));
const MAX_TOKENS = 1000; // maximum tokens of a text

let receive; // the worker's listener
const worker = {
  postMessage: (job) => receive({ data: structuredClone(job) }),
  terminate: () => {},
};

beforeAll(async () => {
  vi.stubGlobal("addEventListener", (_, listener) => (receive = listener));
  vi.stubGlobal("postMessage", (answer, options) => worker.onmessage({ data: structuredClone(answer, options) }));
  await import("../src/runtime/constraints/grammar-worker");
});

/**
 * Returns a text of random allowed tokens. The text ends as soon as it may. Half of the tokens are chosen from those
 * that close a value, if there are any, so that texts are short.
 */
async function randomText(matcher, random) {
  const bytes = [];
  for (let step = 0; step < MAX_TOKENS; step++) {
    const allowed = await matcher.allowed;
    if (!allowed || allowed.has(END)) return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
    const ids = TOKENS.flatMap((_, id) => (allowed.has(id) ? [id] : []));
    const closing = ids.filter((id) => CLOSING.has(TOKENS[id][0]));
    const own = closing.length && random(2) ? closing : ids;
    const id = own[random(own.length)];
    matcher.accept(id);
    bytes.push(...TOKENS[id]);
  }
  throw new Error(`no end after ${MAX_TOKENS} tokens: ${new TextDecoder().decode(new Uint8Array(bytes))}`);
}

/** Returns a function that returns random integers from 0 to `below` - 1. */
function integers(seed) {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 0x7fffffff;
    return Math.floor((state / 0x7fffffff) * below);
  };
}

test("500 generated schemas compile, and their texts validate", async () => {
  const grammars = new Grammars(VOCABULARY, async () => worker);
  const random = integers(1);
  expect(shared.schemas).toHaveLength(500);
  for (const schema of shared.schemas) {
    const validator = new Validator(schema, "2020-12");
    for (let i = 0; i < 2; i++) {
      const text = await randomText(await grammars.matcher({ json_schema: schema }), random);
      const { valid } = validator.validate(JSON.parse(text));
      expect([schema, text, valid]).toEqual([schema, text, true]);
    }
  }
});
