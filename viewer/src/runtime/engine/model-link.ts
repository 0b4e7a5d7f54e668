// Handles a link to this page with `?model=https://….gguf`: checks the address, and fetches the file when the visitor
// agrees.

import { PageError } from "../gl/errors";
import { fetchStream } from "../io/fetch-stream";

const MAX_FILE = 8e9; // bytes
const PIECE = 16 << 20; // bytes that are collected into a Blob, which the browser may move to the disk

/**
 * Returns the model's address in a query string, or null if the query string has no model. If the address is that of a
 * file's page at huggingface.co, returns the address of the file. Throws PageError if the address has a user or a
 * password, or uses a protocol other than https (for localhost, http is allowed too).
 */
export function modelLink(search: string): URL | null {
  const text = new URLSearchParams(search).get("model");
  if (text === null) return null;
  const url = URL.canParse(text) ? new URL(text) : null;
  const local = url?.protocol === "http:" && ["localhost", "127.0.0.1"].includes(url.hostname);
  if (!url || (url.protocol !== "https:" && !local) || url.username || url.password) {
    throw new PageError(
      `The link's model, ${JSON.stringify(text.slice(0, 200))}, is not an https address of a .gguf file.`,
    );
  }
  if (url.hostname === "huggingface.co") url.pathname = url.pathname.replace("/blob/", "/resolve/");
  return url;
}

/**
 * Throws PageError unless the page's content security policy allows a fetch from this address. `allowed`: the origins
 * that the policy lists; null: the page has no policy, so all origins are allowed.
 */
export function allowedLink(url: URL, allowed: readonly string[] | null): void {
  if (!allowed || url.origin === location.origin) return;
  const covers = (source: string) => {
    if (!source.includes("://*.")) return source === url.origin;
    const [scheme, rest] = source.split("://*.") as [string, string];
    return url.protocol === `${scheme}:` && url.host.endsWith(`.${rest}`);
  };
  if (allowed.some(covers)) return;
  throw new PageError(
    `This page may not fetch from ${url.host}, only from ${allowed.join(", ") || "its own server"}. ` +
      `Download the file and open it here, or export the page with --fetch-from ${url.origin}.`,
  );
}

/** Returns the decoded name of the file at an address, or "". A name with an invalid escape is returned undecoded. */
export function fileName(url: URL): string {
  const name = url.pathname.split("/").at(-1) ?? "";
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** Fetches the file. Collects its bytes in Blobs, which the browser can store outside the page's memory. */
export async function fetched(
  url: URL,
  signal: AbortSignal,
  onBytes: (done: number, total: number) => void,
): Promise<File> {
  const name = fileName(url) || "model.gguf";
  let blobs: Blob[] = [];
  let parts: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  for await (const { at, bytes } of fetchStream(url, { signal, onBytes, most: MAX_FILE })) {
    if (at === 0) [blobs, parts, size] = [[], [], 0];
    parts.push(bytes);
    size += bytes.length;
    if (size < PIECE) continue;
    blobs.push(new Blob(parts));
    [parts, size] = [[], 0];
  }
  return new File([...blobs, ...parts], name);
}
