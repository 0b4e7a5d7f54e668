// Fetches a text that the visitor asks for, in several tries, each of which resumes where the last one was interrupted.

import { PageError } from "../runtime/gl/errors";
import { pause } from "../runtime/gl/wait";

/** Maximum bytes of a text: what works in a gigabyte of script memory. */
export const MAX_BYTES = 100_000_000;
const TRIES = 4;
const WAIT = 500; // ms before the second try, doubled for each further try
const STALL_TIMEOUT_MS = 20_000; // ms without a byte after which a try ends
const TIME_LIMIT_MS = 3_600_000; // for all tries together

export interface FetchOptions {
  /** `utf-8`, or another name that the browser decodes, such as `windows-1252`. */
  encoding?: string;
  /** Called with the number of bytes received and the total; 0: not known. */
  onBytes?: (done: number, total: number) => void;
  /** Called with the reason before each further try. */
  onRetry?: (why: string) => void;
  signal?: AbortSignal;
  most?: number;
  /** Milliseconds before the second try. */
  wait?: number;
  /** Milliseconds without a byte after which a try ends. */
  patience?: number;
  /** Milliseconds for all tries together. */
  limit?: number;
}

export interface FetchedText {
  text: string;
  /** Its address, the time of the fetch, and its size in bytes as received. */
  source: string;
  date: string;
  bytes: number;
}

/** An error that another try would not change. */
class Given extends PageError {}

/** Thrown if the bytes are not valid in the encoding. They are retained, so that another encoding needs no fetch. */
export class WrongEncoding extends Given {}

const mb = (bytes: number) => `${(bytes / 1e6).toFixed(bytes < 1e6 ? 2 : 1)} MB`;

/** Returns the URL of an address on the page's origin or in `origins` (null: any). Throws PageError for any other. */
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

/** The outcome of one try: whether no byte arrived for too long, and whether the server answered. */
interface Seen {
  stalled: boolean;
  answered: boolean;
}

/** Downloads the bytes of one address, over all tries. */
class Download {
  private chunks: Uint8Array<ArrayBuffer>[] = [];
  size = 0;
  private unanswered = 0; // consecutive tries without an answer after some bytes
  private mark = ""; // identifies this version of the text
  private total = 0; // bytes of the whole text; 0: not known
  private readonly deadline: number;

  constructor(
    private readonly url: URL,
    private readonly options: FetchOptions,
  ) {
    this.deadline = performance.now() + (options.limit ?? TIME_LIMIT_MS);
  }

