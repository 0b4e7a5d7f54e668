// Tests calls of the object `globalThis.glgpt` that wait while another call replaces the model, or disposes of the
// object.

import { signal } from "@preact/signals-core";
import { beforeEach, expect, it, vi } from "vitest";

vi.hoisted(() => Object.assign(globalThis, { location: new URL("https://page.example/") }));
vi.hoisted(() =>
  Object.assign(globalThis, { document: { baseURI: "https://page.example/", querySelector: () => null } }),
);
const loaded = vi.hoisted((): { model: unknown } => ({ model: null }));
vi.mock("../src/runtime/gl/device", () => ({
  Device: class {
    compiling = { value: {} };
    abandon = () => {};
  },
  ContextLost: class extends Error {},
}));
vi.mock("../src/runtime/engine/model", () => ({ Model: { load: () => Promise.resolve(loaded.model) } }));
vi.mock("../src/warm-up", () => ({
  WarmUp: class {
    atRest = () => Promise.resolve();
    now = () => new Promise(() => {}); // compiles shaders, without an end
  },
}));

import { Glgpt, type RareCode } from "../src/api";
import { CompletionError } from "../src/completion-request";
import type { Model } from "../src/runtime/engine/model";
import type { Opened } from "../src/runtime/engine/opened-model";
import type { ChatMessage } from "../src/runtime/chat/template";
import type { Queue } from "../src/runtime/gl/wait";
import { Training } from "../src/training/training";
import type { Store } from "../src/training/store";

/** Returns a model that encodes every message as the id `id` and generates the ids of its prompt. */
function model(id: number) {
  const generate = async function* (ids: readonly number[]) {
    await Promise.resolve();
    for (const id of ids) yield { id };
  };
  const rendered = (messages: readonly ChatMessage[]) => Promise.resolve(messages.map(() => id));
  return {
    generator: { generate },
    chatTemplate: { ids: rendered, mentions: () => false },
    tokenizer: null,
    manifest: { model: `model ${id}`, config: { n_positions: 64, vocab_size: 128 }, eos: [] },
    follow: () => {},
    rest: () => {},
    close: () => {},
    device: { release: () => {} },
    split: { close: vi.fn() },
    beside: (other: unknown) => Promise.resolve(other),
  };
}

const messages = [{ role: "user" as const, content: "a" }];
const [OWN, MINE, LATER] = [model(1), model(2), model(3)];
let training: Training;
let glgpt: Glgpt;
let prepared: () => void; // lets `use` continue
const trained = vi.fn();

/** Makes a session with this model the current one. */
function begin(own: object): void {
  const lend = (work: () => Promise<unknown>) => work();
  const session = { own, points: [], lend, close: () => Promise.resolve() };
  (training as unknown as { signals: { session: { value: unknown } } }).signals.session.value = session;
}

beforeEach(async () => {
  loaded.model = OWN;
  const store = { forgetRuns: () => Promise.resolve() } as unknown as Store;
  training = new Training(
    () => OWN as unknown as Model,
    store,
    () => Promise.resolve(),
  );
  trained.mockReset().mockImplementation(async ({ own }: { own: never }) => {
    await new Promise<void>((resolve) => (prepared = resolve));
    return own;
  });
  training.models.trained = trained;
  const calls = class {
    training = training;
    busy = false;
    close = () => Promise.resolve();
  };
  const opened = {
    loader: { manifest: {}, progress: signal({}), signal: new AbortController().signal, close: () => {} },
  } as unknown as Opened;
  glgpt = new Glgpt({ TrainingCalls: calls } as unknown as RareCode, opened);
  await glgpt.ready;
  begin(MINE);
});

it("encodes a chat with the vocabulary of the model that answers it", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const answered = glgpt.chat(messages);
  await new Promise((resolve) => setTimeout(resolve));
  prepared();
  await used;
  expect((await answered).ids).toEqual([2]);
});

it("streams chunks that name the model that answers", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const names = new Set<string>();
  const read = (async () => {
    for await (const chunk of await glgpt.chat.completions.create({ messages, stream: true })) {
      names.add(chunk.model);
      if (chunk.choices[0]?.delta.content) void glgpt.use("own"); // starts after the answer
    }
  })();
  await new Promise((resolve) => setTimeout(resolve));
  prepared();
  await Promise.all([used, read]);
  expect([...names]).toEqual(["model 2"]);
});

