// Tests constraints: their grammars, the refused constraints, and the messages to the worker that follows a grammar. A
// fake worker answers them; a test in a browser runs the real worker.

import { expect, test, vi } from "vitest";
import { writtenBytes } from "../src/runtime/constraints/characters";
import { checkedConstraint, ConstraintError } from "../src/runtime/constraints/constraint";
import { constraintGrammar } from "../src/runtime/constraints/grammar";
import { Grammars, type GrammarWorker } from "../src/runtime/constraints/grammars";
import { integers, numbers } from "../src/runtime/constraints/numbers";
import { patternGrammar } from "../src/runtime/constraints/pattern";
import { Repetitions } from "../src/runtime/constraints/repetition";
import { Sampler } from "../src/runtime/engine/sampling";
import type { Answer, Job } from "../src/runtime/constraints/jobs";

/** Returns a function that checks a text against a grammar without rules, whose operators are those of RegExp. */
function checks(grammar: string): (text: string) => boolean {
  const text = grammar.replace(/"([^"]*)"|(\[[^\]]*\])|( +)/g, (whole, literal?: string, set?: string) => {
    if (literal !== undefined) return literal.replace(/[.+*?()[\]{}|]/g, "\\$&");
    return set ?? (whole.trim() ? whole : "");
  });
  const found = new RegExp(`^(?:${text})$`, "u");
  return (text) => found.test(writtenBytes(new TextEncoder().encode(text)));
}

test.each([
  [{}, integers, ["0", "-7", "120"], ["00", "1.5", "-", ""]],
  [{ minimum: -12, maximum: 140 }, integers, ["-12", "0", "99", "140"], ["-13", "141", "-0", "07"]],
  [{ exclusiveMinimum: 3 }, integers, ["4", "10", "999999"], ["3", "2", "-5"]],
  [{ minimum: 1.5, maximum: 3 }, integers, ["2", "3"], ["1", "4"]],
  [{ minimum: -3.5, maximum: 2 }, numbers, ["-3.50", "-3.4", "0.123", "2", "1.9"], ["-3.6", "2.1", "-4", "2.01"]],
  [{ exclusiveMinimum: 0, maximum: 0.7 }, numbers, ["0.01", "0.70"], ["0", "0.00", "0.71", "1"]],
])("numbers within %j", (bounds, grammar, valid, invalid) => {
  const fits = checks(grammar(bounds));
  expect([...valid, ...invalid].filter(fits)).toEqual(valid.filter(fits));
  for (const text of valid.filter((text) => !text.includes("3.4"))) expect(text).toSatisfy(fits);
});

test.each([
  [String.raw`^\d{2,3}(?:-[a-f]+)?$`, ["12", "123-af"], ["1", "12-", "12-g"]],
  [String.raw`yes|no?`, ["yes", "n", "no"], ["yesno", ""]],
  [String.raw`[^a-c\n]é\x41.`, ["déA!", "\u00fféA\u6f22"], ["aéA!", "déA\n"]],
  [String.raw`\w+\s[\d.]*\\\/`, ["a_1 3.5\\/"], ["a-1 3\\/"]],
])("the expression %s", (source, matching, others) => {
  const fits = checks(patternGrammar(source, new Repetitions()));
  for (const text of matching) expect(text).toSatisfy(fits);
  for (const text of others) expect(text).not.toSatisfy(fits);
});

test.each([
  ".",
  "\\s",
  "\\S",
  "[^\\s]",
  "[^\\S]",
  "\\w",
  "\\W",
  "[^\\d]",
  "[é-ߐ\u{ffff}-\u{10001}]",
  "[^a\x1f\ud7ff-\uf000]",
])("%s matches the same characters as in JavaScript", (source) => {
  const fits = checks(patternGrammar(source, new Repetitions()));
  const own = new RegExp(`^(?:${source})$`, "u");
  const edges = [0, 0x80, 0x800, 0xd7ff, 0xe000, 0xf000, 0xffff, 0x10000, 0x10fffe];
  const near = [...edges, 0xe9, 0x7d0, 0x2028, 0x3000, 0xfeff, 0x20000].flatMap((code) => [code - 1, code, code + 1]);
  const codes = [...Array.from({ length: 0x300 }, (_, i) => i), ...Array.from({ length: 0x100 }, (_, i) => 0x1fc0 + i)];
  for (const code of [...codes, 0x1680, ...near]) {
    if (code < 0 || (code >= 0xd800 && code < 0xe000)) continue;
    const text = String.fromCodePoint(code);
    expect(`${code.toString(16)} ${fits(text)}`).toBe(`${code.toString(16)} ${own.test(text)}`);
  }
});

