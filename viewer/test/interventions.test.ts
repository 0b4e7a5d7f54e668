// Tests interventions (changes of the model): in which order and to which model the page applies them, and with which
// text it compares the changed model's text.

import { beforeEach, expect, it, vi } from "vitest";
import { signal } from "@preact/signals";
import type { Glgpt } from "../src/api";
import { generation } from "../src/app/stores/generation";
import { INTERVENTION_PARAMS, interventions } from "../src/app/stores/interventions";
import { models } from "../src/app/stores/model";
import { settings } from "../src/app/stores/settings";
import { MODEL, writing, type Options } from "./fake-model";

const [FIRST, SECOND] = ["h.0.attn.1", "h.1.mlp"];
const parts = signal<readonly string[]>([]);
const applied = {
  get parts() {
    return parts.value;
  },
};

beforeEach(async () => {
  vi.stubGlobal("requestAnimationFrame", () => 1);
  vi.stubGlobal("cancelAnimationFrame", () => {});
  await generation.stop();
  parts.value = [];
  const intervene = (asked: readonly string[]) => Promise.resolve(void (parts.value = asked));
  models.engine = {
    model: { ...MODEL, interventions: applied },
    generate: writing(7, " 7"),
    intervene,
  } as unknown as Glgpt;
  models.phase.value = "loading"; // the stores read the new model once the phase changes
  models.phase.value = "ready";
  settings.prompt.value = "1 2";
  interventions.parts.value = [];
});

const running = () => vi.waitFor(() => expect(generation.running.value).toBe(true));

it("applies both of two changes that are requested while a text is stopped", async () => {
  void generation.write();
  await running();
  void interventions.toggle(FIRST);
  void interventions.toggle(SECOND);
  await vi.waitFor(() => expect(applied.parts).toEqual([FIRST, SECOND]));
  expect(interventions.parts.value).toEqual([FIRST, SECOND]);
  await generation.stop();
});

it("applies the changes of a link that is opened while the first link's text is written", async () => {
  interventions.parts.value = [FIRST];
  void interventions.begin();
  await running();
  interventions.parts.value = [SECOND];
  await generation.stop();
  void interventions.begin();
  await running();
  await generation.stop();
  await vi.waitFor(() => expect(applied.parts).toEqual([SECOND]));
  expect(interventions.parts.value).toEqual([SECOND]);
});

it("undoes a change in progress when a link without changes is opened", async () => {
  let free = () => {};
  const busy = new Promise<void>((resolve) => (free = resolve));
  models.engine.intervene = (asked) => busy.then(() => void (parts.value = asked));
  void interventions.toggle(FIRST);
  await vi.waitFor(() => expect(interventions.busy.value).toBe(true));
  interventions.parts.value = []; // the link without changes
  const begun = interventions.begin();
  free();
  await running();
  await generation.stop();
  await begun;
  expect([applied.parts, interventions.busy.value]).toEqual([[], false]);
});

it("undoes a change that was still waiting when another model was selected", async () => {
  const changes: (readonly string[])[] = [];
  let free = () => {};
  const busy = new Promise<void>((resolve) => (free = resolve));
  models.engine.intervene = (parts) => busy.then(() => void changes.push(parts));
  void interventions.toggle(FIRST);
  await vi.waitFor(() => expect(interventions.parts.value).toEqual([FIRST]));
  await generation.stop();
  interventions.reset();
  free();
  await vi.waitFor(() => expect(changes).toEqual([[FIRST], []]));
  expect(interventions.parts.value).toEqual([]);
});

it("shows the changes of a model that is selected again", async () => {
  await interventions.set([FIRST], false);
  const use = (changed: object) => Object.assign(models.engine, { model: { ...MODEL, interventions: changed } });
  use({ parts: [] });
  interventions.reset();
  expect(interventions.parts.value).toEqual([]);
  use(applied);
  interventions.reset();
  expect(interventions.parts.value).toEqual([FIRST]);
});

it("compares no texts of different prompts or seeds", async () => {
  const generate = (options: Options) => {
    void generation.stop();
    return writing(7, " 7")(options);
  };
  Object.assign(models.engine, { generate });
  await generation.write();
  await interventions.set([FIRST]);
  expect(interventions.before.value?.map(({ id }) => id)).toEqual([1, 2, 7]);
  settings.seed.value++;
  expect(interventions.before.value).toBeNull();
  settings.seed.value--;
  settings.prompt.value = "3";
  await generation.write();
  expect(interventions.before.value).toBeNull();
  await interventions.set([FIRST, SECOND]);
  expect(interventions.before.value).toBeNull();
});

it("allows further changes after a failed change, whose message can be dismissed", async () => {
  models.engine.intervene = () => Promise.reject(new Error("The other text is empty."));
  const failed = interventions.set(["h.0.mlp@0@"]);
  await running();
  expect([interventions.status.value, interventions.busy.value]).toEqual(["The other text is empty.", false]);
  interventions.problem.value = "";
  expect(interventions.status.value).toBe("");
  models.engine.intervene = (asked) => Promise.resolve(void (parts.value = asked));
  await interventions.set([FIRST], false);
  await failed;
  expect(applied.parts).toEqual([FIRST]);
});

it.each([
  ["foo", "foo is not a part"],
  ["h.7.mlp*2", "h.7.mlp is not a part"],
  ["h.0.attn~love~hate~4", "h.0.attn is not a block"],
  ["h.0.mlp@3@To", "h.0.mlp is not a part"],
  ["h.0.attn:last", "last is not an attention pattern"],
])("refuses all changes of a link before a text is written if the model cannot make one: %s", async (word, message) => {
  const kinds = { pattern: "pattern", z: "heads", out: "rows" };
  const activations = Object.entries(kinds).map(([part, kind]) => [`h.0.attn.${part}`, { kind, heads: 2, width: 4 }]);
  const family = {
    blocks: ["h.{}."],
    stream: ["embed", "h.{}.post"],
    adds: [{ part: "attn", out: "attn.out" }],
    stages: [],
    names: [],
  };
  const manifest = { activations: new Map(activations as []), family, patterns: ["first"] };
  Object.assign(models.engine.model, { manifest });
  const open = (link: string) => {
    INTERVENTION_PARAMS.forEach((each) => each.read(new URLSearchParams(link)));
    interventions.fit();
  };
  open("interventions=h.0.attn.1,h.0.attn:first");
  expect([interventions.parts.value.length, interventions.status.value]).toEqual([2, ""]);
  await interventions.set(interventions.parts.value, false);
  open(`interventions=h.0.attn.1,${word}`);
  expect(interventions.parts.value).toEqual([]);
  expect(interventions.status.value).toContain(message);
  const begun = interventions.begin(); // also undoes the changes of the first link
  await running();
  expect([applied.parts, interventions.status.value]).toEqual([[], expect.stringContaining(message)]);
  await generation.stop();
  await begun;
});
