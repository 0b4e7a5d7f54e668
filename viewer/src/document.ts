// Gives other modules access to the document: its embedded files, a canvas, its address.

import { fromBase64 } from "./runtime/engine/base64";
import { readAll, type OnBytes, type Source } from "./runtime/engine/source";
import type { Host } from "./runtime/gl/device";
import { PageError } from "./runtime/gl/errors";
import { browserStorage } from "./runtime/io/storage";

export const HOST: Host = {
  canvas: () => document.createElement("canvas"),
  hidden: () => document.hidden,
  memory: browserStorage,
};

/** Returns the address of the folder that this document was loaded from. */
export function folder(): URL {
  return new URL(".", document.baseURI);
}

/**
 * Returns the http and https addresses to which the document's security policy allows connections; null: the
 * document lacks a policy, or its policy does not limit connections.
 */
export function connections(): string[] | null {
  const policy = document.querySelector<HTMLMetaElement>('meta[http-equiv="Content-Security-Policy"]')?.content;
  const found = policy && /connect-src ([^;]*)/.exec(policy)?.[1];
  return found ? found.split(" ").filter((source) => source.startsWith("http")) : null;
}

/** Reads files from this document's `<script data-file>` elements, which hold gzip data as base64. */
export class EmbeddedSource implements Source {
  readonly cache = null;

  static here(): EmbeddedSource | null {
    return document.querySelector("script[data-file]") ? new EmbeddedSource() : null;
  }

  async bytes(name: string, max: number, onBytes?: OnBytes): Promise<Uint8Array<ArrayBuffer>> {
    const text = document.querySelector(`script[data-file="${CSS.escape(name)}"]`)?.textContent;
    if (text == null) throw new PageError(`${name} is not in this file; the file was not saved completely.`);
    const packed = fromBase64(text);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return readAll(stream, name, max, 0, onBytes);
  }
}

/**
 * Returns the name of the file that lists the shapes (architectures with their sizes) for which a page without weights
 * has programs; null: the page has a model.
 */
export const playerFile = () => document.querySelector<HTMLMetaElement>('meta[name="glgpt-player"]')?.content ?? null;

/** Returns the id of the export that the page's index.html belongs to; "": index.html has no id. */
export const exportId = () => document.querySelector<HTMLMetaElement>('meta[name="glgpt-export"]')?.content ?? "";
