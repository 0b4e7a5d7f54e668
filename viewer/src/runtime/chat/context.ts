// Chooses the messages that a model reads if a conversation does not fit the context of the model.

import { PageError } from "../gl/errors";
import type { ChatMessage, ChatTemplate } from "./template";

export const CHAT_TOKENS = 512; // default maximum tokens of an answer; the same as on the desktop
const ANSWER_SHARE = 4; // an answer gets at least 1/4 of the context, or its maximum length if this is shorter

/** The token ids of a conversation up to the beginning of the answer. `dropped`: number of oldest messages left out. */
export interface Fitted {
  ids: number[];
  dropped: number;
}

/** Returns how many of a context's `limit` tokens a prompt must leave for an answer of up to `tokens` tokens. */
export function reserved(tokens: number, limit: number): number {
  return Math.min(tokens, Math.max(1, Math.floor(limit / ANSWER_SHARE)));
}

/** Returns the number of messages before the first turn: 1 if there is a system or developer message, otherwise 0. */
export function systems(messages: readonly ChatMessage[]): number {
  return messages[0]?.role === "system" || messages[0]?.role === "developer" ? 1 : 0;
}

/**
 * Encodes messages for an answer of up to `tokens` tokens. Leaves out the `dropped` oldest messages after the system
 * message. If the others leave too little of the context (`limit` tokens) for the answer, leaves out more turns, oldest
 * first, until the messages fill at most half of the context or only the last turn is left. A turn begins with a user
 * message. Rejects with PageError if the system message and the last turn exceed the context. The desktop does the same
 * (glgpt/inference/conversation.py).
 */
export async function fit(
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  limit: number,
  tokens: number,
  dropped = 0,
): Promise<Fitted> {
  const start = systems(messages);
  const without = (count: number) => template.ids([...messages.slice(0, start), ...messages.slice(start + count)]);
  let ids = await without(dropped);
  if (ids.length + reserved(tokens, limit) <= limit + 1) return { ids, dropped };
  for (const [i, { role }] of messages.entries()) {
    if (role !== "user" || i - start <= dropped) continue;
    dropped = i - start;
    ids = await without(dropped);
    if (2 * ids.length <= limit) break;
  }
  if (ids.length > limit) {
    throw new PageError(
      `The message needs ${ids.length} tokens with its system message, and the context holds ${limit}: shorten it.`,
    );
  }
  return { ids, dropped };
}
