// Tests limits on chat templates: hostile templates are refused with a reason, and the next request works.

import { afterEach, expect, test, vi } from "vitest";
import { rendered, type Rendered, type RenderJob } from "../src/runtime/chat/interpreter";
import { ChatTemplate, templateSources } from "../src/runtime/chat/template";
import { TemplateRenderer, type RenderWorker } from "../src/runtime/chat/renderer";

afterEach(() => {
  vi.useRealTimers();
});

const repeated = (times: number, statement: string, start: string) =>
  `{% set n = namespace(v=${start}) %}{% for i in range(${times}) %}{% set n.v = ${statement} %}{% endfor %}`;

const doubled = (times: number, block: string) =>
  `{% set n = namespace(v='ab') %}{% for i in range(${times}) %}${block}{% endfor %}`;
const FOUR_LISTS = ["a", "b", "c", "d"].map((x) => `{% set n.${x} = [${"m,".repeat(9)}] %}`).join("");
const LIST = "{% set b = range(99999) %}{% set n = namespace(v=[]) %}";

test.each([
  ["an exponential text", repeated(60, "n.v ~ n.v", "'ab'"), /parts, more than 1048576/],
  ["an exponential replacement", repeated(9, "n.v.replace('a', 'aaaaaaaaaa')", "'a'"), /parts, more than/],
  ["an exponential list", repeated(60, "n.v + n.v", "[1]"), /parts, more than/],
  ["texts that are kept", repeated(9999, "n.v + [(m ~ i) | upper]", "[]"), /too much memory/],
  ["an exponential block", doubled(60, "{% set x %}{{ n.v }}{{ n.v }}{% endset %}{% set n.v = x %}"), /parts, more/],
  ["blocks that are kept", `${LIST}{% for i in b %}{% set x %}{{ m }}{{ i }}{% endset %}{% endfor %}`, /too much mem/],
  ["a macro's output", "{% macro f() %}{{ m }}{{ m }}{{ m }}{% endmacro %}{% set x = f() %}", /parts, more than/],
  [
    "a call block's output",
    `{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}${"{{ m }}".repeat(3)}{% endcall %}`,
    /parts, more/,
  ],
  ["a filter's block", `{% filter upper %}${"{{ m }}".repeat(3)}{% endfilter %}`, /parts, more than/],
  ["slices that are kept", `${LIST}{% for i in b %}{% set n.v = [n.v, b[0:]] %}{% endfor %}`, /too much memory/],
  ["a list of shared lists", `${repeated(60, "[n.v, n.v]", "['a']")}{{ n.v | tojson }}`, /too much memory/],
  ["a list of long texts as a text", `{{ [${"m,".repeat(40)}] ~ '' }}`, /too much memory/],
  ["an object of shared objects", `${repeated(60, "{'a': n.v, 'b': n.v}", "{}")}{{ n.v }}`, /too much memory/],
  ["a joined list", `{{ [${"m,".repeat(9)}] | join }}`, /parts, more than/],
  ["pairs that are kept", `${LIST}{% for i in b %}{% set n.v = [n.v, d.items()] %}{% endfor %}`, /too much memory/],
  ["a namespace in a list", "{% set n = namespace() %}{% set n.v = [n] %}", /namespace in a list/],
  ["a namespace of long lists", `{% set n = namespace() %}${FOUR_LISTS}{{ n }}`, /too much memory/],
  ["a huge range", "{{ range(1000000000) | length }}", /list of 1000000000 parts/],
  ["a huge range backwards", "{{ range(0, -1000000000, -1) | length }}", /list of 1000000000 parts/],
  ["a range without end", "{{ range(0, 5, 0) }}", /a step other than 0/],
  ["a wide indentation", "{{ 'a\nb' | indent(90000000) }}", /parts, more than/],
  ["much output", "{% for i in range(9) %}{{ m }}{% endfor %}", /more than 1048576/],
  ["recursion", "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}", /nested too deeply/],
  ["nested expressions", `{{ ${"(".repeat(99999)}1${")".repeat(99999)} }}`, /nested too deeply/],
  ["long expressions", `{{ 1${" + 1".repeat(5000)} }}`, /nested too deeply/],
  ["a constructor", "{{ range.constructor('return 1')() }}", /not a function/],
  ["a list's constructor", "{{ [].constructor.constructor('return 1')() }}", /UndefinedValue|undefined/],
  ["a filter of JavaScript", "{{ 'a' | constructor }}", /filter: constructor/],
  ["half a pair", "{{ '\ud800' }}", /not valid Unicode/],
  ["a long error", "{{ raise_exception(m) }}", /^x{1000}$/],
])("%s is refused", (_, source, why) => {
  const d = Object.fromEntries(Array.from({ length: 999 }, (_, i) => [`k${i}`, i]));
  const variables = [{ m: "x".repeat(1 << 19), d }];
  expect(rendered({ source, variables })).toEqual({ failed: expect.stringMatching(why) as string });
});

