// Fetches a text from an address that the visitor gives, and decodes it.

import { fetchStream, type StreamOptions } from "../runtime/io/fetch-stream";
import { PageError } from "../runtime/gl/errors";
import { pause } from "../runtime/gl/wait";

/** Maximum bytes of a text. A page with a gigabyte of script memory can still process a text of this size. */
export const MAX_BYTES = 100_000_000;
const TIME_LIMIT_MS = 3_600_000; // maximum ms for all tries together

export interface FetchOptions extends Pick<
  StreamOptions,
  "onBytes" | "onRetry" | "signal" | "most" | "wait" | "patience" | "limit"
> {
  /** `utf-8`, or another name that the browser decodes, such as `windows-1252`. */
  encoding?: string;
}

export interface FetchedText {
  text: string;
  /** The text's address, the time of the fetch, and the number of bytes received. */
  source: string;
  date: string;
  bytes: number;
}

/** Thrown if bytes are invalid in the encoding of a text. */
export class WrongEncoding extends PageError {}

/**
 * Returns the URL of an address. Throws PageError unless this is a web address whose origin is the page's or one of
 * `origins` (null: any origin).
 */
export function allowed(address: string, origins: readonly string[] | null): URL {
  let url: URL;
  try {
    url = new URL(address.trim());
  } catch {
    throw new PageError(`${address.trim() || "This"} is not an address; it must begin with https://.`);
  }
  if (!/^https?:$/.test(url.protocol)) {
    throw new PageError(`${url.href} is not a web address; it must begin with https://.`);
  }
  if (!origins || url.origin === location.origin || origins.includes(url.origin)) return url;
  throw new PageError(
    `This page may only fetch from ${[...origins, "its own address"].join(", ")}, not from ${url.origin}. ` +
      `Download the text and drop the file here, or export the page with --fetch-from ${url.origin}.`,
  );
}

/** The bytes of a text. */
type Chunks = readonly Uint8Array<ArrayBuffer>[];

async function download(url: URL, options: FetchOptions): Promise<Chunks> {
  let chunks: Uint8Array<ArrayBuffer>[] = [];
  const parts = fetchStream(url, {
    most: MAX_BYTES,
    limit: TIME_LIMIT_MS,
    ...options,
    request: { credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store" },
    accept: ({ headers }) => {
      if (/^(text\/html|application\/xhtml\+xml)/.test(headers.get("Content-Type") ?? "")) throw webPage(url);
    },
  });
  for await (const { at, bytes } of parts) {
    if (!at) chunks = [];
    chunks.push(bytes);
  }
  if (!chunks.length) throw new PageError(`${url.href} is empty.`);
  return chunks;
}

const webPage = ({ href }: URL) =>
  new PageError(`${href} is a web page, not a text; give the address of its plain text.`);

/** Decodes a text, with pauses in which the page can draw. */
async function decoded(url: URL, chunks: Chunks, encoding: string): Promise<string> {
  const decoder = new TextDecoder(encoding, { fatal: true });
  const parts: string[] = [];
  for (const chunk of [...chunks, null]) {
    let part: string;
    try {
      part = chunk ? decoder.decode(chunk, { stream: true }) : decoder.decode();
    } catch {
      throw new WrongEncoding(
        `${url.href} is not ${encoding} text. Choose another encoding, such as Latin-1, and fetch it again.`,
      );
    }
    if (!parts.length && /^\s*<(!doctype\s+html|html)/i.test(part.slice(0, 1024))) throw webPage(url);
    if (part.includes("\0")) throw new PageError(`${url.href} is not a text: it holds a zero byte.`);
    if (parts.push(part) % 64 === 0) await pause();
  }
  return parts.join("");
}

/** Fetches texts. Keeps the bytes of a text that is invalid in its encoding, to decode them in another encoding. */
export class TextFetcher {
  private held: { address: string; chunks: Chunks } | null = null; // bytes to decode in another encoding

  /** Fetches a text. Throws PageError with a message for the user about the network, the server or the text. */
  async fetch(url: URL, options: FetchOptions = {}): Promise<FetchedText> {
    const { held } = this;
    const earlier = held?.address === url.href && options.encoding ? held.chunks : null;
    this.held = null;
    const chunks = earlier ?? (await download(url, options));
    try {
      const text = await decoded(url, chunks, options.encoding ?? "utf-8");
      const bytes = chunks.reduce((sum, chunk) => sum + chunk.length, 0);
      return { text, source: url.href, date: new Date().toISOString().replace(/\.\d+Z$/, "Z"), bytes };
    } catch (error) {
      if (error instanceof WrongEncoding) this.held = { address: url.href, chunks };
      throw error;
    }
  }
}
