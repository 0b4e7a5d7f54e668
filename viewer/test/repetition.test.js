// Tests grammars that count characters: xgrammar must allow exactly the tokens with which a text can still match a
// regular expression that is equivalent to the constraint.

import { beforeAll, expect, test } from "vitest";
import { writtenBytes } from "../src/runtime/constraints/characters";
import { constraintGrammar } from "../src/runtime/constraints/grammar";
import { xgrammar } from "./xgrammar";

// In the texts of these tests, each character stands for one byte of UTF-8.
const bytes = (text) => Array.from(text, (byte) => byte.charCodeAt(0));
const latin = (text) => String.fromCharCode(...new TextEncoder().encode(text));
const WHOLE = [
  "a",
  "b",
  "1",
  '"',
  "\\",
  "n",
  "é",
  "漢",
  "🙂",
  "aa",
  'a"',
  "\\n",
  "a\\",
  "a\\\\",
  "1a",
  "a\x1f",
  "\x7f",
];
const LONG = [15, 16, 17, 18].flatMap((n) => ["a".repeat(n), "🙂".repeat(n), `${"a".repeat(n)}1`]);
const PARTS = ["\xc3", "\xa9", "a\xc3", "\xe6", "\xbc\xa2", "a\xf0\x9f", "\x99\x82a", `${"a".repeat(16)}\xc3`];
const TOKENS = [...[...WHOLE, ...LONG].map(latin), ...PARTS];
const COMPLETIONS = ["", "\xa9", "\xbc\xa2", "\xa2", "\x9f\x99\x82", "\x99\x82", "\x82", "n"]; // these complete `PARTS`

let library;

beforeAll(async () => {
  library = await xgrammar();
});

/** Returns a matcher of a constraint's grammar. `allowed` gives a flag for each token, and one for the text's end. */
async function follower(constraint) {
  const vocabulary = [...TOKENS.map((token) => writtenBytes(bytes(token))), ""];
  const { length } = vocabulary;
  const info = await library.TokenizerInfo.createTokenizerInfo(vocabulary, "raw", false, length, length - 1);
  const compiler = await library.GrammarCompiler.createGrammarCompiler(info, false);
  const compiled = await compiler.compileGrammar(constraintGrammar(constraint).text);
  const matcher = await library.GrammarMatcher.createGrammarMatcher(compiled);
  return {
    accept: (token) => expect(matcher.acceptToken(token)).toBe(true),
    allowed: async () => {
      const bits = await matcher.getNextTokenBitmask();
      return vocabulary.map((_, i) => ((bits[i >>> 5] >>> (i & 31)) & 1) === 1);
    },
  };
}

const BEYOND = "[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}";
const CHARACTER = String.raw`(?:[ !#-\[\]-~]|\\["\\bfnrt]|${BEYOND})`;
const text = (minLength, maxLength) => ({ json_schema: { type: "string", minLength, maxLength } });

test.each([
  [text(0, 40), `"${CHARACTER}{0,40}"`, "", '"'],
  [text(0, 300), `"${CHARACTER}{0,300}"`, "", '"'],
  [text(20, 20), `"${CHARACTER}{20}"`, "a", '"'],
  [text(18, 37), `"${CHARACTER}{18,37}"`, "a", '"'],
  [text(35), `"${CHARACTER}{35,}"`, "a", '"'],
  [text(2, 5), `"${CHARACTER}{2,5}"`, "a", '"'],
  [{ regex: "[a-z1]{3,40}1a" }, "[a-z1]{3,40}1a", "a", "1a"],
  [{ regex: String.raw`[^1\x1f]{0,35}[1\x1f]?` }, `(?:[^1\x1f\x80-\xff]|${BEYOND}){0,35}[1\x1f]?`, "", ""],
  [{ regex: String.raw`[aé]{3,60}(n|🙂)` }, String.raw`(?:a|\xc3\xa9){3,60}(?:n|\xf0\x9f\x99\x82)`, "a", "n"],
  [{ regex: "(a{17,18}b?){2}" }, "(?:a{17,18}b?){2}", "a", ""],
  [
    { json_schema: { type: "string", pattern: String.raw`[a\n]{3,60}[\\b]` } },
    String.raw`"(?:a|\\n){3,60}(?:\\\\|b)"`,
    "a",
    'b"',
  ],
])("%j allows the tokens that can continue a text", { timeout: 60_000 }, async (constraint, source, fill, end) => {
  const whole = new RegExp(`^(?:${source})$`, "s");
  const fills = fill ? Array.from({ length: 38 }, (_, n) => fill.repeat(n)) : [""];
  const ends = fills.flatMap((more) => COMPLETIONS.flatMap((part) => [`${part}${more}${end}`, `${part}${more}`]));
  ends.push('"', '""');
  const last = source.endsWith('"') ? ends.filter((rest) => !rest || rest.endsWith('"')) : ends; // others cannot match
  const possible = (start) => last.some((rest) => whole.test(start + rest));
  for (let seed = 1; seed < 4; seed++) {
    const own = await follower(constraint);
    let [found, random] = ["", seed];
    for (let step = 0; step < 60; step++) {
      const expected = [...TOKENS.map((token) => possible(found + token)), whole.test(found)];
      const allowed = await own.allowed();
      const label = (list) => list.flatMap((one, i) => (one ? [TOKENS[i] ?? "end"] : []));
      expect([found, label(allowed)]).toEqual([found, label(expected)]);
      const next = allowed.flatMap((one, i) => (one && TOKENS[i] && !(found && TOKENS[i].endsWith('"')) ? [i] : []));
      if (!next.length) break;
      random = (random * 48271) % 0x7fffffff;
      const token = next[random % next.length];
      own.accept(token);
      found += TOKENS[token];
    }
  }
});
