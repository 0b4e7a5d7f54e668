// Conversations with the model: their messages, which this browser stores, and the answers.

import { computed, effect, signal } from "@preact/signals";
import { CHAT_TOKENS } from "../../../runtime/chat/context";
import type { ChatMessage } from "../../../runtime/chat/template";
import { generation, type Tok } from "../../stores/generation";
import { param, parseText, parseWhole, unlessEmpty } from "../../stores/link";
import { engine, models } from "../../stores/model";
import { Conversations, type Conversation } from "./conversations";

const TITLE = 60; // characters of a conversation's title

/** An answer whose tokens are part of the text that the other views show. */
interface Answer {
  /** The index of its message. */
  message: number;
  /** The position of its first token in the text. */
  from: number;
}

class ChatStore {
  readonly conversations = new Conversations();
  readonly current = signal<Conversation>(blank());
  readonly draft = signal("");
  readonly system = signal("");
  readonly length = signal(CHAT_TOKENS);
  /** The message that is edited; null: none. */
  readonly editing = signal<number | null>(null);
  /** A notice or an error. */
  readonly status = signal("");
  /** True from a message on until its answer is complete. */
  readonly answering = signal(false);
  /** True if answers are shown as tokens. */
  readonly asTokens = signal(false);
  /** The latest answer, if the text still holds it. */
  private readonly answer = signal<Answer | null>(null);
  private prompt: number[] = []; // the ids that the latest answer follows

  /** The tokens of the latest answer, and the position of the first; null if the text is another one. */
  readonly written = computed<{ message: number; from: number; tokens: readonly Tok[] } | null>(() => {
    const answer = this.answer.value;
    const { value: tokens } = generation.tokens;
    if (!answer || tokens.length < answer.from) return null;
    if (this.prompt.some((id, i) => tokens[i]?.id !== id)) return null;
    return { ...answer, tokens: tokens.slice(answer.from) };
  });

  /** The share of the context that the conversation takes: tokens, and the maximum. */
  readonly context = computed(() => ({
    tokens: this.written.value ? generation.tokens.value.length : 0,
    limit: models.ready?.manifest.config.n_positions ?? 0,
  }));

  /** The messages of the conversation, after the system prompt. */
  get messages(): ChatMessage[] {
    const system = this.system.value;
    return [...(system.trim() ? [{ role: "system", content: system } as const] : []), ...this.current.value.messages];
  }

  constructor() {
    effect(() => {
      const { value: written } = this.written;
      const text = written?.tokens.map((tok) => tok.text).join("");
      if (!written || text === undefined) return;
      const { messages } = this.current.peek();
      const message = messages[written.message];
      if (message?.role !== "assistant" || message.content === text) return;
      this.change({ messages: messages.map((m, i) => (i === written.message ? { ...m, content: text } : m)) });
    });
  }

  /** Adds a message of the user and answers it. */
  async send(text: string): Promise<void> {
    if (!text.trim() || this.answering.value) return;
    const { messages, title } = this.current.value;
    this.draft.value = "";
    this.change({ messages: [...messages, { role: "user", content: text }], title: title || titleOf(text) });
    await this.reply();
  }

  /** Replaces the last answer by one with another seed. */
  async regenerate(): Promise<void> {
    await this.stop();
    generation.reseed();
    await this.again();
  }

  /** Replaces a message of the user and everything after it. */
  async edit(index: number, text: string): Promise<void> {
    await this.stop();
    this.editing.value = null;
    const { messages } = this.current.value;
    this.change({ messages: [...messages.slice(0, index), { role: "user", content: text }], dropped: 0 });
    await this.reply();
  }

  async stop(): Promise<void> {
    await generation.stop();
    while (this.answering.value) await new Promise((resolve) => setTimeout(resolve, 5));
  }

  /** Begins another conversation. */
  async begin(): Promise<void> {
    await this.stop();
    this.open(blank());
  }

  /** Shows a stored conversation. */
  async select(conversation: Conversation): Promise<void> {
    await this.stop();
    this.open(conversation);
  }

  async remove(conversation: Conversation): Promise<void> {
    await this.conversations.remove(conversation.id);
    if (conversation.id === this.current.value.id) await this.begin();
  }

  private open(conversation: Conversation): void {
    this.current.value = conversation;
    this.answer.value = this.editing.value = null;
    this.status.value = "";
  }

  /** Replaces the last answer by one with the same seed, as after a change of the model. */
  private async again(): Promise<void> {
    const { messages } = this.current.value;
    const end = messages.findLastIndex(({ role }) => role === "user");
    if (end < 0) return;
    this.change({ messages: messages.slice(0, end + 1) });
    await this.reply();
  }

  /** Answers the last message. */
  private async reply(): Promise<void> {
    this.answering.value = true;
    this.status.value = "";
    try {
      await generation.stop();
      const { messages, dropped } = this.current.value;
      const prompt = await engine().chatPrompt(this.messages, this.length.value, dropped);
      if (prompt.dropped > dropped) {
        this.status.value = `The context is full: the model no longer reads the ${prompt.dropped} oldest messages.`;
      }
      this.change({ messages: [...messages, { role: "assistant", content: "" }], dropped: prompt.dropped });
      this.prompt = prompt.ids;
      this.answer.value = { message: messages.length, from: prompt.ids.length };
      await generation.continueIds(prompt.ids, this.length.value, () => this.again());
    } catch (error) {
      this.status.value = error instanceof Error ? error.message : String(error);
    } finally {
      this.answering.value = false;
      await this.conversations.store(this.current.value);
    }
  }

  private change(fields: Partial<Conversation>): void {
    this.current.value = { ...this.current.value, ...fields, changed: Date.now() };
  }
}

function blank(): Conversation {
  return { id: crypto.randomUUID(), title: "", messages: [], dropped: 0, changed: Date.now() };
}

/** Returns the first line of a message, shortened. */
function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!;
  return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line;
}

export const chat = new ChatStore();

export const params = [
  param({
    key: "system",
    signal: chat.system,
    parse: parseText,
    format: unlessEmpty,
    default: () => "",
    history: false,
  }),
  param({
    key: "answer",
    signal: chat.length,
    parse: (text) => parseWhole(text) || undefined,
    format: (value) => (value === CHAT_TOKENS ? null : String(value)),
    default: () => CHAT_TOKENS,
    history: false,
  }),
  param({
    key: "speculate",
    signal: generation.speculate,
    parse: (text) => text === "1",
    format: (value) => (value ? "1" : null),
    default: () => false,
    history: false,
  }),
];
