// Tests that each conversation keeps its own messages while another one is opened.

import { afterEach, beforeEach, expect, it, vi } from "vitest";

vi.hoisted(() => Object.assign(globalThis, { location: new URL("https://page.example/") }));
const stored = vi.hoisted(() => new Map<string, { messages: object[] }>());
vi.hoisted(() => Object.assign(globalThis, { indexedDB: {} }));
vi.mock("idb-keyval", () => ({
  createStore: () => stored,
  entries: () => Promise.resolve([]),
  set: (key: string, value: { messages: object[] }) => Promise.resolve(stored.set(key, value)),
  del: (key: string) => Promise.resolve(stored.delete(key)),
}));

import type { Glgpt } from "../src/api";
import type { Conversation } from "../src/app/features/chat/conversations";
import { chat } from "../src/app/features/chat/store";
import { generation } from "../src/app/stores/generation";
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

/** Returns a conversation of these messages, of which the first is the user's. */
function conversation(id: string, ...contents: string[]): Conversation {
  const messages = contents.map((content, i): ChatMessage => ({
    role: i % 2 ? "assistant" : "user",
    content: `${id}${content}`,
  }));
  return { id, title: id, system: "", messages, dropped: 0, changed: 0 };
}

const shown = () => chat.current.value.messages.map(({ content }) => content);

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", () => 1);
  vi.stubGlobal("cancelAnimationFrame", () => {});
  settings.tokens.value = 8;
  open();
});

afterEach(() => chat.stop());

it("edits the conversation in which the edit began, although another was selected during the wait", async () => {
  await chat.select(conversation("a"));
  void chat.send("a1");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  vi.useFakeTimers();
  void chat.edit(0, "a0");
  await vi.advanceTimersByTimeAsync(3); // the selection's timers end before those of the edit
  void chat.select(conversation("b", "1", "2", "3"));
  await vi.advanceTimersByTimeAsync(100);
  vi.useRealTimers();
  expect(shown()).toEqual(["b1", "b2", "b3"]);
});

it("opens no answer of a conversation that another one replaced during the wait", async () => {
  let encoded = () => {};
  const chatPrompt = (messages: readonly ChatMessage[]) =>
    new Promise((resolve) => (encoded = () => resolve(promptOf(messages))));
  open({ chatPrompt });
  await chat.select(conversation("a", "0", "1"));
  const opened = chat.inspect(1);
  await chat.select(conversation("b", "0", "1"));
  encoded();
  expect(await opened).toBe(false);
  expect(chat.written.value).toBeNull();
});

it("keeps the answer of another conversation when the text is generated again", async () => {
  await chat.select(conversation("a"));
  void chat.send("a0");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await chat.select(conversation("b", "0", "1"));
  generation.tokens.value = [];
  const again = generation.again();
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  await Promise.all([chat.stop(), generation.stop(), again]);
  expect(shown()).toEqual(["b0", "b1"]);
  expect(textOf(generation.ids.value)).toBe("a0!");
});

it("stores a message before its answer is complete, which a reload of the page cuts off", async () => {
  await chat.select(conversation("kept"));
  void chat.send("Who are you?");
  await vi.waitFor(() => expect(generation.running.value).toBe(true));
  const [found] = [...stored.values()].filter(({ messages }) => messages.length === 1);
  expect(found?.messages).toEqual([{ role: "user", content: "Who are you?" }]);
});
