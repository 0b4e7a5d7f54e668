// Where an export's files come from.

import { PageError } from "../gl/errors";

export type OnBytes = (bytes: number) => void;

export interface Source {
  /** The browser's cache in which a second visit finds files; null: none. */
  readonly cache: string | null;
  /** The whole file; `onBytes` hears each part as it comes. `fresh` goes past every cache. */
  bytes(name: string, onBytes?: OnBytes, fresh?: boolean): Promise<Uint8Array<ArrayBuffer>>;
}

export class HttpSource implements Source {
  readonly cache: string;

  constructor(readonly base: URL) {
    this.cache = `glgpt ${base.origin === location.origin ? base.pathname : base.href}`;
  }

  async bytes(name: string, onBytes?: OnBytes, fresh = false): Promise<Uint8Array<ArrayBuffer>> {
    let response: Response;
    try {
      response = await fetch(new URL(name, this.base), { cache: fresh ? "reload" : "default" });
    } catch {
      throw new PageError(`${name} cannot be fetched: no connection to ${this.base.host || "the page's folder"}.`);
    }
    if (!response.ok || !response.body) {
      throw new PageError(`${name} cannot be fetched: the server answered ${response.status}.`);
    }
    const length = Number(response.headers.get("Content-Length") ?? 0);
    const encoded = response.headers.has("Content-Encoding");
    let buffer = new Uint8Array(encoded || length === 0 ? 1 << 20 : length);
    let size = 0;
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (size + value.length > buffer.length) {
        const larger = new Uint8Array(Math.max(buffer.length * 2, size + value.length));
        larger.set(buffer.subarray(0, size));
        buffer = larger;
      }
      buffer.set(value, size);
      size += value.length;
      onBytes?.(value.length);
    }
    return buffer.subarray(0, size);
  }
}
