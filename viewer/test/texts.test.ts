// Tests which text the Train tab uses if the visitor chooses another text while one loads, types a text, reloads the
// page, or restores a training.

import { effect, signal } from "@preact/signals";
import { beforeEach, expect, it, vi } from "vitest";
import type { FetchOptions } from "../src/training/fetching";

vi.hoisted(() => Object.assign(globalThis, { location: new URL("https://page.example/") }));
vi.mock("../src/training/prepare", () => ({
  prepared: ([text]: string[]) => Promise.resolve({ text, removed: [], inspection: null }),
}));

import type { Glgpt } from "../src/api";
import { train } from "../src/app/features/train/store";
import { models } from "../src/app/stores/model";
import type { TrainingIndex } from "../src/runtime/engine/manifest";

const loaded = new Map<string, (text: string) => void>();
const kept = new Map<string, string>();

beforeEach(() => {
  kept.clear();
  vi.stubGlobal("sessionStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
  });
  const bundled = (name: string) => new Promise<string>((resolve) => loaded.set(name, resolve));
  const fetchText = (_: string, { signal }: FetchOptions) =>
    new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("Stopped."))));
  models.engine = { training: { offers: { bundled }, session: null }, fetchText } as unknown as Glgpt;
  const texts = ["slow", "quick"].map((name) => ({ name, about: `the ${name} set` }));
  train.index.value = { texts } as unknown as TrainingIndex;
});

/** Chooses a data set that loads until the test calls `loaded.get("slow")`. */
function chooseSlow(): Promise<void> {
  const chosen = train.takeSet("slow");
  expect(train.preparing.value).not.toBeNull(); // Start waits for the data set
  return chosen;
}

it("takes the data set that was chosen last, although an earlier one loaded later", async () => {
  const slow = chooseSlow();
  const quick = train.takeSet("quick");
  loaded.get("quick")!("quick text");
  await quick;
  loaded.get("slow")!("slow text");
  await slow;
  expect([train.text.value, train.source.value]).toEqual(["quick text", "the quick set"]);
  expect(train.preparing.value).toBeNull();
});

it("keeps a text that was typed while a data set loaded", async () => {
  const slow = chooseSlow();
  await train.put(["typed"], "");
  loaded.get("slow")!("slow text");
  await slow;
  expect(train.text.value).toBe("typed");
});

it("takes the data set that was chosen last, although files that were chosen earlier are read later", async () => {
  const file = new File([], "a.txt");
  let read: (bytes: ArrayBuffer) => void = () => {};
  file.arrayBuffer = () => new Promise((resolve) => (read = resolve));
  const taken = train.take([file]);
  const quick = train.takeSet("quick");
  loaded.get("quick")!("quick text");
  await quick;
  read(new TextEncoder().encode("from a file").buffer);
  await taken;
  expect(train.text.value).toBe("quick text");
});

it("continues a download when a file that is chosen cannot be read", async () => {
  let arrive: (found: { text: string; source: string }) => void = () => {};
  models.engine.fetchText = (_, options) =>
    new Promise((resolve, reject) => {
      arrive = resolve as typeof arrive;
      options?.signal?.addEventListener("abort", () => reject(new Error("Stopped.")));
    });
  const fetched = train.fetchFrom("https://texts.example/book.txt");
  await train.take([new File([new Uint8Array([0xff])], "a.bin")]);
  expect(train.problem.value).toBe("a.bin is not UTF-8 text.");
  arrive({ text: "a book", source: "texts.example" });
  await fetched;
  expect([train.text.value, train.source.value]).toEqual(["a book", "texts.example"]);
});

it("takes the files that were chosen last, although earlier ones are read later", async () => {
  const file = new File([], "a.txt");
  let read: (bytes: ArrayBuffer) => void = () => {};
  file.arrayBuffer = () => new Promise((resolve) => (read = resolve));
  const first = train.take([file]);
  await train.take([new File(["second"], "b.txt")]);
  read(new TextEncoder().encode("first").buffer);
  await first;
  expect(train.text.value).toBe("second");
});

it("ends a download when another text is chosen", async () => {
  const fetched = train.fetchFrom("https://texts.example/book.txt");
  await train.put(["typed"], "");
  await fetched;
  expect([train.text.value, train.fetching.value, train.problem.value]).toEqual(["typed", null, ""]);
});

const settings = { steps: 1, lr: 1, min_lr: 0, warmup: 0, schedule: "constant" };
const found = { sizes: [{ name: "nano", tokenizer: "bytes", settings }], texts: [{ name: "quick", about: "" }] };

it("loads the sizes when the tab is shown again, although the first attempt failed", async () => {
  const ready = vi.fn().mockRejectedValueOnce(new Error("offline")).mockResolvedValue(found);
  const offers = { ready, rate: () => Promise.resolve(0), bundled: () => Promise.resolve("quick text") };
  const restore = () => Promise.resolve(null);
  models.engine = { training: { offers, session: null, restore, renderer: "" } } as unknown as Glgpt;
  await train.open();
  expect(train.problem.value).toBe("offline");
  await train.open();
  expect([train.problem.value, train.preset.value]).toEqual(["", "nano"]);
});