test("a pattern for a JSON string matches escaped characters", () => {
  const fits = checks(patternGrammar('["\\\\a\\n]', new Repetitions(true)));
  expect(['\\"', "\\\\", "a", "\\n", '"', "\n"].map(fits)).toEqual(
    [true, true, true, true, false, false], // prettier-ignore
  );
});

const PAIR = { a: { type: "null" }, b: { type: "null" } };

test.each([
  [{ json_schema: { type: "integer", multipleOf: 3 } }, '"multipleOf" is not supported'],
  [{ json_schema: { properties: { a: { not: {} } } } }, 'at #/properties/a, the keyword "not"'],
  [{ json_schema: { type: "array", uniqueItems: true } }, '"uniqueItems"'],
  [{ json_schema: { type: "strin" } }, 'type is "strin"'],
  [{ json_schema: { $ref: "#/$defs/a" } }, "$ref"],
  [{ json_schema: { anyOf: [], type: "null" } }, '"type" is not supported together with anyOf'],
  [{ json_schema: { oneOf: [{ type: "number" }, { type: "integer" }] } }, "use anyOf"],
  [{ json_schema: { properties: PAIR, required: ["c"], additionalProperties: false } }, "required"],
  [{ json_schema: { type: "string", pattern: "(?=a)" } }, "at #/pattern, at character 2, look-around"],
  [{ json_schema: { type: "string", pattern: "a", minLength: 1 } }, "pattern is not supported together with minLength"],
  [{ json_schema: { type: "string", format: "iri" } }, '"iri"'],
  [{ json_schema: { type: "integer", minimum: 2, maximum: 1 } }, "no integer"],
  [{ json_schema: false }, "false"],
  [{ json_schema: "{" }, "not JSON"],
  [{ json_schema: { title: "x".repeat(1 << 19) } }, /^it has \d+ characters; at most/],
  [{ regex: String.raw`(a)\1` }, "back references"],
  [{ regex: String.raw`\bword` }, "word boundaries"],
  [{ regex: String.raw`\p{L}` }, "Unicode properties"],
  [{ regex: "a{2,1}" }, "is greater than its maximum"],
  [{ regex: "((a|bc){200}){200}" }, "at character 14, repetitions expand the expression to 120000 characters"],
  [{ regex: "(a{4000}b{4000}){3}" }, "repetitions expand the expression to 24000"],
  [{ regex: "a^" }, "the anchor ^"],
  [{ regex: "a)" }, "parenthesis"],
  [{ regex: /a/i }, "the flag i"],
  [{ regex: new RegExp("[[a-z]--[aeiou]]", "v") }, "the flag v"],
  [{ choice: [] as string[] }, "list of non-empty strings"],
])("%j is refused", (constraint, why) => {
  expect(() => constraintGrammar(checkedConstraint(constraint).constraint)).toThrow(why);
});

test("a constraint has exactly one field", () => {
  for (const wrong of [{}, { regex: "a", choice: ["a"] }, { json_object: false }, { other: 1 }, "json"]) {
    expect(() => checkedConstraint(wrong as object)).toThrow(ConstraintError);
  }
});

test("JSON has the spaces of json.dumps, and its objects have only the properties of the schema", () => {
  const grammar = constraintGrammar({ json_schema: JSON.stringify({ properties: PAIR, required: ["b"] }) }).text;
  expect(grammar).toContain('(", " rule_');
  expect(grammar.split("root ::= ")[1]).not.toContain("any");
  const found = constraintGrammar({ json_schema: '{"enum": [{"a": [1, "é"]}]}' }).text;
  expect(found.replace(/\\u([0-9a-f]{4})/g, (_, code: string) => String.fromCharCode(parseInt(code, 16)))).toContain(
    `{"a": [1, "${writtenBytes(new TextEncoder().encode("é"))}"]}`,
  );
});