test("a template cannot read or set the properties that all JavaScript objects have", () => {
  const names = ["constructor", "__proto__", "prototype", "toString"];
  const source = names.map((n) => `{{ m.${n} }}{{ m['${n}'] }}{{ 'a'.${n} }}{{ [].${n} }}`).join("") + "end";
  expect(rendered({ source, variables: [{ m: {} }] })).toEqual({ texts: ["end"] });
  const set = "{% set n = namespace() %}{% set n.__proto__ = 1 %}{% set n.polluted = 1 %}";
  expect(rendered({ source: set, variables: [{}] })).toEqual({ texts: [""] });
  expect(Object.hasOwn(Object.prototype, "polluted")).toBe(false);
});

test("the memory of a text in a namespace is counted once, however often a template reads the text", () => {
  const used = "{% for i in range(9999) %}{% if n.v is string %}{% endif %}{% endfor %}";
  const source = `{% set n = namespace(v=m[0:]) %}${used}`;
  expect(rendered({ source, variables: [{ m: "x".repeat(1 << 19) }] })).toEqual({ texts: [""] });
});

test("ranges, dates and constants are those of Jinja", () => {
  const ranges = "{{ range(3) }}{{ range(1, 7, 2) }}{{ range(3, 0, -1) }}{{ range(2, 1) }}";
  const source = `${ranges}{{ strftime_now('%Y') | length }}{{ none is none and True and not false }}`;
  expect(rendered({ source, variables: [{}] })).toEqual({ texts: ["[0, 1, 2][1, 3, 5][3, 2, 1][]4true"] });
});

test("a list of templates may have a separate template for messages with tools", () => {
  const named = (name: unknown, template: unknown) => ({ name, template });
  expect(templateSources([named("tool_use", "b"), named("default", "a")])).toEqual({ source: "a", tools: "b" });
  expect(templateSources([named("default", "a"), named("tool_use", "a")])).toEqual({ source: "a" });
  expect(templateSources("a")).toEqual({ source: "a" });
  for (const other of [null, undefined, "", 3, [], [null, 3], [named("tool_use", "b")], [named("default", 3)]]) {
    expect(templateSources(other)).toBeNull();
  }
});

type Said = Rendered | "ready" | "broken";

/** Returns a renderer and its workers. `answer(n)` returns the answer of worker n to a job; null: no answer. */
function workers(answer: (worker: number) => Said | null = () => null) {
  const started: { ended: boolean; say: (said: Said) => void }[] = [];
  const renderer = new TemplateRenderer(() => {
    const worker: RenderWorker = {
      onmessage: null,
      onerror: null,
      terminate: () => (state.ended = true),
      postMessage: () => {
        const said = answer(started.indexOf(state));
        if (said) state.say(said);
      },
    };
    const say = (data: Said) => {
      if (data === "broken") worker.onerror!.call({} as Worker, {} as ErrorEvent);
      else worker.onmessage!.call({} as Worker, new MessageEvent("message", { data }));
    };
    const state = { ended: false, say };
    started.push(state);
    return worker;
  });
  return { renderer, started };
}

