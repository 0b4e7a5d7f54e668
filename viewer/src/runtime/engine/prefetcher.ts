// Requests files before they are needed, because a page that is busy, for example compiling shaders, would request them
// late.

import { must } from "../gl/errors";

/**
 * Fetches files in order, one at a time. Holds them until `next` returns them: at most `maxBytes` bytes, or one file if
 * it is larger.
 */
export class Prefetcher<Data> {
  private readonly waiting: Promise<Data>[] = [];
  private bytes = 0; // bytes of the files in `waiting`
  private begun = 0; // number of files whose fetch has begun
  private arriving = false;
  private stopped = false;

  constructor(
    private readonly sizes: readonly number[],
    private readonly maxBytes: number,
    private readonly fetch: (file: number) => Promise<Data>,
  ) {
    this.fetchNext();
  }

  /** Resolves to the next file. Rejects if the file cannot be fetched. */
  async next(): Promise<Data> {
    const data = await must(this.waiting[0], "a further file");
    void this.waiting.shift();
    this.bytes -= this.sizes[this.begun - this.waiting.length - 1]!;
    this.fetchNext();
    return data;
  }

  /** Fetches no further files. */
  stop(): void {
    this.stopped = true;
  }

  private fetchNext(): void {
    const size = this.sizes[this.begun];
    if (this.stopped || this.arriving || size === undefined) return;
    if (this.waiting.length && this.bytes + size > this.maxBytes) return;
    this.arriving = true;
    this.bytes += size;
    const data = this.fetch(this.begun++);
    this.waiting.push(data);
    const arrived = () => {
      this.arriving = false;
      this.fetchNext();
    };
    data.then(arrived, () => {}); // `next` rejects
  }
}
