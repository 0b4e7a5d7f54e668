// Conversations with the model: their messages, which this browser stores, and the answers.

import { computed, effect, signal } from "@preact/signals";
import { CHAT_TOKENS, reserved } from "../../../runtime/chat/context";
import type { ChatMessage } from "../../../runtime/chat/template";
import { generation, type Tok } from "../../stores/generation";
import { param, parseText, parseWhole, unlessEmpty } from "../../stores/link";
import { engine, models } from "../../stores/model";
import { settings } from "../../stores/settings";
import { reason } from "../../../runtime/gl/errors";
import { Queue } from "../../../runtime/gl/wait";
import { randomId } from "../../../runtime/io/random-id";
import { tabStorage } from "../../../runtime/io/storage";
import { Conversations, type Conversation } from "./conversations";
import { readSaved } from "./saved";

const TITLE = 60; // characters of a conversation's title
const DRAFT = `glgpt chat draft ${location.pathname}`; // the key of `ChatStore.draft`

/** An answer whose tokens are part of the text that the other views show. */
interface Answer {
  /** The index of its message. */
  message: number;
  /** The position of its first token in the text. */
  from: number;
}

class ChatStore {
  readonly conversations = new Conversations((...change) => this.follow(...change));
  readonly current = signal<Conversation>(blank(""));
  /** The message that the user is writing. A reload of the tab restores the message. */
  readonly draft = signal(tabStorage.readText(DRAFT));
  readonly system = signal("");
  readonly length = signal(CHAT_TOKENS);
  /** The index of the message that is edited, and the edited text; null: none. */
  readonly editing = signal<{ at: number; text: string } | null>(null);
  /** A notice or an error. */
  readonly status = signal("");
  /** True from when a message is sent until its answer is complete. */
  readonly answering = signal(false);
  /** True if answers are shown as tokens. */
  readonly asTokens = signal(false);
  /** The answer at the end of the text that the other views show: the latest answer, or one that was opened. */
  private readonly answer = signal<Answer | null>(null);
  private prompt: number[] = []; // token ids: the prompt of `answer`
  private opened = 0; // number of conversations that were opened
  private readonly stops = new Queue();
  private readonly saves = new Queue();
  /** The id of the current conversation if another tab changed it while this tab edits one of its messages. */
  private missed: string | null = null;
  /** By the index of an earlier answer: the tokens of its prompt and of the answer, which begins at `from`. */
  private readonly earlier = new Map<number, { from: number; tokens: readonly Tok[] }>();

  /** The tokens of the answer at the end of the text, and the position of the first one; null: no answer is there. */
  readonly written = computed<{ message: number; from: number; tokens: readonly Tok[] } | null>(() => {
    const answer = this.answer.value;
    const { value: tokens } = generation.tokens;
    if (!answer || tokens.length < answer.from) return null;
    if (this.prompt.some((id, i) => tokens[i]?.id !== id)) return null;
    return { ...answer, tokens: tokens.slice(answer.from) };
  });

  /** The number of tokens that the conversation takes (0: not known), and the number that the context holds. */
  readonly context = computed(() => ({
    tokens: this.written.value ? generation.tokens.value.length : 0,
    limit: models.ready?.manifest.config.n_positions ?? 0,
  }));

  /** A warning if the next message may not fit the context together with the oldest messages; "": no warning. */
  readonly warning = computed(() => {
    const { tokens, limit } = this.context.value;
    if (!tokens || this.answering.value || tokens + reserved(this.length.value, limit) <= limit + 1) return "";
    return "The context is nearly full: from the next message on, the model no longer reads the oldest messages.";
  });

  /** The messages of the conversation, with the system prompt first. */
  get messages(): ChatMessage[] {
    const system = this.system.value;
    return [...(system.trim() ? [{ role: "system", content: system } as const] : []), ...this.current.value.messages];
  }