test("a grammar is recursive if a part of its schema refers to itself", () => {
  const recursive = (schema: object) => constraintGrammar({ json_schema: JSON.stringify(schema) }).recursive;
  const tree = { properties: { a: { $ref: "#/$defs/b" } }, $defs: { b: { items: { $ref: "#/$defs/b" } } } };
  const own = [{ items: { $ref: "#" } }, { properties: { a: { $ref: "#" } } }, tree];
  expect(own.map(recursive)).toEqual([true, true, true]);
  const twice = { properties: { a: { $ref: "#/$defs/b" }, b: { $ref: "#/$defs/b" } }, $defs: { b: { type: "null" } } };
  expect([twice, {}, { type: "object" }].map(recursive)).toEqual([false, false, false]);
});

/** Replaces the worker. The test gives its answers. */
class FakeWorker implements GrammarWorker {
  onmessage: GrammarWorker["onmessage"] = null;
  onerror: GrammarWorker["onerror"] = null;
  readonly jobs: Job[] = [];
  ended = false;

  /** `answer` returns null for a job that does not end. */
  constructor(private readonly answer: (job: Job) => Answer | Error | null) {}

  postMessage(job: Job): void {
    this.jobs.push(job);
    queueMicrotask(() => {
      const answer = this.answer(job);
      if (!answer) return;
      if (!(answer instanceof Error)) this.onmessage?.call(this as never, { data: answer } as MessageEvent);
      else this.onerror?.call(this as never, { message: answer.message, preventDefault: () => {} } as ErrorEvent);
    });
  }

  terminate(): void {
    this.ended = true;
  }
}

const VOCABULARY = { size: 33, ends: [2], bytes: (id: number) => new TextEncoder().encode(`t${id}`) };

/** Returns a mask with the bits of these tokens. Token 33 stands for the end of the text. */
const bits = (...ids: readonly number[]) => {
  const found = new Uint32Array(2);
  for (const id of ids) found[id >>> 5]! |= 1 << (id & 31);
  return { bits: found, forced: "" };
};

test("a matcher returns the tokens that may follow, or null if the text can only end", async () => {
  const answers: Answer[] = [{ ready: true }, bits(0, 31, 32), bits(5, 33), bits(33)];
  const worker = new FakeWorker(() => answers.shift()!);
  const matcher = await new Grammars(VOCABULARY, async () => worker).matcher({ choice: ["a"] });
  const { vocabulary } = worker.jobs[0] as { vocabulary: string[] };
  expect([vocabulary[1], vocabulary[2], vocabulary.length, vocabulary.at(-1)]).toEqual(["t1", "", 34, ""]);
  const ids = async () => {
    const allowed = await matcher.allowed;
    return (
      allowed && { count: allowed.count, ids: Array.from({ length: 33 }, (_, i) => i).filter((i) => allowed.has(i)) }
    );
  };
  expect(await ids()).toEqual({ count: 3, ids: [0, 31, 32] });
  expect([...(await matcher.allowed)!.mask(1)]).toEqual([1, 0x8000, 1, 0]);
  matcher.accept(31);
  expect(await ids()).toEqual({ count: 2, ids: [2, 5] });
  matcher.accept(5);
  expect(await ids()).toBeNull();
});

test("checking guesses does not change the text, and a forced text has no incomplete character", async () => {
  const forced = writtenBytes([...new TextEncoder().encode('é": '), 0xc3]);
  const after = [bits(4), bits()]; // no token may follow the second guess: the text is then complete
  const answers: Answer[] = [{ ready: true }, { ...bits(0, 3), forced }, { after }, bits(7)];
  const worker = new FakeWorker(() => answers.shift()!);
  const matcher = await new Grammars(VOCABULARY, async () => worker).matcher({ choice: ["a"] });
  expect((await matcher.allowed)!.forced).toBe('é": ');
  expect((await matcher.after([3, 4])).map((each) => each && [each.count, each.has(4)])).toEqual([[1, true], null]);
  expect((await matcher.allowed)!.has(3)).toBe(true);
  matcher.accept(3, 4);
  expect((await matcher.allowed)!.has(7)).toBe(true);
  expect(worker.jobs.slice(-2)).toEqual([{ guesses: [3, 4] }, { tokens: [3, 4] }]);
});

test("a worker's answer about an abandoned text is not used for the next text", async () => {
  const worker = new FakeWorker((job) =>
    "vocabulary" in job ? { ready: true } : "tokens" in job ? bits(...job.tokens) : bits(1, 2),
  );
  const grammars = new Grammars(VOCABULARY, async () => worker);
  const first = await grammars.matcher({ regex: "a" });
  first.accept(9);
  const second = await grammars.matcher({ regex: "a" });
  expect([(await first.allowed)!.has(9), (await second.allowed)!.has(9)]).toEqual([true, false]);
});

