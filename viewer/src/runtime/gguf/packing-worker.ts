// Packs the tensors of files in a worker. At most `AHEAD` bands wait for the page, which answers each that it has uploaded.

import { reason } from "../gl/errors";
import { pack, type Band, type Packing, type Read } from "./packing";

const AHEAD = 2;

export interface Job {
  files: readonly Blob[];
  packings: readonly Packing[];
}

export type Answer = { band: Band } | { done: true } | { problem: string };

/** Limits how many bands wait for the page. */
class Window {
  private waiting = 0;
  private resume = () => {};

  /** Counts a band that was sent. Resolves when another may be packed. */
  async sent(): Promise<void> {
    this.waiting++;
    while (this.waiting >= AHEAD) await new Promise<void>((done) => (this.resume = done));
  }

  uploaded(): void {
    this.waiting--;
    this.resume();
  }
}

const bands = new Window();

self.onmessage = ({ data }: MessageEvent<Job | null>) => {
  if (data) void run(data);
  else bands.uploaded();
};

const answer = (message: Answer, transfer: Transferable[] = []) => self.postMessage(message, { transfer });

async function run({ files, packings }: Job): Promise<void> {
  const read: Read = async (file, from, to) => {
    const found = await files[file]!.slice(from, to).arrayBuffer();
    if (found.byteLength !== to - from) throw new Error("the file has changed since it was opened");
    return found;
  };
  try {
    for (const packing of packings) {
      for await (const band of pack(packing, read)) {
        answer({ band }, [band.texels.buffer]);
        await bands.sent();
      }
    }
    answer({ done: true });
  } catch (error) {
    answer({ problem: reason(error) });
  }
}
