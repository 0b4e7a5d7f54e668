// Issues the passes of an entry (a recorded list of passes, such as a training step) in slices of about `SLICE`
// milliseconds, with at most `AHEAD` milliseconds of unfinished slices. Other work of the page on the device, above all
// the drawing of frames, then waits only for these slices, not for a whole training step.

const SLICE = 12; // target milliseconds of a slice
const AHEAD = 30; // maximum milliseconds of unfinished slices: enough to keep the device busy
const FIRST = 1; // assumed milliseconds of an average pass before any is measured
const SMALL = 0.2; // fixed cost of a pass, relative to the cost of the operations of an average pass

interface Slice {
  /** Expected milliseconds. */
  ms: number;
  /** The parts of `Pace.costs` that the measured time of this slice corrects, by entry and first pass. */
  costs: Map<string, Float64Array>;
  passed: Promise<void>;
  /** Resolves when the slice has finished and its costs are updated. */
  done: Promise<void>;
}

export class Pace {
  /** Estimated milliseconds of each pass, by entry. */
  private readonly costs = new Map<string, Float64Array>();
  private readonly ahead: Slice[] = [];
  private passedAt = 0;

  constructor(
    /**
     * Returns a promise that resolves when the device has done everything issued. Until `close` is called, later calls
     * may return the same promise; slices that get the same promise count as one slice.
     */
    private readonly passed: () => Promise<void>,
    /** Makes `passed` return a new promise from now on. */
    private readonly close: () => void,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /**
   * Issues an entry's passes in order, by calling issue(first, end), end excluded. Resolves when the last pass is
   * issued. `flops` are the operations of each pass. The times of passes are estimated from `flops` until slices are
   * measured. Rejects if `passed` rejects.
   */
  async play(entry: string, flops: readonly number[], issue: (first: number, end: number) => void): Promise<void> {
    let costs = this.costs.get(entry);
    if (!costs) this.costs.set(entry, (costs = guessed(flops)));
    for (let first = 0; first < costs.length;) {
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

  /** Returns the expected milliseconds of all unfinished slices. */
  private waiting(): number {
    return this.ahead.reduce((sum, { ms }) => sum + ms, 0);
  }

  /**
   * Corrects the costs of a slice's passes when the slice finishes. `since`: when the slice was issued, if the device
   * was idle then; else null.
   */
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
        this.ahead.shift(); // slices finish in order
        const factor = Math.min(4, Math.max(0.5, taken / slice.ms));
        for (const part of slice.costs.values()) for (let i = 0; i < part.length; i++) part[i]! *= 0.5 + 0.5 * factor;
      },
      (error: unknown) => {
        this.ahead.length = 0;
        throw error;
      },
    );
    slice.done.catch(() => {}); // callers that wait receive the error
    this.ahead.push(slice);
  }
}

function guessed(flops: readonly number[]): Float64Array {
  const mean = flops.reduce((sum, f) => sum + f, 0) / flops.length || 1;
  return Float64Array.from(flops, (f) => (FIRST * (f + SMALL * mean)) / (mean * (1 + SMALL)));
}