it("loads the bundled text when the tab is shown again, although the first attempt failed", async () => {
  vi.resetModules();
  const { models } = await import("../src/app/stores/model");
  const { train } = await import("../src/app/features/train/store");
  const bundled = vi.fn().mockRejectedValueOnce(new Error("offline")).mockResolvedValue("quick text");
  const offers = { ready: () => Promise.resolve(found), rate: () => Promise.resolve(0), bundled };
  const training = { offers, session: null, restore: () => Promise.resolve(null), renderer: "" };
  models.engine = { training } as unknown as Glgpt;
  await train.open();
  expect([train.text.value, train.problem.value]).toEqual(["", "offline"]);
  await train.open();
  expect([train.text.value, train.problem.value]).toEqual(["quick text", ""]);
});

/** Opens the tab of a page whose bundled text cannot be loaded, and which has a training of an earlier visit. */
async function restored() {
  vi.resetModules();
  const { models } = await import("../src/app/stores/model");
  const { train } = await import("../src/app/features/train/store");
  const offer = { name: "nano", tokenizer: "bytes", recipe: { context: 2 } };
  const origin = { source: "a book", date: null, cleaned: ["headers"] };
  const plan = { offer, origin, text: "earlier", validation: [], rates: settings, seed: 0 };
  const session = signal<object | null>(null);
  const training = {
    offers: {
      ready: () => Promise.resolve(found),
      rate: () => Promise.resolve(0),
      bundled: () => Promise.reject(new Error("offline")),
    },
    get session() {
      return session.value;
    },
    restore: () => Promise.resolve((session.value = { plan, state: signal(null) })),
    renderer: "",
  };
  models.engine = { training } as unknown as Glgpt;
  await train.open();
  return { train, session };
}

it("shows a training of an earlier visit although the bundled text cannot be loaded", async () => {
  const { train, session } = await restored();
  expect(train.session.value).toBe(session.value);
  expect([train.text.value, train.problem.value]).toEqual(["earlier", "offline"]);
});

it("applies the clean-up steps of a restored training to the next text", async () => {
  const { train, session } = await restored();
  session.value = null;
  await train.take([new File(["next"], "next.txt")]);
  expect([train.text.value, train.cleaning.value]).toEqual(["next", ["headers"]]);
});

/** Returns the store of a page that is loaded again in this tab, before the Train tab is opened. */
async function loadedAgain() {
  vi.resetModules();
  const { models } = await import("../src/app/stores/model");
  const { train } = await import("../src/app/features/train/store");
  const bundled = () => Promise.resolve("quick text");
  const offers = { ready: () => Promise.resolve(found), rate: () => Promise.resolve(0), bundled };
  const training = { offers, session: null, restore: () => Promise.resolve(null), renderer: "" };
  models.engine = { training } as unknown as Glgpt;
  return train;
}

async function reloaded() {
  const train = await loadedAgain();
  await train.open();
  return train;
}

it("keeps a typed text when the tab is reloaded, until another text replaces it", async () => {
  await train.type("my own text");
  const again = await reloaded();
  expect([again.text.value, again.source.value, again.set.value]).toEqual(["my own text", "", ""]);
  await again.take([new File(["from a file"], "a.txt")]);
  expect((await reloaded()).text.value).toBe("quick text");
});

it("keeps the clean-up steps of a typed text when the tab is reloaded", async () => {
  await train.put(["my own text"], "", "", ["headers"]);
  expect((await reloaded()).cleaning.value).toEqual(["headers"]);
});

it("allows no change of the text and the settings while a training is created", async () => {
  let fail: (error: Error) => void = () => {};
  models.engine.training.create = () => new Promise((_resolve, reject) => (fail = reject));
  const started = train.start();
  await vi.waitFor(() => expect(train.fixed.value).toBe(true));
  fail(new Error("The text is too short."));
  await started;
  expect(train.fixed.value).toBe(false);
});

it("does not store a typed text that is too long for the browser's storage", async () => {
  await train.type("my own text");
  await train.type("x".repeat(1_000_001));
  expect((await reloaded()).text.value).toBe("quick text");
});

it("removes an error when a text is typed", async () => {
  await train.take([new File([""], "a.txt")]);
  expect(train.problem.value).toBe("a.txt is empty.");
  await train.type("my own text");
  expect(train.problem.value).toBe("");
});

it("stays at the Data step when a training cannot start with the text", async () => {
  train.stage.value = "data";
  models.engine.training.create = () => Promise.reject(new Error("The text is too short."));
  await train.start();
  await train.step();
  expect([train.stage.value, train.problem.value]).toEqual(["data", "The text is too short."]);
});

it("keeps a link's settings in the address while the page loads its own settings", async () => {
  const train = await loadedAgain();
  const { readParams, writeParams } = await import("../src/app/stores/link");
  readParams(train.link.all, new URLSearchParams("steps=20"));
  const written = new Set<string | undefined>();
  const unfollow = effect(() => void written.add(new Map(writeParams(train.link.all)).get("steps")));
  await train.open();
  unfollow();
  expect([...written]).toEqual(["20"]);
});
