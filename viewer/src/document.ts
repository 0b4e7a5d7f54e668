// What only a document has: files inside it, a canvas, its address. The rooms below `ui/` get it from here.

import { fromBase64 } from "./engine/base64";
import { readAll, type OnBytes, type Source } from "./engine/source";
import type { Host } from "./gl/device";
import { PageError } from "./gl/errors";

export const HOST: Host = {
  canvas: () => document.createElement("canvas"),
  hidden: () => document.hidden,
};

/** The folder that this document came from. */
export function folder(): URL {
  return new URL(".", document.baseURI);
}

/** Other addresses that this document's own policy lets it connect to; null: it has none. */
export function connections(): string[] | null {
  const policy = document.querySelector<HTMLMetaElement>('meta[http-equiv="Content-Security-Policy"]')?.content;
  const found = policy && /connect-src ([^;]*)/.exec(policy)?.[1];
  return found ? found.split(" ").filter((source) => source.startsWith("http")) : null;
}

/** Files in `<script data-file>` elements of this document: base64 of gzip. */
export class EmbeddedSource implements Source {
  readonly cache = null;

  static here(): EmbeddedSource | null {
    return document.querySelector("script[data-file]") ? new EmbeddedSource() : null;
  }

  async bytes(name: string, max: number, onBytes?: OnBytes): Promise<Uint8Array<ArrayBuffer>> {
    const text = document.querySelector(`script[data-file="${CSS.escape(name)}"]`)?.textContent;
    if (text == null) throw new PageError(`${name} is not in this file; it was not saved whole.`);
    const packed = fromBase64(text);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return readAll(stream, name, max, 0, onBytes);
  }
}

/** The export that the page's index.html belongs to; "" where it does not say. */
export const exportId = () => document.querySelector<HTMLMetaElement>('meta[name="glgpt-export"]')?.content ?? "";
