// Packs the tensors of files in a worker, in bands (blocks of texels). The worker pauses while bands with `AHEAD` bytes
// or more wait for the page. The page sends a message after it has uploaded a band.

import { reason } from "../gl/errors";
import { extent, pack, type Band, type Packing, type Read } from "./packing";

const AHEAD = 8 << 20;
const WHOLE = 32 << 20; // up to this many bytes, a tensor is read in one call: each call waits for another process

export interface Job {
  files: readonly Blob[];
  packings: readonly Packing[];
}

export type Answer = { band: Band } | { done: true } | { problem: string };

/** Limits how many bytes of bands wait for the page. */
class Window {
  private readonly waiting: number[] = []; // bytes of each band
  private resume = () => {};

  /** Counts a band that was sent. Resolves when another band may be packed. */
  async sent(bytes: number): Promise<void> {
    this.waiting.push(bytes);
    while (this.bytes >= AHEAD) await new Promise<void>((done) => (this.resume = done));
  }

  uploaded(): void {
    this.waiting.shift();
    this.resume();
  }

  private get bytes(): number {
    return this.waiting.reduce((sum, bytes) => sum + bytes, 0);
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
      for await (const band of pack(packing, await atOnce(packing, read))) {
        const { length } = band.texels;
        answer({ band }, [band.texels.buffer]);
        await bands.sent(length);
      }
    }
    answer({ done: true });
  } catch (error) {
    answer({ problem: reason(error) });
  }
}

/** Returns a function that reads bytes of one tensor. If the tensor has at most `WHOLE` bytes, reads all of it now. */
async function atOnce({ origin }: Packing, read: Read): Promise<Read> {
  const [start, end] = [origin.offset, origin.offset + extent(origin)];
  if (end - start > WHOLE) return read;
  const whole = await read(origin.file, start, end);
  return (_, from, to) => Promise.resolve(whole.slice(from - start, to - start));
}
