// Fetches a file part by part. After an interruption, another try resumes where the previous try ended.

import { PageError } from "../gl/errors";

const TRIES = 4;
const WAIT_MS = 500; // ms before the second try; doubled for each further try
const STALL_TIMEOUT_MS = 20_000; // ms without a byte after which a try ends

export interface StreamOptions {
  /**
   * Called with the number of bytes received and the total number of bytes. If the total is not known, both are equal.
   */
  onBytes?: (done: number, total: number) => void;
  /** Called before each further try, with the reason why the previous one ended. */
  onRetry?: (why: string) => void;
  signal?: AbortSignal | undefined;
  /** Maximum number of consecutive tries without a new byte. */
  tries?: number;
  /** Milliseconds before the second try. */
  wait?: number;
  /** Milliseconds without a byte after which a try ends. */
  patience?: number;
  /** Maximum milliseconds of all tries together. */
  limit?: number;
  /** Maximum bytes of the file. */
  most?: number;
  /** Further options of each request, such as its cache mode. */
  request?: RequestInit;
  /** Throws an error if the answer is not the wanted file. The error ends the fetch. */
  accept?: (response: Response) => void;
  /** Returns the error for an answer that ends the fetch, such as 404. */
  refusal?: (response: Response) => Promise<Error>;
}

/** Consecutive bytes of a file. */
export interface Part {
  /** Position of the first byte. If it is 0 after other parts, the file starts again: discard the earlier parts. */
  at: number;
  bytes: Uint8Array<ArrayBuffer>;
  /** Bytes of the whole file; 0: not known. */
  total: number;
}

/** Thrown if a file cannot be fetched. */
export class FetchError extends PageError {
  constructor(
    message: string,
    /** The reason, without the address. */
    readonly why: string,
    /** The status of the server's answer; 0: there was no answer, or the connection broke. */
    readonly status = 0,
  ) {
    super(message);
  }
}

/** Thrown when a try ends and another try may succeed. */
class Broken extends Error {
  constructor(
    message: string,
    readonly status = 0,
  ) {
    super(message);
  }
}

