// Fetches the files of an exported folder, checks them against the manifest and caches them for the next visit.

import { sha256 } from "@noble/hashes/sha2.js";
import { signal, type ReadonlySignal } from "@preact/signals-core";
import { parseManifest, type Manifest, type Shard } from "./manifest";
import { PageError, reason } from "../gl/errors";
import { Prefetcher } from "./prefetcher";
import { readAll, type OnBytes, type Source } from "./source";

const TRIES = 3;
const PREFETCH_BYTES = 100 << 20; // maximum bytes of shards (files of weights) that wait while shaders compile
const MAX_MANIFEST_BYTES = 64 << 20;
const MAX_JSON_BYTES = 512 << 20; // maximum bytes of an unpacked JSON file; about the maximum length of a string
const REMEDY = "Reload the page, or export the model again.";

/** Thrown if the server has a newer export: the files of two exports must not be mixed. */
export class Replaced extends PageError {
  constructor() {
    super("This page was replaced by a new export while it loaded. Reload the page.");
  }
}

export interface Expected {
  bytes: number;
  sha256: string;
}

/** Counts bytes of the weights. */
export interface Progress {
  done: number;
  total: number;
  /** Number of bytes that came from the browser's cache. */
  cached: number;
}

export class Loader {
  private readonly counted = signal<Progress>({ done: 0, total: 0, cached: 0 });
  private prefetcher: Prefetcher<Uint8Array<ArrayBuffer>> | null = null; // shards that `begin` fetches

  private constructor(
    readonly manifest: Manifest,
    private readonly source: Source,
    private readonly cache: Cache | null,
    private readonly text: Uint8Array<ArrayBuffer>, // the bytes of the manifest
    private readonly ending: AbortController,
    private readonly read: (document: unknown) => unknown = (document) => document,
  ) {
    this.set({ total: manifest.shards.reduce((sum, s) => sum + s.bytes, 0) });
  }

  get progress(): ReadonlySignal<Progress> {
    return this.counted;
  }

  /** A signal that aborts when the loader is closed, with the reason given to `close`. */
  get signal(): AbortSignal {
    return this.ending.signal;
  }

  /** Aborts all fetches. Every request for a file rejects with `reason` from now on. */
  close(reason: unknown): void {
    this.ending.abort(reason);
  }

  private set(fields: Partial<Progress>): void {
    this.counted.value = { ...this.counted.peek(), ...fields };
  }

