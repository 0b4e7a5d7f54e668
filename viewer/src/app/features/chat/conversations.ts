// The conversations that this browser stores for a page. They never leave the browser, except in files that the visitor
// saves.

import { signal } from "@preact/signals";
import { createStore, del, entries, get, update, type UseStore } from "idb-keyval";
import type { ChatMessage } from "../../../runtime/chat/template";
import { randomId } from "../../../runtime/io/random-id";
import { tabStorage } from "../../../runtime/io/storage";

export interface Conversation {
  id: string;
  /**
   * The first line of the user's first message, shortened; "" before the first message. If an opened file has no
   * message of the user, the file's name.
   */
  title: string;
  /** The text of the system message; "": none. */
  system: string;
  messages: ChatMessage[];
  /** The number of oldest messages that no longer fit the context. */
  dropped: number;
  /** Time of the last change, in milliseconds since 1970. */
  changed: number;
}

const PLACE = location.pathname; // exports on the same host have separate conversations
const CURRENT = `glgpt chat ${PLACE}`; // the id of the conversation that a tab shows

type Found = Conversation | undefined;

/** Returns the channel to the other tabs; null if the browser gives the page none. */
function channel(): BroadcastChannel | null {
  try {
    return new BroadcastChannel(`glgpt chats ${PLACE}`);
  } catch {
    return null;
  }
}

export class Conversations {
  /** All stored conversations, the latest first. */
  readonly all = signal<readonly Conversation[]>([]);
  /** The reason why conversations are not stored; "" if they are stored. */
  readonly problem = signal("");
  /** Resolves when `all` has been read. */
  readonly loaded: Promise<void>;
  private readonly place = typeof indexedDB === "undefined" ? null : createStore("glgpt chats", "conversations");
  private readonly tabs = this.place && channel(); // carries the ids of conversations that change
  private readonly known = new Map<string, number>(); // by id: `changed` of the version that this tab opened or stored

  /** `changed` is called when another tab has stored a conversation, or has removed it (`found` is undefined). */
  constructor(changed: (id: string, found: Found) => void = () => {}) {
    this.loaded = this.attempt(async (place) => {
      const found = await entries<string, Conversation>(place);
      const stored = found.filter(([key]) => key.startsWith(`${PLACE} `)).map(([, conversation]) => conversation);
      this.list(stored.filter(({ id }) => !this.all.value.some((own) => own.id === id)));
    });
    if (!this.tabs) return;
    this.tabs.onmessage = ({ data: id }: MessageEvent<string>) =>
      void this.attempt(async (place) => changed(id, await this.readFrom(place, id)));
  }

  /** The conversation that the tab showed before it was reloaded; undefined: none. */
  get shown(): Found {
    const id = tabStorage.read(CURRENT);
    return this.all.value.find((each) => each.id === id);
  }

  /** Stores which conversation the tab shows, so that a reload shows it again. */
  show({ id }: Conversation): void {
    tabStorage.write(CURRENT, id);
  }

  /** Called when the tab shows a conversation. From then on, `store` may replace this conversation's stored version. */
  open(conversation: Conversation): void {
    this.known.set(conversation.id, conversation.changed);
    this.show(conversation);
  }

  /** Reads a conversation, which another tab may have changed; undefined: it is not stored. */
  async read(id: string): Promise<Found> {
    let found: Found;
    await this.attempt(async (place) => void (found = await this.readFrom(place, id)));
    return found;
  }

  private async readFrom(place: UseStore, id: string): Promise<Found> {
    const found = await get<Conversation>(`${PLACE} ${id}`, place);
    this.list(found ? [found] : [], id);
    return found;
  }

  /** Replaces the conversation with the id `replaced` in `all` by the conversations in `found`, if any. */
  private list(found: readonly Conversation[], replaced?: string): void {
    const others = this.all.value.filter(({ id }) => id !== replaced);
    this.all.value = [...found, ...others].sort((a, b) => b.changed - a.changed);
  }

  /**
   * Stores a conversation, unless it has no messages, and returns its id. If another tab has changed the conversation
   * since this tab opened or stored it, stores a copy and returns the id of the copy. Calls must not overlap.
   */
  async store(conversation: Conversation): Promise<string> {
    const { id, changed, messages } = conversation;
    if (!messages.length) return id;
    this.list([conversation], id);
    let isOurs = true as boolean; // false: another tab has changed the stored conversation
    await this.attempt(async (place) => {
      const next = (stored: Found) => {
        isOurs = !stored || stored.changed === this.known.get(id);
        return isOurs ? conversation : stored!;
      };
      await update<Conversation>(`${PLACE} ${id}`, next, place);
      if (!isOurs) return;
      this.known.set(id, changed);
      this.tabs?.postMessage(id);
    });
    if (isOurs) return id;
    await this.read(id);
    return this.store({ ...conversation, id: randomId() });
  }

  async remove(id: string): Promise<void> {
    this.list([], id);
    await this.attempt(async (place) => {
      await del(`${PLACE} ${id}`, place);
      this.tabs?.postMessage(id);
    });
  }

  private async attempt(work: (place: UseStore) => Promise<unknown>): Promise<void> {
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
