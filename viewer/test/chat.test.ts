// Tests that no message is lost or appears in the wrong conversation if the visitor opens another conversation, uses
// two tabs, edits a message or reloads the page.

import { afterEach, beforeEach, expect, it, vi } from "vitest";

vi.hoisted(() => Object.assign(globalThis, { location: new URL("https://page.example/") }));
const stored = vi.hoisted(() => new Map<string, Conversation>());
const tabs = vi.hoisted(() => new Set<{ onmessage: (event: { data: string }) => void }>());
vi.hoisted(() => Object.assign(globalThis, { indexedDB: {} }));
vi.hoisted(() => {
  globalThis.BroadcastChannel = class {
    onmessage = () => {};

    constructor() {
      tabs.add(this);
    }

    postMessage(data: string): void {
      for (const tab of tabs) if (tab !== this) setTimeout(() => tab.onmessage({ data }));
    }
  } as unknown as typeof BroadcastChannel;
});
vi.mock("idb-keyval", () => ({
  createStore: () => stored,
  entries: () => Promise.resolve([...stored]),
  get: (key: string) => Promise.resolve(stored.get(key)),
  update: (key: string, change: (value?: Conversation) => Conversation) =>
    Promise.resolve().then(() => stored.set(key, change(stored.get(key)))),
  del: (key: string) => Promise.resolve(stored.delete(key)),
}));

import type { Glgpt } from "../src/api";
import { Conversations, type Conversation } from "../src/app/features/chat/conversations";
import { chat, params } from "../src/app/features/chat/store";
import { generation } from "../src/app/stores/generation";
import { readParams } from "../src/app/stores/link";
import { models } from "../src/app/stores/model";
import { settings } from "../src/app/stores/settings";
import type { ChatMessage } from "../src/runtime/chat/template";
import { MODEL, writing } from "./fake-model";

const idsOf = (text: string) => Array.from(text, (letter) => letter.charCodeAt(0));
const textOf = (ids: readonly number[]) => String.fromCharCode(...ids);
const promptOf = (messages: readonly ChatMessage[]) =>
  Promise.resolve({ ids: idsOf(messages.map(({ content }) => content).join("/")), dropped: 0 });

function open(calls: Partial<Record<keyof Glgpt, unknown>> = {}): void {
  const tokenizer = { stream: () => ({ push: (id: number) => textOf([id]) }), label: String, encodeOrdinary: idsOf };
  const manifest = { config: { n_positions: 1024 }, prompts: [] };
  const model = { ...MODEL, tokenizer, manifest };
  models.engine = { model, chatPrompt: promptOf, generate: writing(33, "!"), ...calls } as unknown as Glgpt;
  models.phase.value = "ready";
}

/** Returns a conversation whose messages are `id` followed by each of `contents`. The user writes the first one. */
function conversation(id: string, ...contents: string[]): Conversation {
  const messages = contents.map((content, i): ChatMessage => ({
    role: i % 2 ? "assistant" : "user",
    content: `${id}${content}`,
  }));
  return { id, title: id, system: "", messages, dropped: 0, changed: 0 };
}

/** Stores a conversation in the list and selects it. */
async function select(found: Conversation): Promise<void> {
  chat.conversations.all.value = [found];
  stored.set(`/ ${found.id}`, found);
  await chat.select(found);
}

const contents = ({ messages }: Conversation) => messages.map(({ content }) => content);
const shown = () => contents(chat.current.value);

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", () => 1);
  vi.stubGlobal("cancelAnimationFrame", () => {});
  stored.clear();
  settings.tokens.value = 8;
  open();
});

afterEach(() => chat.stop());

it("edits the conversation in which the edit began, although another is selected while the edit waits", async () => {
  await select(conversation("a"));
  void chat.send("a1");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  vi.useFakeTimers();
  void chat.edit(0, "a0");
  await vi.advanceTimersByTimeAsync(3); // so that the selection's timers end before the edit's timers
  void select(conversation("b", "1", "2", "3"));
  await vi.advanceTimersByTimeAsync(100);
  vi.useRealTimers();
  expect(shown()).toEqual(["b1", "b2", "b3"]);
});

it("does not open an answer if another conversation is selected while the answer is encoded", async () => {
  let encoded = () => {};
  const chatPrompt = (messages: readonly ChatMessage[]) =>
    new Promise((resolve) => (encoded = () => resolve(promptOf(messages))));
  open({ chatPrompt });
  await select(conversation("a", "0", "1"));
  const opened = chat.inspect(1);
  await select(conversation("b", "0", "1"));
  encoded();
  expect(await opened).toBe(false);
  expect(chat.written.value).toBeNull();
});

it("changes no conversation when the text of another conversation is generated again", async () => {
  await select(conversation("a"));
  void chat.send("a0");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await select(conversation("b", "0", "1"));
  generation.tokens.value = [];
  const again = generation.again();
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await Promise.all([chat.stop(), generation.stop(), again]);
  expect(shown()).toEqual(["b0", "b1"]);
  expect(textOf(generation.ids.value)).toBe("a0!");
});

it("stores a message before its answer is complete, because a reload of the page ends the answer", async () => {
  await select(conversation("kept"));
  void chat.send("Who are you?");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  const [found] = [...stored.values()].filter(({ messages }) => messages.length === 1);
  expect(found?.messages).toEqual([{ role: "user", content: "Who are you?" }]);
});

