// The conversations that this browser stores for a page. They never leave it, except as a file that the visitor saves.

import { signal } from "@preact/signals";
import { createStore, del, entries, set } from "idb-keyval";
import type { ChatMessage } from "../../../runtime/chat/template";
import { tabStorage } from "../../../runtime/io/storage";

export interface Conversation {
  id: string;
  /** The first line of its first message. */
  title: string;
  /** The text of its system message; "": none. */
  system: string;
  messages: ChatMessage[];
  /** The number of the oldest messages that no longer fit the context. */
  dropped: number;
  /** When it changed last, in milliseconds since 1970. */
  changed: number;
}

const PLACE = location.pathname; // exports on the same host have separate conversations
const CURRENT = `glgpt chat ${PLACE}`; // the id of the conversation that a tab shows

export class Conversations {
  /** All stored conversations, the latest first. */
  readonly all = signal<readonly Conversation[]>([]);
  /** Why conversations are not stored; "": they are. */
  readonly problem = signal("");
  /** Resolves when `all` has been read. */
  readonly loaded: Promise<void>;
  private readonly place = typeof indexedDB === "undefined" ? null : createStore("glgpt chats", "conversations");

  constructor() {
    this.loaded = this.attempt(async (place) => {
      const found = await entries<string, Conversation>(place);
      this.all.value = found
        .filter(([key]) => key.startsWith(`${PLACE} `))
        .map(([, conversation]) => conversation)
        .sort((a, b) => b.changed - a.changed);
    });
  }

  /** The conversation that the tab showed before it was reloaded; undefined: none. */
  get shown(): Conversation | undefined {
    const id = tabStorage.read(CURRENT);
    return this.all.value.find((each) => each.id === id);
  }

  /** Retains over a reload which conversation the tab shows. */
  show({ id }: Conversation): void {
    tabStorage.write(CURRENT, id);
  }

  async store(conversation: Conversation): Promise<void> {
    if (!conversation.messages.length) return;
    this.all.value = [conversation, ...this.all.value.filter(({ id }) => id !== conversation.id)];
    await this.attempt((place) => set(`${PLACE} ${conversation.id}`, conversation, place));
  }

  async remove(id: string): Promise<void> {
    this.all.value = this.all.value.filter((each) => each.id !== id);
    await this.attempt((place) => del(`${PLACE} ${id}`, place));
  }

  private async attempt(work: (place: NonNullable<typeof this.place>) => Promise<unknown>): Promise<void> {
    try {
      if (!this.place) throw new Error("it has no IndexedDB");
      await work(this.place);
      this.problem.value = "";
    } catch (error) {
      const why =
        error instanceof DOMException && error.name === "QuotaExceededError"
          ? "its storage is full"
          : "it gives this page no storage";
      this.problem.value = `This browser does not store the conversation: ${why}.`;
    }
  }
}