  constructor() {
    void this.conversations.loaded.then(() => {
      const { shown } = this.conversations;
      if (shown && !this.current.value.messages.length) this.open(shown);
    });
    effect(() => tabStorage.writeText(DRAFT, this.draft.value));
    effect(() => {
      const { value: written } = this.written;
      const text = written?.tokens.map((tok) => tok.text).join("");
      if (!written || text === undefined || !this.answering.peek()) return; // no answer is being written
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

  /** Replaces the last answer with one from another seed. */
  async regenerate(): Promise<void> {
    await this.stop();
    settings.reseed();
    await this.again();
  }

  /** Replaces a message of the user by `text`, removes everything after it, and answers the new message. */
  async edit(index: number, text: string): Promise<void> {
    await this.stop();
    this.editing.value = this.missed = null;
    const before = this.current.value.messages.slice(0, index);
    this.forget(index);
    this.change({ messages: [...before, { role: "user", content: text }], dropped: 0 });
    if (!before.some(({ role }) => role === "user")) this.change({ title: titleOf(text) });
    await this.reply();
  }

  /** Ends the editing of a message without a change, and shows changes that another tab has made until then. */
  cancelEdit(): void {
    const { missed } = this;
    this.editing.value = this.missed = null;
    // read again, since this tab may have stored the conversation after the other tab's change
    if (missed !== null) void this.conversations.read(missed).then((found) => this.follow(missed, found));
  }

  /**
   * Generates the answer at the end of the text again, from a position of the text on. `instead` replaces the token at
   * this position. Removes the messages after the answer.
   */
  async continueAt(position: number, instead?: number): Promise<void> {
    await this.stop();
    await this.answered(async () => {
      const { messages } = this.current.value;
      const end = (this.answer.value?.message ?? messages.length) + 1;
      this.forget(end);
      if (end < messages.length) this.change({ messages: messages.slice(0, end) });
      await generation.go(this.space(position), position, instead);
      return position;
    });
  }

  /**
   * Shows an answer, as the tokens that the model wrote, in all views. An answer of a stored conversation is encoded
   * again. Returns false if an answer is being generated, if encoding failed, or if another conversation was opened or
   * an answer was begun before this call ended.
   */
  async inspect(message: number): Promise<boolean> {
    if (this.answering.value) return false;
    const { opened } = this;
    const replaced = () => this.opened !== opened || this.answering.value;
    if (this.written.value?.message === message) return true;
    this.status.value = "";
    try {
      this.keep();
      const { from, tokens } = this.earlier.get(message) ?? (await this.read(message));
      if (replaced()) return false;
      await generation.show(tokens);
      if (replaced()) return false;
      this.prompt = tokens.slice(0, from).map(({ id }) => id);
      this.answer.value = { message, from };
      return true;
    } catch (error) {
      this.status.value = reason(error);
      return false;
    }
  }

  /** Returns the tokens of an answer and of its prompt. */
  private async read(message: number): Promise<{ from: number; tokens: readonly Tok[] }> {
    const { messages } = this.current.value;
    const before = this.messages.slice(0, message - messages.length);
    const { ids } = await engine().chatPrompt(before, this.length.value);
    const answer = engine().model.tokenizer!.encodeOrdinary(messages[message]!.content);
    return { from: ids.length, tokens: generation.toksOf(ids, answer) };
  }

  /** Stores in `earlier` the tokens of the answer at the end of the text. */
  private keep(): void {
    const { value: written } = this.written;
    if (written) this.earlier.set(written.message, { from: written.from, tokens: generation.tokens.value });
  }

  /** Removes the tokens of answers from `earlier`, beginning with the message at index `from`. */
  private forget(from = 0): void {
    for (const message of this.earlier.keys()) if (message >= from) this.earlier.delete(message);
  }

  /**
   * Stops the answer, even if it has not begun. Calls resolve in order, each after the previous caller has continued.
   * If that caller began an answer, this call stops that answer too.
   */
  stop(): Promise<void> {
    return this.stops.run(async () => {
      while (this.answering.value) {
        await generation.stop();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    });
  }

  async begin(): Promise<void> {
    await this.stop();
    this.open(blank(this.system.value));
  }

  async select({ id }: Conversation): Promise<void> {
    await this.stop();
    const listed = this.conversations.all.value.find((each) => each.id === id);
    if (listed) this.open(listed);
    const found = await this.conversations.read(id); // a tab that was suspended may have missed a change
    if (found) this.follow(id, found);
  }

  /**
   * Called when another tab has stored the conversation `id`, or has removed it (`found` is undefined). If it is the
   * current conversation, shows the other tab's version, but not during an answer. While a message is edited, leaves
   * this to `cancelEdit`.
   */
  private follow(id: string, found: Conversation | undefined): void {
    if (id !== this.current.value.id || this.answering.value) return;
    if (this.editing.value) {
      this.missed = id;
      return;
    }
    if (this.saves.restingMs < 0) {
      // The running `save` may replace this conversation by a copy because of the other tab's change: wait for its end.
      void this.saves.idle.then(async () => this.follow(id, await this.conversations.read(id)));
      return;
    }
    if (found?.changed !== this.current.value.changed) this.open(found ?? blank(this.system.value));
  }

  async remove(conversation: Conversation): Promise<void> {
    const shown = conversation.id === this.current.value.id;
    if (shown) await this.begin(); // stops the answer, which stores the conversation: remove it afterwards
    await this.conversations.remove(conversation.id);
  }

  /** Adds saved conversations from files and shows the last one. A file of another kind only causes a message. */
  async openFiles(files: readonly File[]): Promise<void> {
    const problems: string[] = [];
    for (const file of files) {
      try {
        const found = await readSaved(file);
        const system = found[0]?.role === "system" || found[0]?.role === "developer" ? found.shift()!.content : "";
        await this.stop();
        const title = titleOf(found.find(({ role }) => role === "user")?.content ?? file.name);
        this.open({ ...blank(system), messages: found, title });
        await this.save();
      } catch (error) {
        problems.push(reason(error));
      }
    }
    if (problems.length) this.status.value = problems.join(" ");
  }

  /** Sets the system message of this conversation and of new ones. */
  async setSystem(text: string): Promise<void> {
    this.system.value = text;
    this.change({ system: text });
    if (!this.answering.value) await this.save(); // otherwise it is saved with the answer
  }

  /** Stores the conversation. If another tab has changed it, this tab continues with a copy. */
  private save(): Promise<void> {
    const { opened } = this;
    const { value: then } = this.current;
    return this.saves.run(async () => {
      const saved = this.opened === opened ? this.current.value : then;
      const id = await this.conversations.store(saved);
      if (id === saved.id || this.opened !== opened) return;
      this.current.value = { ...this.current.value, id };
      this.conversations.show(this.current.value);
      this.status.value = "Another tab has changed this conversation: it continues here as a copy.";
    });
  }

  private open(conversation: Conversation): void {
    this.opened++;
    this.current.value = conversation;
    this.system.value = conversation.system;
    this.answer.value = this.editing.value = this.missed = null;
    this.forget();
    this.status.value = "";
    this.conversations.open(conversation);
  }

  /** Replaces the last answer with one from the current seed and settings, for example after a change of the model. */
  private async again(): Promise<void> {
    const { messages } = this.current.value;
    const end = messages.findLastIndex(({ role }) => role === "user");
    if (end < 0) return;
    this.forget(end + 1);
    this.change({ messages: messages.slice(0, end + 1) });
    await this.reply();
  }

  /**
   * Generates the last answer again. If another conversation was opened since (`this.opened` is not `opened`), changes
   * only the text that the other views show.
   */
  private async repeated(opened: number): Promise<void> {
    if (this.opened === opened) return this.again();
    const { prompt } = this;
    await generation.continueIds(prompt, this.space(prompt.length), () => this.repeated(opened));
  }

  /** Answers the last message. */
  private async reply(): Promise<void> {
    await this.answered(async () => {
      await generation.stop();
      this.keep();
      const { opened } = this;
      const { messages, dropped } = this.current.value;
      this.forget(messages.length);
      this.conversations.show(this.current.value);
      void this.save(); // a reload during the answer keeps the message
      const prompt = await engine().chatPrompt(this.messages, this.length.value, dropped);
      if (prompt.dropped > dropped) {
        this.status.value = `The context is full: the model no longer reads the ${prompt.dropped} oldest messages.`;
      }
      const system = this.system.value;
      this.change({ messages: [...messages, { role: "assistant", content: "" }], dropped: prompt.dropped, system });
      this.prompt = prompt.ids;
      this.answer.value = { message: messages.length, from: prompt.ids.length };
      await generation.continueIds(prompt.ids, this.space(prompt.ids.length), () => this.repeated(opened));
      return prompt.ids.length;
    });
  }

  /** Runs `work`, which writes tokens and returns the position of the first one. Then stores the conversation. */
  private async answered(work: () => Promise<number>): Promise<void> {
    this.answering.value = true;
    this.status.value = "";
    try {
      const position = await work();
      this.status.value ||= this.ending(position);
    } catch (error) {
      this.status.value = reason(error);
    } finally {
      this.answering.value = false;
      await this.save();
    }
  }

  /** Returns the reason if the answer, which begins at this position, reached a limit or failed; otherwise "". */
  private ending(position: number): string {
    if (generation.ended.value === "failed") return generation.note.value;
    if (generation.ended.value !== "tokens") return "";
    const most = this.length.value;
    return this.space(position) < most
      ? `The answer ends here: the context of ${this.context.value.limit} tokens is full.`
      : `The answer reached its maximum of ${most} tokens. You can raise it in the settings.`;
  }

  /** Returns how many tokens an answer may have from this position of the text on. */
  private space(position: number): number {
    return Math.max(1, Math.min(this.length.value, this.context.value.limit - position + 1));
  }
  private change(fields: Partial<Conversation>): void {
    this.current.value = { ...this.current.value, ...fields, changed: Date.now() };
    const { value: editing } = this.editing;
    if (editing && editing.at >= this.current.value.messages.length) this.cancelEdit(); // its message was removed
  }
}

function blank(system: string): Conversation {
  return { id: randomId(), title: "", system, messages: [], dropped: 0, changed: Date.now() };
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
    default: () => chat.current.value.system,
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
    signal: settings.speculate,
    parse: (text) => text === "1",
    format: (value) => (value ? "1" : null),
    default: () => false,
    history: false,
  }),
];