  /**
   * Reads the manifest. Throws Replaced if the manifest belongs to another export than `id` ("" accepts any export).
   * If `ending` aborts during this call, the call rejects with the abort's reason; a later abort closes the loader.
   */
  static async open(source: Source, id = "", ending = new AbortController()): Promise<Loader> {
    const { signal } = ending;
    const read = (fresh: boolean) =>
      source.bytes("manifest.json", MAX_MANIFEST_BYTES, undefined, fresh, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        throw new PageError(`${reason(error)} ${REMEDY}`);
      });
    const fits = (read: unknown) => !id || (read as { export_id?: string } | null)?.export_id === id;
    let text = await read(false);
    let found = parseJson(text, "manifest.json");
    if (!fits(found)) {
      text = await read(true); // an HTTP cache may have stored an earlier manifest
      found = parseJson(text, "manifest.json");
      if (!fits(found)) throw new Replaced();
    }
    const cache = source.cache === null ? null : await openCache(source.cache);
    return new Loader(parseManifest(found), source, cache, text, ending);
  }

  /**
   * Returns a loader for a model that a visitor opened: the folder of `source` has its programs, but not its weights.
   * `read` converts the JSON document in a packed file to the content that `packed` returns.
   */
  static of(manifest: Manifest, source: Source, read: (document: unknown) => unknown): Loader {
    return new Loader(manifest, source, null, new Uint8Array(), new AbortController(), read);
  }

  /** Starts to count `total` bytes of weights that do not come from shards. */
  begins(total: number): void {
    this.set({ done: 0, cached: 0, total });
  }

  /** Counts uploaded bytes of weights that do not come from shards. */
  uploaded(bytes: number): void {
    this.count(bytes);
  }

  async json(name: string): Promise<unknown> {
    return parseJson(await this.listed(name), name);
  }

  /** Fetches a JSON file, gzipped if its name ends in .bin, and returns the function that parses it. */
  async unparsed(name: string): Promise<() => unknown> {
    const text = await (name.endsWith(".bin") ? this.unzipped(name) : this.listed(name));
    return () => (name.endsWith(".bin") ? this.read(parseJson(text, name)) : parseJson(text, name));
  }

  /** Fetches and caches those of the named files that are not cached yet. */
  async keep(names: readonly string[]): Promise<void> {
    for (const name of names) {
      const expected = this.manifest.files[name];
      if (expected && this.cache && !(await this.cache.match(keyOf(name, expected)))) await this.file(name, expected);
    }
  }

  /** Returns the contents of a gzipped JSON file. */
  async packed(name: string): Promise<unknown> {
    return (await this.unparsed(name))();
  }

  private async unzipped(name: string): Promise<Uint8Array> {
    const packed = new Blob([await this.listed(name)]).stream();
    return readAll(packed.pipeThrough(new DecompressionStream("gzip")), name, MAX_JSON_BYTES);
  }

  /** Returns one of the files that the manifest lists. */
  private listed(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const expected = this.manifest.files[name];
    if (!expected) throw new PageError(`${name} is not in the manifest. Export the model again.`);
    return this.file(name, expected);
  }

  /** Starts to fetch the shards once `others` has resolved or rejected. `shards` then yields them. */
  begin(others: Promise<unknown> = Promise.resolve()): Prefetcher<Uint8Array<ArrayBuffer>> {
    this.set({ done: 0, cached: 0 });
    const { shards } = this.manifest;
    const sizes = shards.map(({ bytes }) => bytes);
    const fetch = (i: number) => this.file(shards[i]!.file, shards[i]!, (n) => this.count(n));
    const after = others.catch(() => {});
    return (this.prefetcher = new Prefetcher(sizes, PREFETCH_BYTES, (i) => after.then(() => fetch(i))));
  }

  /** Yields every shard in order, with its digest checked. Fetches the next shards while the caller uses one. */
  async *shards(): AsyncGenerator<{ pieces: Shard["pieces"]; data: Uint8Array<ArrayBuffer> }> {
    const prefetcher = this.prefetcher ?? this.begin();
    this.prefetcher = null;
    try {
      for (const { pieces } of this.manifest.shards) yield { pieces, data: await prefetcher.next() };
    } finally {
      prefetcher.stop(); // a lost context may have ended this generator early
    }
    this.forget().catch(() => {}); // the next visit tries again
  }

  private count(bytes: number): void {
    this.set({ done: this.counted.peek().done + bytes });
  }

  /** Returns a file with its digest verified, from the cache or by fetching. A damaged file is fetched again. */
  private async file(name: string, expected: Expected, onBytes?: OnBytes): Promise<Uint8Array<ArrayBuffer>> {
    const { signal } = this;
    signal.throwIfAborted();
    const key = keyOf(name, expected);
    const kept = await this.cache?.match(key).catch(() => undefined);
    if (kept) {
      // empty if the cache entry is damaged
      const data = new Uint8Array(await kept.arrayBuffer().catch(() => new ArrayBuffer(0)));
      if (await matches(data, expected)) {
        if (onBytes) this.set({ cached: this.counted.peek().cached + data.length });
        onBytes?.(data.length);
        return data;
      }
      await this.cache?.delete(key);
    }
    let problem = "";
    for (let attempt = 1; attempt <= TRIES; attempt++) {
      signal.throwIfAborted();
      let got = 0;
      const counted: OnBytes | undefined =
        onBytes &&
        ((n) => {
          got += n;
          onBytes(n);
        });
      try {
        const data = await this.source.bytes(name, expected.bytes, counted, attempt > 1, signal);
        if (await matches(data, expected)) {
          await this.cache?.put(key, new Response(data)).catch(() => {}); // if the disk is full, the file is not cached
          return data;
        }
        problem =
          data.length === expected.bytes
            ? "its contents are not what was exported (SHA-256 differs)."
            : `it has ${data.length} bytes instead of ${expected.bytes}.`;
      } catch (error) {
        problem = reason(error);
      }
      onBytes?.(-got);
      signal.throwIfAborted();
      if (attempt === 1 && (await this.replaced(signal))) throw new Replaced();
      if (attempt < TRIES) await new Promise((resolve) => setTimeout(resolve, 300 * attempt));
    }
    throw new PageError(`${name}, fetched ${TRIES} times: ${problem} ${REMEDY}`);
  }

  /** True if the manifest on the server has changed since it was read. */
  private async replaced(signal: AbortSignal): Promise<boolean> {
    const read = this.source.bytes("manifest.json", MAX_MANIFEST_BYTES, undefined, true, signal);
    const text = await read.catch(() => this.text);
    return text.length !== this.text.length || text.some((byte, i) => byte !== this.text[i]);
  }

  /** Deletes the cached files of earlier exports at this address, except those that `keptDigests` lists. */
  async forget(): Promise<void> {
    if (!this.cache) return;
    const known = new Set([...digests(this.manifest), ...(await this.keptDigests())]);
    for (const request of await this.cache.keys()) {
      const digest = new URL(request.url).searchParams.get("sha256");
      if (digest && !known.has(digest)) await this.cache.delete(request);
    }
  }

  /** Returns the digests of the files that the service worker's cached versions of the page need. */
  private async keptDigests(): Promise<string[]> {
    const shell = `${this.source.cache?.replace(/^glgpt /, "glgpt shell ")} `;
    const found: string[] = [];
    for (const cacheName of (await caches.keys()).filter((name) => name.startsWith(shell))) {
      const manifest = await caches.match("./manifest.json", { cacheName });
      if (manifest) found.push(...digests((await manifest.json()) as Manifest));
    }
    return found;
  }
}

const digests = ({ shards, files }: Pick<Manifest, "shards" | "files">) =>
  [...shards, ...Object.values(files)].map((e) => e.sha256);

const keyOf = (name: string, { sha256 }: Expected) => `./${name}?sha256=${sha256}`;

function parseJson(bytes: Uint8Array, name: string): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new PageError(`${name} is not valid JSON; it was not fetched completely. ${REMEDY}`);
  }
}

async function openCache(name: string): Promise<Cache | null> {
  try {
    return await caches.open(name);
  } catch {
    return null; // a page that is not served securely has no cache
  }
}

export async function matches(data: Uint8Array<ArrayBuffer>, expected: Expected): Promise<boolean> {
  return data.length === expected.bytes && (await digest(data)) === expected.sha256;
}

/** Returns the SHA-256 in hexadecimal. The browser's implementation exists only if the page is served securely. */
export async function digest(data: Uint8Array<ArrayBuffer>): Promise<string> {
  const subtle = crypto.subtle as SubtleCrypto | undefined;
  const bytes = subtle ? new Uint8Array(await subtle.digest("SHA-256", data)) : sha256(data);
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}
