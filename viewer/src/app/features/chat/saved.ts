// Writes conversations to files and reads them, in the format of `glgpt chat`.

import { checkedMessages, type ChatMessage } from "../../../runtime/chat/template";
import { PageError } from "../../../runtime/gl/errors";

const VERSION = 1; // the same as on the desktop
const MAX_BYTES = 8 << 20;

/** Returns the text of a file with these messages, which include the system message. */
export function savedText(model: string, messages: readonly ChatMessage[]): string {
  return `${JSON.stringify({ version: VERSION, model, messages }, null, 1)}\n`;
}

/** Returns the messages in a saved conversation. Rejects with PageError, which names the file, for other files. */
export async function readSaved(file: File): Promise<ChatMessage[]> {
  const fail = (why: string) => new PageError(`${file.name}: ${why} Nothing was changed.`);
  const form = "it is not a saved conversation; choose a JSON file from Save or from glgpt chat’s /save.";
  if (file.size > MAX_BYTES) throw fail(`it has ${file.size >> 20} MiB; the maximum is ${MAX_BYTES >> 20} MiB.`);
  let found: unknown;
  try {
    found = JSON.parse(await file.text());
  } catch (error) {
    throw fail(error instanceof SyntaxError ? form : "the browser cannot read it.");
  }
  const { version, messages } = Object(found) as Record<string, unknown>;
  if (version === undefined || messages === undefined) throw fail(form);
  if (version !== VERSION) throw fail(`it is version ${JSON.stringify(version)} of a conversation, not ${VERSION}.`);
  try {
    return checkedMessages(messages);
  } catch (error) {
    throw error instanceof PageError ? fail(error.message) : error;
  }
}