it("ends queued calls of generate and chat with no tokens when the object is disposed of", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const waiting = Promise.all([glgpt.generate({ ids: [1] }), glgpt.chat(messages)]);
  await new Promise((resolve) => setTimeout(resolve));
  const disposed = glgpt.dispose();
  prepared();
  await used;
  expect((await waiting).map(({ ids, stopped }) => [ids, stopped])).toEqual([
    [[], "aborted"],
    [[], "aborted"],
  ]);
  await disposed;
});

it("rejects a queued call of borrow when the object is disposed of", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const work = vi.fn(() => Promise.resolve());
  const refused = expect(glgpt.borrow(work)).rejects.toThrow(/was disposed of/);
  await new Promise((resolve) => setTimeout(resolve));
  const disposed = glgpt.dispose();
  prepared();
  await Promise.all([used, disposed, refused]);
  expect(work).not.toHaveBeenCalled();
});

it("rejects a running call of warmUp when the object is disposed of", async () => {
  const warmed = expect(glgpt.warmUp()).rejects.toThrow(/was disposed of/);
  await new Promise((resolve) => setTimeout(resolve));
  await glgpt.dispose();
  await warmed;
});

it("rejects a session's running prompt and all later calls when the object is disposed of", async () => {
  const session = await glgpt.languageModel();
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const running = session.prompt("a");
  const refused = expect(running).rejects.toMatchObject({ name: "AbortError" });
  await new Promise((resolve) => setTimeout(resolve));
  const disposed = glgpt.dispose();
  prepared();
  await Promise.all([used, disposed, refused]);
  expect(OWN.split.close).toHaveBeenCalled();
  const over = /was disposed of/;
  const later = [() => session.append("b"), () => session.clone(), () => session.measureInputUsage("b")];
  for (const call of later) await expect(call()).rejects.toThrow(over);
  await expect(glgpt.languageModel()).rejects.toThrow(over);
  const completion = glgpt.chat.completions.create({ messages });
  await expect(completion).rejects.toThrow(over);
  await expect(completion).rejects.not.toBeInstanceOf(CompletionError); // the request is valid
  expect(glgpt.polyfillLanguageModel()).toBe(true);
  const { LanguageModel } = globalThis as unknown as { LanguageModel: { availability: () => Promise<string> } };
  expect(await LanguageModel.availability()).toBe("unavailable");
});

it("makes no copy of a session if the session is destroyed or the copy is aborted before it begins", async () => {
  const stopped = new AbortController();
  const sessions = [await glgpt.languageModel(), await glgpt.languageModel()] as const;
  const copies = [sessions[0].clone(), sessions[1].clone({ signal: stopped.signal })];
  sessions[0].destroy();
  stopped.abort();
  for (const copy of copies) await expect(copy).rejects.toMatchObject({ name: "AbortError" });
});

it("encodes a request for a completion with the vocabulary of the model that answers it", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const answered = glgpt.chat.completions.create({ messages });
  await new Promise((resolve) => setTimeout(resolve));
  prepared();
  await used;
  const { choices, model, usage } = await answered;
  expect([choices[0]!.message.content, model, usage.prompt_tokens]).toEqual([" 2", "model 2", 1]);
});

it("refuses arguments of a wrong type", async () => {
  const wrong = "To be" as never;
  await expect(glgpt.use(wrong)).rejects.toThrow('use takes own, mine, file, not "To be".');
  await expect(glgpt.intervene(wrong)).rejects.toThrow('intervene takes a list of changes, not "To be".');
  for (const read of [glgpt.logits(wrong), glgpt.activation("embed", wrong), glgpt.logProbabilities(wrong)]) {
    await expect(read).rejects.toThrow('ids is "To be"; it must be a list of token ids.');
  }
  await expect(glgpt.generate({ ids: [1], alternatives: -1 })).rejects.toThrow("alternatives is -1");
});

it("does not select a training's model if the training is deleted while the model is prepared", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  const deleted = training.reset();
  await new Promise((resolve) => setTimeout(resolve));
  prepared();
  await Promise.allSettled([used, deleted]);
  await vi.waitFor(() => expect(glgpt.used).toBe("own"));
  expect(await glgpt.borrow((model) => Promise.resolve(model))).toBe(OWN);
});

it("selects the model of a new training after the training whose model was in use was replaced", async () => {
  const used = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  prepared();
  await used;
  trained.mockClear();
  const { queue } = training as unknown as { queue: Queue };
  void queue.run(async () => {
    await new Promise((resolve) => setTimeout(resolve, 5));
    begin(LATER);
  });
  const later = glgpt.use("mine");
  await vi.waitFor(() => expect(trained).toHaveBeenCalled());
  prepared();
  await later;
  await new Promise((resolve) => setTimeout(resolve));
  expect([glgpt.used, glgpt.model]).toEqual(["mine", LATER]);
});
