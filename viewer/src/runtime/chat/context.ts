// Which messages of a conversation a model reads when they do not all fit its context.

import { PageError } from "../gl/errors";
import type { ChatMessage, ChatTemplate } from "./template";

export const CHAT_TOKENS = 512; // maximum tokens of an answer, if none are given; the same as on the desktop
const ANSWER_SHARE = 4; // an answer gets at least a quarter of the context, or its maximum length if that is less

/** The ids of a conversation up to where the answer begins, and how many of its oldest messages they leave out. */
export interface Fitted {
  ids: number[];
  dropped: number;
}

/** Returns how many tokens a prompt must leave of a context of `limit` tokens, for an answer of up to `tokens`. */
export function reserved(tokens: number, limit: number): number {
  return Math.min(tokens, Math.max(1, Math.floor(limit / ANSWER_SHARE)));
}

/** Returns the number of messages before the first turn: 1 if there is a system message. */
export function systems(messages: readonly ChatMessage[]): number {
  return messages[0]?.role === "system" || messages[0]?.role === "developer" ? 1 : 0;
}

/**
 * Encodes messages for an answer of up to `tokens` tokens, without the `dropped` oldest after the system message. If
 * they leave too little of a context of `limit` tokens, more of the oldest turns are left out, until the rest fills at
 * most half of it. Throws PageError if the last message alone does not fit. The desktop does the same.
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
