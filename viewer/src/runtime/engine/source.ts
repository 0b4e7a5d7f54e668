// Reads an export's files from their source.

import { announced, FetchError, fetchStream } from "../io/fetch-stream";
import { PageError } from "../gl/errors";

export type OnBytes = (bytes: number) => void;

export interface Source {
  /** Name of the browser's cache in which a second visit finds files; null: none. */
  readonly cache: string | null;
  /**
   * Returns the whole file. `onBytes` receives the size of each part, and a negative number of bytes when received
   * parts are discarded. `fresh` bypasses the browser's HTTP cache. Throws PageError if the file cannot be fetched or
   * has more than `max` bytes, or if `signal` ends the transfer.
   */
  bytes(
    name: string,
    max: number,
    onBytes?: OnBytes,
    fresh?: boolean,
    signal?: AbortSignal,
  ): Promise<Uint8Array<ArrayBuffer>>;
}

const FIRST = 1 << 20; // initial bytes of the buffer for a file of unknown length
const TRIES = 3; // maximum tries to fetch a file if the connection breaks
const WAIT_MS = 300; // ms before the second try

/** Collects at most `max` bytes of a file that arrives in parts. `expected`: the number of bytes; 0: unknown. */
class Received {
  size = 0;
  private buffer = new Uint8Array(0);

  constructor(
    private readonly name: string,
    private readonly max: number,
    private readonly expected = 0,
  ) {}

  /** Appends a part. Throws PageError if there are more than `max` bytes. */
  push(part: Uint8Array): void {
    const { buffer, max, size } = this;
    const needed = size + part.length;
    if (needed > max) throw tooLong(this.name, `has more than ${max} bytes`);
    if (needed > buffer.length) {
      this.buffer = new Uint8Array(Math.min(max, Math.max(buffer.length * 2, this.expected || FIRST, needed)));
      this.buffer.set(buffer.subarray(0, size));
    }
    this.buffer.set(part, size);
    this.size = needed;
  }

  get bytes(): Uint8Array<ArrayBuffer> {
    return this.buffer.subarray(0, this.size);
  }
}

/**
 * Returns a stream's bytes. `expected`: the number of bytes; 0: unknown. If the stream has more than `max` bytes,
 * cancels the stream and throws PageError.
 */
export async function readAll(
  stream: ReadableStream<Uint8Array<ArrayBuffer>>,
  name: string,
  max: number,
  expected = 0,
  onBytes?: OnBytes,
): Promise<Uint8Array<ArrayBuffer>> {
  const received = new Received(name, max, expected);
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw new PageError(`${name} ended after ${received.size} bytes.`);
    });
    if (done) return received.bytes;
    try {
      received.push(value);
    } catch (error) {
      void reader.cancel();
      throw error;
    }
    onBytes?.(value.length);
  }
}

const tooLong = (name: string, what: string) => new PageError(`${name} ${what}: it is not the file that was exported.`);

export class HttpSource implements Source {
  readonly cache: string;

  constructor(readonly base: URL) {
    this.cache = `glgpt ${base.origin === location.origin ? base.pathname : base.href}`;
  }

  async bytes(
    name: string,
    max: number,
    onBytes?: OnBytes,
    fresh = false,
    signal?: AbortSignal,
  ): Promise<Uint8Array<ArrayBuffer>> {
    let received = new Received(name, max);
    const parts = fetchStream(new URL(name, this.base), {
      tries: TRIES,
      wait: WAIT_MS,
      signal,
      request: { cache: fresh ? "reload" : "default" },
      accept: (response) => {
        const length = announced(response);
        if (length > max) throw tooLong(name, `is announced with ${length} bytes instead of at most ${max}`);
      },
    });
    try {
      for await (const { at, bytes, total } of parts) {
        if (!at) {
          onBytes?.(-received.size);
          received = new Received(name, max, total);
        }
        received.push(bytes);
        onBytes?.(bytes.length);
      }
    } catch (error) {
      onBytes?.(-received.size);
      if (!(error instanceof FetchError)) throw error;
      throw new PageError(`${name} cannot be fetched: ${this.problem(error, received.size)}.`);
    }
    return received.bytes;
  }

  private problem({ status, why }: FetchError, size: number): string {
    if (status) return `the server answered ${status}`;
    return size ? why : `no connection to ${this.base.host || "the page's folder"}`;
  }
}