test("a worker that fails is replaced, and the error has the reason", async () => {
  const fatal = (job: Job): Answer | Error =>
    "vocabulary" in job ? { ready: true } : "constraint" in job ? { failed: "out of memory" } : new Error("crashed");
  const workers: FakeWorker[] = [];
  const grammars = new Grammars(VOCABULARY, async () => {
    workers.push(new FakeWorker(workers.length ? (job) => ("constraint" in job ? bits(1) : fatal(job)) : fatal));
    return workers.at(-1)!;
  });
  await expect(grammars.matcher({ regex: "a" })).rejects.toThrow(
    "regular expression cannot be used to constrain text: out of",
  );
  expect(workers[0]!.ended).toBe(true);
  const matcher = await grammars.matcher({ regex: "a" });
  matcher.accept(1);
  await expect(matcher.allowed).rejects.toThrow("cannot be followed further: crashed");
  expect(workers).toHaveLength(2);
});

test("an abort ends a text at once, and a worker that compiles for too long is replaced", async () => {
  vi.useFakeTimers();
  try {
    const slow = (job: Job) => ("constraint" in job && job.constraint.regex === "slow" ? null : bits(1));
    const workers: FakeWorker[] = [];
    const grammars = new Grammars(VOCABULARY, async () => {
      workers.push(new FakeWorker(slow));
      return workers.at(-1)!;
    });
    const stopped = new AbortController();
    const failed = grammars.matcher({ regex: "slow" }, stopped.signal).catch((error: unknown) => error);
    await vi.advanceTimersByTimeAsync(1000);
    const waiting = grammars.matcher({ regex: "a" }); // a request for another text
    stopped.abort("stop");
    expect(await failed).toBe("stop");
    await vi.advanceTimersByTimeAsync(1000);
    const matcher = await waiting;
    expect(workers.map(({ ended }) => ended)).toEqual([true, false]);
    expect((await matcher.allowed)!.count).toBe(1);
    const late = expect(grammars.matcher({ regex: "slow" })).rejects.toThrow("more than 20 s to compile; simplify it");
    await vi.advanceTimersByTimeAsync(20_000);
    await late;
    expect(workers[1]!.ended).toBe(true);
    const left = new AbortController();
    const quick = await grammars.matcher({ regex: "b" }, left.signal);
    quick.accept(1);
    left.abort();
    expect(await quick.allowed).toBeNull();
    await vi.advanceTimersByTimeAsync(1000);
    expect(workers).toHaveLength(3); // the last worker's job ended in time
    expect(workers[2]!.ended).toBe(false);
  } finally {
    vi.useRealTimers();
  }
});

test("an error names the missing source if the page's content security policy forbids WebAssembly", async () => {
  const worker = new FakeWorker(() => ({ failed: "Aborted(CompileError: violates unsafe-eval)" }));
  const grammars = new Grammars(VOCABULARY, async () => worker);
  await expect(grammars.matcher({ json_object: true })).rejects.toThrow("Add 'wasm-unsafe-eval'");
});

test("the sampler on the CPU draws only allowed tokens, each in proportion to its probability", () => {
  const logits = Float32Array.from([9, 1, 2, 0, 9]);
  const allowed = { count: 3, has: (id: number) => id >= 1 && id <= 3 };
  const sampler = new Sampler({ temperature: 1, seed: 3 });
  const masked = sampler.adjusted(logits, [], allowed);
  const counts = [0, 0, 0, 0, 0];
  for (let step = 0; step < 3000; step++) counts[sampler.draw(masked, step, allowed).id]!++;
  const total = Math.E + Math.E ** 2 + 1;
  [0, Math.E, Math.E ** 2, 1, 0].forEach((weight, id) => {
    const due = (weight / total) * 3000;
    expect(Math.abs(counts[id]! - due)).toBeLessThanOrEqual(5 * Math.sqrt(due));
  });
  expect(sampler.scalars(0, 5, allowed)["top_k"]).toBe(0);
  expect(new Sampler({ topK: 4 }).scalars(0, 5, allowed)["top_k"]).toBe(3);
});
