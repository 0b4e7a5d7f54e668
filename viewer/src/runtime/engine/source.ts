// Sources of an export's files.

import { PageError } from "../gl/errors";

export type OnBytes = (bytes: number) => void;

export interface Source {
  /** The browser's cache in which a second visit finds files; null: none. */
  readonly cache: string | null;
  /**
   * Returns the whole file. `onBytes` receives the size of each part; `fresh` bypasses every cache. Throws PageError
   * for a file of more than `max` bytes.
   */
  bytes(name: string, max: number, onBytes?: OnBytes, fresh?: boolean): Promise<Uint8Array<ArrayBuffer>>;
}

const FIRST = 1 << 20; // bytes of the buffer for a stream of unknown length

/** Returns a stream's bytes (`expected` 0: unknown number). After `max` bytes, cancels it and throws PageError. */
export async function readAll(
  stream: ReadableStream<Uint8Array<ArrayBuffer>>,
  name: string,
  max: number,
  expected = 0,
  onBytes?: OnBytes,
): Promise<Uint8Array<ArrayBuffer>> {
  let buffer = new Uint8Array(Math.min(max, expected || FIRST));
  let size = 0;
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw new PageError(`${name} ended after ${size} bytes.`);
    });
    if (done) return buffer.subarray(0, size);
    if (size + value.length > max) {
      void reader.cancel();
      throw tooLong(name, `has more than ${max} bytes`);
    }
    if (size + value.length > buffer.length) {
      const larger = new Uint8Array(Math.min(max, Math.max(buffer.length * 2, size + value.length)));
      larger.set(buffer.subarray(0, size));
      buffer = larger;
    }
    buffer.set(value, size);
    size += value.length;
    onBytes?.(value.length);
  }
}

const tooLong = (name: string, what: string) => new PageError(`${name} ${what}: it is not the file that was exported.`);

export class HttpSource implements Source {
  readonly cache: string;

  constructor(readonly base: URL) {
    this.cache = `glgpt ${base.origin === location.origin ? base.pathname : base.href}`;
  }

  async bytes(name: string, max: number, onBytes?: OnBytes, fresh = false): Promise<Uint8Array<ArrayBuffer>> {
    let response: Response;
    try {
      response = await fetch(new URL(name, this.base), { cache: fresh ? "reload" : "default" });
    } catch {
      throw new PageError(`${name} cannot be fetched: no connection to ${this.base.host || "the page's folder"}.`);
    }
    if (!response.ok || !response.body) {
      throw new PageError(`${name} cannot be fetched: the server answered ${response.status}.`);
    }
    const encoded = response.headers.has("Content-Encoding"); // its length is then that of the encoded bytes
    const length = encoded ? 0 : Number(response.headers.get("Content-Length") ?? 0);
    if (length > max) {
      void response.body.cancel();
      throw tooLong(name, `is announced with ${length} bytes instead of at most ${max}`);
    }
    return readAll(response.body, name, max, length, onBytes);
  }
}