it("keeps the messages that another tab adds to a conversation while an answer is written in this tab", async () => {
  const other = new Conversations();
  await select(conversation("a", "0", "1"));
  void chat.send("here");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  const found = (await other.read("a"))!;
  other.open(found);
  const messages = [...found.messages, { role: "assistant" as const, content: "there" }];
  await other.store({ ...found, messages, changed: found.changed + 1 });
  await chat.stop();
  await vi.waitFor(() => expect(stored.size).toBe(2));
  const both = [
    ["a0", "a1", "here", "there"],
    ["a0", "a1", "here", "!"],
  ];
  expect([...stored.values()].map(contents)).toEqual(both);
  expect(chat.conversations.all.value.map(contents)).toEqual(expect.arrayContaining(both));
  expect(chat.current.value.id).not.toBe("a");
  expect(chat.status.value).toContain("copy");
});

it("keeps the messages that another tab adds to a conversation while this tab stores the conversation", async () => {
  const other = new Conversations();
  await select(conversation("a", "0", "1"));
  other.open(chat.current.value);
  const store = chat.conversations.store.bind(chat.conversations);
  let go = () => {};
  const waiting = new Promise<void>((resolve) => (go = resolve));
  const held = vi.spyOn(chat.conversations, "store").mockImplementation((found) => waiting.then(() => store(found)));
  const saved = chat.setSystem("Be brief.");
  await other.store({ ...conversation("a", "0", "1", "2"), changed: 1 });
  await new Promise((resolve) => setTimeout(resolve, 20)); // until this tab is notified
  go();
  await saved;
  held.mockRestore();
  expect([...stored.values()].map((found) => [found.system, ...contents(found)])).toEqual([
    ["", "a0", "a1", "a2"],
    ["Be brief.", "a0", "a1"],
  ]);
});

it("shows the messages that another tab adds to the conversation, and continues after them", async () => {
  const other = new Conversations();
  await select(conversation("a", "0", "1"));
  other.open(chat.current.value);
  const { messages } = conversation("a", "0", "1", "2", "3");
  await other.store({ ...chat.current.value, messages, changed: 1 });
  await vi.waitFor(() => expect(shown()).toEqual(["a0", "a1", "a2", "a3"]));
  void chat.send("a4");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await chat.stop();
  await vi.waitFor(() => expect([...stored.values()].map(contents)).toEqual([["a0", "a1", "a2", "a3", "a4", "!"]]));
  await other.remove("a");
  await vi.waitFor(() => expect(shown()).toEqual([]));
});

it("keeps an unfinished answer when its conversation is selected again", async () => {
  await select(conversation("a"));
  void chat.send("a0");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await chat.select(chat.conversations.all.value[0]!);
  expect(shown()).toEqual(["a0", "!"]);
});

it("keeps the system prompt of the conversation if a link has none", async () => {
  await select({ ...conversation("a", "0"), system: "Be brief." });
  readParams(params, new URLSearchParams("view=text"));
  expect(chat.system.value).toBe("Be brief.");
});

/** Selects a conversation, begins to edit a message, and deletes the conversation in another tab. */
async function deletedWhileEdited() {
  const other = new Conversations();
  await select(conversation("a", "0", "1"));
  chat.editing.value = { at: 0, text: "edited" };
  await other.remove("a");
  await vi.waitFor(() => expect(chat.conversations.all.value).toEqual([]));
}

it("shows after a cancelled edit that another tab has deleted the conversation", async () => {
  await deletedWhileEdited();
  await new Promise((resolve) => setTimeout(resolve)); // until the tab has been notified
  expect(shown()).toEqual(["a0", "a1"]);
  chat.cancelEdit();
  await vi.waitFor(() => expect(shown()).toEqual([]));
});

it("keeps a conversation that this tab has stored again when an edit is cancelled", async () => {
  await deletedWhileEdited();
  await chat.setSystem("Be brief.");
  chat.cancelEdit();
  await new Promise((resolve) => setTimeout(resolve, 20)); // until the conversation has been read
  expect(shown()).toEqual(["a0", "a1"]);
});

it("changes a conversation's title only if its first message is edited", async () => {
  await select(conversation("a", "0", "1", "2", "3"));
  const { title } = chat.current.value;
  void chat.edit(2, "later");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  expect(chat.current.value.title).toBe(title);
  void chat.edit(0, "first line\nsecond line");
  await vi.waitFor(() => expect(chat.current.value.title).toBe("first line"));
});

it("ends the edit of a message that is removed", async () => {
  await select(conversation("a", "0", "1", "2", "3"));
  chat.editing.value = { at: 2, text: "edited" };
  await chat.inspect(1);
  void chat.continueAt(chat.written.value!.from);
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await chat.stop();
  expect([shown().length, chat.editing.value]).toEqual([2, null]);
});

it("keeps the message that is being written when the tab is reloaded", async () => {
  const kept = new Map<string, string>();
  vi.stubGlobal("sessionStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
  });
  chat.draft.value = "to be sent";
  vi.resetModules();
  const again = await import("../src/app/features/chat/store");
  expect(again.chat.draft.value).toBe("to be sent");
  again.chat.draft.value = "";
  expect([...kept.values()]).toContain('""');
  vi.unstubAllGlobals();
});