const [A, B] = ["a", "b"].map((source) => ({ source, variables: [{}] })) as [RenderJob, RenderJob];

test("the worker of an endless template is ended, and the next template is rendered", async () => {
  vi.useFakeTimers();
  const { renderer, started } = workers((worker) => (worker ? { texts: ["b"] } : null));
  const endless = expect(renderer.render(A)).rejects.toThrow("more than 3 s");
  const next = renderer.render(B);
  await vi.advanceTimersByTimeAsync(0);
  started[0]!.say("ready");
  await vi.advanceTimersByTimeAsync(3000);
  await endless;
  started[1]!.say("ready");
  expect(await next).toEqual(["b"]);
  expect(started.map(({ ended }) => ended)).toEqual([true, false]);
});

test("the time limit of a template does not include the start of its worker", async () => {
  vi.useFakeTimers();
  const { renderer, started } = workers();
  const first = renderer.render(A);
  await vi.advanceTimersByTimeAsync(19_000);
  started[0]!.say("ready");
  await vi.advanceTimersByTimeAsync(2900);
  started[0]!.say({ texts: ["a"] });
  expect(await first).toEqual(["a"]);
  const endless = expect(renderer.render(B)).rejects.toThrow("rendering it took more than 3 s");
  await vi.advanceTimersByTimeAsync(3000);
  await endless;
});

test("a worker that has not started 20 s after `begin` is reported, even if a template was given later", async () => {
  vi.useFakeTimers();
  const { renderer, started } = workers(() => ({ texts: ["b"] }));
  renderer.begin();
  await vi.advanceTimersByTimeAsync(5000);
  const first = expect(renderer.render(A)).rejects.toThrow("not start within 20 s. Close other tabs and try again");
  await vi.advanceTimersByTimeAsync(15_000);
  await first;
  expect(started.map(({ ended }) => ended)).toEqual([true]);
  const next = renderer.render(B);
  await vi.advanceTimersByTimeAsync(0);
  started[1]!.say("ready");
  expect(await next).toEqual(["b"]);
});

test("a worker that cannot be loaded is reported at once, and the worker that `begin` starts is used", async () => {
  const { renderer, started } = workers(() => ({ texts: ["b"] }));
  const first = renderer.begin().render(A);
  started[0]!.say("broken");
  await expect(first).rejects.toThrow("cannot be loaded. Reload the page, whose policy must allow worker-src blob:");
  const next = renderer.begin().render(B);
  started[1]!.say("ready");
  expect(await next).toEqual(["b"]);
  expect(started.map(({ ended }) => ended)).toEqual([true, false]);
  const refused = new TemplateRenderer(() => {
    throw new Error("the policy refuses it");
  });
  await expect(refused.render(A)).rejects.toThrow("worker-src blob: (the policy refuses it)");
});

test("closing a renderer ends its worker and rejects the template that is being rendered", async () => {
  const { renderer, started } = workers();
  const first = renderer.begin().render(A);
  await new Promise((next) => setTimeout(next)); // until the job waits for the worker
  renderer.close();
  await expect(first).rejects.toThrow("its worker was closed");
  expect(started[0]!.ended).toBe(true);
});

test("the format of a single message is derived from a template", async () => {
  const format = (source: string) => {
    const render = (job: RenderJob) => Promise.resolve((rendered(job) as { texts: string[] }).texts);
    const data = { source, named: { bos: "<s>" }, special: { "<s>": 1, "<|user|>": 2 } };
    return new ChatTemplate(data, { encodeOrdinary: () => [] }, { render, close: () => {} }).pieces();
  };
  const message = "{{ messages[0].content }}";
  expect(await format(`{{ bos }}<|user|>\n${message}\nAnswer:`)).toEqual([1, 2, "\n", null, "\nAnswer:"]);
  await expect(format(message + message)).rejects.toThrow("message 2 times");
  await expect(format("no message")).rejects.toThrow("message 0 times");
});