  async attempt(): Promise<void> {
    const { signal, patience = STALL_TIMEOUT_MS } = this.options;
    const stop = new AbortController();
    const given = () => stop.abort();
    signal?.addEventListener("abort", given);
    const seen: Seen = { stalled: false, answered: false };
    let timer = 0;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(
        () => {
          seen.stalled = true;
          stop.abort();
        },
        Math.max(0, Math.min(patience, this.deadline - performance.now())),
      );
    };
    alive();
    try {
      await this.take(stop.signal, seen, alive);
    } catch (error) {
      if (signal?.aborted) throw new Given("Stopped.");
      if (performance.now() >= this.deadline) throw this.late();
      if (seen.stalled) throw new PageError(`no data arrived for ${patience / 1000} s`);
      if (error instanceof PageError) throw error;
      if (this.size && seen.answered) throw new PageError(`the connection broke after ${mb(this.size)}`);
      throw await this.unreachable();
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", given);
    }
  }

  private async take(signal: AbortSignal, seen: Seen, alive: () => void): Promise<void> {
    const headers: Record<string, string> = this.size && this.mark ? { Range: `bytes=${this.size}-` } : {};
    const response = await fetch(this.url, {
      headers,
      signal,
      credentials: "omit",
      referrerPolicy: "no-referrer",
      cache: "no-store",
    });
    alive();
    seen.answered = true;
    this.unanswered = 0;
    const { status } = response;
    const again = status === 206 && markOf(response) === this.mark;
    if (status === 206 && !again) throw this.fresh("the text has changed on the server");
    if (status === 416) throw this.fresh("the server cannot resume");
    if (!response.ok) {
      const said = `the server answers ${status}${response.statusText && ` ${response.statusText}`}`;
      throw status < 500 && status !== 408 && status !== 429
        ? new Given(`${this.url.href}: ${said}.`)
        : new PageError(said);
    }
    if (/^(text\/html|application\/xhtml\+xml)/.test(response.headers.get("Content-Type") ?? "")) throw this.page();
    const announced = response.headers.has("Content-Encoding")
      ? 0
      : Number(response.headers.get("Content-Length") ?? 0);
    if (again) this.checkRange(response.headers.get("Content-Range"), announced);
    else {
      this.forget();
      this.total = announced;
    }
    this.mark = markOf(response);
    const reader = response.body!.getReader();
    for (;;) {
      this.fits(Math.max(this.total, this.size));
      const { done, value } = await reader.read();
      if (done) break;
      alive();
      this.chunks.push(value);
      this.size += value.length;
      this.options.onBytes?.(this.size, Math.max(this.total, this.size));
    }
    if (this.size < this.total) throw new PageError(`it ended after ${mb(this.size)} of ${mb(this.total)}`);
    if (this.total && this.size > this.total) throw this.fresh(`it sent more than the announced ${mb(this.total)}`);
    if (!this.size) throw new Given(`${this.url.href} is empty.`);
  }

  /**
   * Checks that a partial answer continues the received bytes. Another origin may hide Content-Range from the page; the
   * answer must then be as long as the missing part.
   */
  private checkRange(text: string | null, length: number): void {
    const range = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/.exec(text ?? "");
    const [first, last, total] = range
      ? range.slice(1).map(Number)
      : [this.size, this.size + length - 1, this.size + length];
    const known = this.total || (Number.isNaN(total) ? last! + 1 : total!);
    const follows = first === this.size && last! + 1 === known && (Number.isNaN(total) || total === known);
    if (!follows || (text && !range)) throw this.fresh("the server did not send the requested bytes");
    this.total = known;
  }

  private late(): Given {
    return new Given(`${this.url.href} took longer than ${(this.options.limit ?? TIME_LIMIT_MS) / 60_000} minutes.`);
  }

  private fits(size: number): void {
    const { most = MAX_BYTES } = this.options;
    if (size > most) throw new Given(`${this.url.href} has ${mb(size)}; this page accepts up to ${mb(most)}.`);
  }

  private page(): Given {
    return new Given(`${this.url.href} is a web page, not a text; give the address of its plain text.`);
  }

  private fresh(why: string): PageError {
    this.forget();
    return new PageError(why);
  }

  private forget(): void {
    this.chunks = [];
    this.size = 0;
    this.mark = "";
    this.total = 0;
  }

  /** Returns why no answer came: no network, no server, or a server that does not allow other origins (CORS). */
  private async unreachable(): Promise<PageError> {
    if (this.size && ++this.unanswered > 1) this.forget(); // the server may refuse requests for a range
    if (!navigator.onLine) return new PageError("this device is offline");
    const { host } = this.url;
    if (await this.answers("cors")) return new PageError("the connection broke");
    if (this.url.origin === location.origin || !(await this.answers("no-cors"))) {
      return new PageError(
        `${host} cannot be reached: it is offline, redirects, or does not let other pages read it (CORS)`,
      );
    }
    return new Given(
      `${host} answers, but does not let other pages read it (CORS). Download the text and drop the file here.`,
    );
  }

  private async answers(mode: RequestMode): Promise<boolean> {
    const signal = AbortSignal.timeout(this.options.patience ?? STALL_TIMEOUT_MS);
    try {
      await fetch(this.url, { mode, method: "HEAD", credentials: "omit", cache: "no-store", signal });
      return true;
    } catch {
      return false;
    }
  }

  /** Takes over the bytes of an earlier fetch, to decode them in another encoding. */
  like({ chunks, size }: Download): void {
    this.chunks = chunks;
    this.size = size;
  }

  /** Decodes the text, with pauses in which the page can draw. */
  async decoded(): Promise<string> {
    const { encoding = "utf-8" } = this.options;
    const decoder = new TextDecoder(encoding, { fatal: true });
    const parts: string[] = [];
    for (const chunk of [...this.chunks, null]) {
      let part: string;
      try {
        part = chunk ? decoder.decode(chunk, { stream: true }) : decoder.decode();
      } catch {
        throw new WrongEncoding(
          `${this.url.href} is not ${encoding} text. Choose another encoding, such as Latin-1, and fetch it again.`,
        );
      }
      if (!parts.length && /^\s*<(!doctype\s+html|html)/i.test(part.slice(0, 1024))) throw this.page();
      if (part.includes("\0")) throw new Given(`${this.url.href} is not a text: it holds a zero byte.`);
      if (parts.push(part) % 64 === 0) await pause();
    }
    return parts.join("");
  }
}

/** Identifies the version of a text: its ETag if the server lets pages read it, else its date of change. */
function markOf(response: Response): string {
  return response.headers.get("ETag") ?? response.headers.get("Last-Modified") ?? "";
}

let held: { address: string; download: Download } | null = null; // bytes to decode in another encoding

/** Fetches a text. Throws PageError with a message for the user about the network, the server or the text. */
export async function fetchText(url: URL, options: FetchOptions = {}): Promise<FetchedText> {
  const { wait = WAIT, signal } = options;
  const earlier = held?.address === url.href && options.encoding ? held.download : null;
  held = null;
  const download = new Download(url, options);
  if (earlier) download.like(earlier);
  else {
    let most = 0; // most bytes received so far
    for (let tries = 1; ; tries++) {
      try {
        await download.attempt();
        break;
      } catch (error) {
        if (error instanceof Given || !(error instanceof PageError)) throw error;
        if (download.size > most) tries = 1; // it made progress
        most = Math.max(most, download.size);
        if (tries === TRIES)
          throw new PageError(`${url.href} cannot be fetched, tried ${TRIES} times: ${error.message}.`);
        options.onRetry?.(error.message);
        await waited(wait * 2 ** (tries - 1), signal);
      }
    }
  }
  try {
    const text = await download.decoded();
    return { text, source: url.href, date: new Date().toISOString().replace(/\.\d+Z$/, "Z"), bytes: download.size };
  } catch (error) {
    if (error instanceof WrongEncoding) held = { address: url.href, download };
    throw error;
  }
}

/** Resolves after `ms` milliseconds; rejects at once if `signal` aborts. */
function waited(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Given("Stopped."));
    });
  });
}