export const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(bytes < 1e6 ? 2 : 1)} MB`;

/** Returns the size that a response announces; 0: it announces none, or only the size of the encoded bytes. */
export function announced({ headers }: Response): number {
  return headers.has("Content-Encoding") ? 0 : Number(headers.get("Content-Length") ?? 0);
}

/**
 * Yields a file's parts in order. An interrupted file continues with its next byte if the server still has the same
 * version and answers range requests; otherwise it starts again. Throws FetchError, or the error of `accept` or
 * `refusal`. Ends the connection when the caller stops early.
 */
export async function* fetchStream(url: URL, options: StreamOptions = {}): AsyncGenerator<Part, void> {
  const { wait = WAIT_MS, tries = TRIES, signal } = options;
  const transfer = new Transfer(url, options);
  let most = 0; // most bytes received so far
  for (let attempt = 1; ; attempt++) {
    try {
      yield* transfer.attempt();
      return;
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      const { message, status } = error;
      if (transfer.size > most) attempt = 1; // this try made progress
      most = Math.max(most, transfer.size);
      if (attempt >= tries) {
        throw new FetchError(`${url.href} cannot be fetched, tried ${tries} times: ${message}.`, message, status);
      }
      options.onRetry?.(message);
      await waited(wait * 2 ** (attempt - 1), signal);
    }
  }
}

/** The state of one file over all tries. */
class Transfer {
  size = 0; // bytes received
  private unanswered = 0; // consecutive tries without an answer, after earlier tries received bytes
  private mark = ""; // identifies this version of the file; "": the file cannot be resumed
  private total = 0; // bytes of the whole file; 0: not known
  private readonly deadline: number;

  constructor(
    private readonly url: URL,
    private readonly options: StreamOptions,
  ) {
    this.deadline = performance.now() + (options.limit ?? Infinity);
  }

  async *attempt(): AsyncGenerator<Part, void> {
    const stop = new Stop(this.options, this.deadline);
    let answered = false;
    /** Waits for the server. If that fails, throws an error with the reason. */
    const heard = async <T>(work: Promise<T>): Promise<T> => {
      try {
        return await stop.within(work);
      } catch {
        throw await this.failure(stop, answered);
      }
    };
    try {
      const response = await heard(this.ask(stop.signal));
      answered = true;
      this.unanswered = 0;
      await this.read(response);
      const reader = response.body!.getReader();
      for (;;) {
        this.fits(Math.max(this.total, this.size));
        const { done, value } = await heard(reader.read());
        if (done) break;
        const at = this.size;
        this.size += value.length;
        this.options.onBytes?.(this.size, Math.max(this.total, this.size));
        if (value.length) yield { at, bytes: value, total: this.total };
      }
      this.complete();
    } finally {
      stop.end();
    }
  }

  private ask(signal: AbortSignal): Promise<Response> {
    const headers = new Headers(this.options.request?.headers);
    if (this.size && this.mark) headers.set("Range", `bytes=${this.size}-`);
    return fetch(this.url, { ...this.options.request, headers, signal });
  }

  /** Reads an answer's headers. Throws if the answer does not continue or restart the file. */
  private async read(response: Response): Promise<void> {
    const { status, statusText } = response;
    const again = status === 206 && markOf(response) === this.mark;
    if (status === 206 && !again) throw this.fresh("the file has changed on the server");
    if (status === 416) throw this.fresh("the server cannot resume");
    if (!response.ok) {
      const why = `the server answers ${status}${statusText && ` ${statusText}`}`;
      if (status >= 500 || status === 408 || status === 429) throw new Broken(why, status);
      throw (await this.options.refusal?.(response)) ?? this.refusal(`${this.url.href}: ${why}.`, why, status);
    }
    this.options.accept?.(response);
    if (again) this.checkRange(response.headers.get("Content-Range"), announced(response));
    else {
      this.forget();
      this.total = announced(response);
    }
    this.mark = response.headers.has("Content-Encoding") ? "" : markOf(response); // ranges count encoded bytes
  }

  /**
   * Checks that a partial answer continues the received bytes. A server of another origin may hide Content-Range from
   * the page. The answer's length must then be that of the missing part.
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

  private fits(size: number): void {
    const { most = Infinity } = this.options;
    const why = `has ${megabytes(size)}; this page accepts up to ${megabytes(most)}`;
    if (size > most) throw this.refusal(`${this.url.href} ${why}.`, why);
  }

  private complete(): void {
    const { size, total } = this;
    if (size < total) throw new Broken(`it ended after ${megabytes(size)} of ${megabytes(total)}`);
    if (total && size > total) throw this.fresh(`it sent more than the announced ${megabytes(total)}`);
  }

  private refusal(message: string, why: string, status = 0): FetchError {
    return new FetchError(message, why, status);
  }

  private fresh(why: string): Broken {
    this.forget();
    return new Broken(why);
  }

  private forget(): void {
    this.size = 0;
    this.mark = "";
    this.total = 0;
  }

  /** Returns the error for a try that ended before all bytes arrived. */
  private async failure(stop: Stop, answered: boolean): Promise<Error> {
    const { signal, patience = STALL_TIMEOUT_MS, limit = 0 } = this.options;
    if (signal?.aborted) return stopped();
    if (performance.now() >= this.deadline) {
      const why = `took longer than ${limit / 60_000} minutes`;
      return this.refusal(`${this.url.href} ${why}.`, why);
    }
    if (stop.stalled) return new Broken(`no data arrived for ${patience / 1000} s`);
    if (this.size && answered) return new Broken(`the connection broke after ${megabytes(this.size)}`);
    return this.unreachable();
  }

  /** Returns the error for a missing answer: no network, no server, or a server that forbids other origins (CORS). */
  private async unreachable(): Promise<Error> {
    if (this.size && ++this.unanswered > 1) this.forget(); // the server may refuse requests for a range
    if (!navigator.onLine) return new Broken("this device is offline");
    const { host, origin } = this.url;
    if (await this.answers("cors")) return new Broken("the connection broke");
    if (origin === location.origin || !(await this.answers("no-cors"))) {
      return new Broken(
        `${host} cannot be reached: it is offline, redirects, or does not let other pages read it (CORS)`,
      );
    }
    const why = `${host} answers, but does not let other pages read it (CORS)`;
    return this.refusal(`${why}. Download the file and drop it here.`, why);
  }

  private async answers(mode: RequestMode): Promise<boolean> {
    const signal = AbortSignal.timeout(this.options.patience ?? STALL_TIMEOUT_MS);
    try {
      await fetch(this.url, { ...this.options.request, mode, method: "HEAD", cache: "no-store", signal });
      return true;
    } catch {
      return false;
    }
  }
}

/** Ends a try when the caller aborts, when no data arrives for `patience` ms, or at the deadline. */
class Stop {
  stalled = false;
  private readonly controller = new AbortController();
  private readonly abort = () => this.controller.abort();

  constructor(
    private readonly options: StreamOptions,
    private readonly deadline: number,
  ) {
    options.signal?.addEventListener("abort", this.abort);
    if (options.signal?.aborted) this.abort();
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Waits for `work`. Aborts the try after `patience` ms, or at the deadline. */
  async within<T>(work: Promise<T>): Promise<T> {
    const { patience = STALL_TIMEOUT_MS } = this.options;
    const left = Math.min(patience, this.deadline - performance.now());
    const timer = setTimeout(
      () => {
        this.stalled = true;
        this.abort();
      },
      Math.max(0, left),
    );
    try {
      return await work;
    } finally {
      clearTimeout(timer);
    }
  }

  end(): void {
    this.abort(); // no effect on a stream that was read to its end
    this.options.signal?.removeEventListener("abort", this.abort);
  }
}

/** Returns what identifies the version of a file: its ETag if pages may read it, else its date of change, else "". */
function markOf({ headers }: Response): string {
  return headers.get("ETag") ?? headers.get("Last-Modified") ?? "";
}

const stopped = () => new FetchError("Stopped.", "stopped");

/** Resolves after `ms` milliseconds; rejects at once if `signal` aborts. */
function waited(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      reject(stopped());
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, ms);
    if (signal?.aborted) end();
    else signal?.addEventListener("abort", end, { once: true });
  });
}
