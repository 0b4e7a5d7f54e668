// Cuts an entry's passes into slices of some milliseconds, a few of them under way at once. Whatever else the page wants
// of the device, its frames above all, then waits for a slice or two, not for a whole training step.

const SLICE = 12; // ms that a slice should take
const AHEAD = 30; // ms of slices that may be under way: enough that the device is never idle
const FIRST = 1; // ms that a pass is taken for before any was measured
const SMALL = 0.2; // of the mean pass, in operations: what even a pass without any costs

interface Slice {
  /** What it was expected to take. */
  ms: number;
  /** The entries of `Pace.costs` that its time will correct, by entry and first pass. */
  costs: Map<string, Float64Array>;
  passed: Promise<void>;
  /** Resolves when it has passed and its times are learnt. */
  done: Promise<void>;
}

export class Pace {
  /** Milliseconds that each pass of an entry is believed to take. */
  private readonly costs = new Map<string, Float64Array>();
  private readonly ahead: Slice[] = [];
  private passedAt = 0;

  constructor(
    /** Resolves when the device has done all that was issued; short slices that get the same promise are one. */
    private readonly passed: () => Promise<void>,
    /** Has `passed` give another promise from now on. */
    private readonly close: () => void,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /**
   * Issues an entry's passes by calls of issue(first, end), in order; resolves when the last is issued. `flops` are the
   * operations of its passes, by which times are shared out until slices were measured. Rejects as `passed` does.
   */
  async play(entry: string, flops: readonly number[], issue: (first: number, end: number) => void): Promise<void> {
    let costs = this.costs.get(entry);
    if (!costs) this.costs.set(entry, (costs = guessed(flops)));
    for (let first = 0; first < costs.length; ) {
      let end = first + 1;
      let ms = costs[first]!;
      while (end < costs.length && ms + costs[end]! <= SLICE) ms += costs[end++]!;
      while (this.ahead.length && this.waiting() + ms > AHEAD) await this.ahead[0]!.done;
      const last = this.ahead.at(-1);
      if (last && last.ms + ms > SLICE) this.close();
      const issued = this.now();
      issue(first, end);
      this.watch(`${entry} ${first}`, costs.subarray(first, end), ms, last ? null : issued);
      first = end;
    }
  }

  /** Milliseconds that what is under way is expected to take. */
  private waiting(): number {
    return this.ahead.reduce((sum, { ms }) => sum + ms, 0);
  }

  /** Learns from a slice what its passes take; `since`: when it was issued to an idle device. */
  private watch(name: string, costs: Float64Array, ms: number, since: number | null): void {
    const passed = this.passed();
    const last = this.ahead.at(-1);
    if (last?.passed === passed) {
      last.ms += ms;
      last.costs.set(name, costs);
      return;
    }
    const slice: Slice = { ms, costs: new Map([[name, costs]]), passed, done: passed };
    slice.done = passed.then(
      () => {
        const at = this.now();
        const taken = at - (since ?? this.passedAt);
        this.passedAt = at;
        this.ahead.shift(); // they pass in order
        const factor = Math.min(4, Math.max(0.5, taken / slice.ms));
        for (const part of slice.costs.values()) for (let i = 0; i < part.length; i++) part[i]! *= 0.5 + 0.5 * factor;
      },
      (error: unknown) => {
        this.ahead.length = 0;
        throw error;
      },
    );
    slice.done.catch(() => {}); // who waits hears of it
    this.ahead.push(slice);
  }
}

function guessed(flops: readonly number[]): Float64Array {
  const mean = flops.reduce((sum, f) => sum + f, 0) / flops.length || 1;
  return Float64Array.from(flops, (f) => (FIRST * (f + SMALL * mean)) / (mean * (1 + SMALL)));
}
