// Loads the library xgrammar in Node.

import { createRequire } from "node:module";
import { vi } from "vitest";

/** Returns the library's exports. */
export async function xgrammar() {
  vi.stubGlobal("require", createRequire(import.meta.url)); // in Node, the library reads these three
  vi.stubGlobal("__filename", import.meta.filename);
  vi.stubGlobal("__dirname", import.meta.dirname);
  await vi.importActual("@mlc-ai/web-xgrammar");
  return globalThis.xgrammar;
}
