// How often the page may look at tokens while they come: as often as costs a small share of the time.

const WEIGHT = 0.2; // of the newest value in a running mean

export class Meter {
  private looked = 0; // ms of the tokens behind a look, running mean
  private plain = 0; // ms of any other
  private last = -Infinity;
  private before: number | null = null;
  private since = Infinity; // tokens since the last look
  private sum = 0;

  constructor(
    /** Of the time that looking may take. */
    private readonly share: number,
    /** ms from one look to the next, at least and at most. */
    private readonly fastest: number,
    private readonly slowest: number,
    /** Tokens that a look delays: what it draws is drawn while the next ones are computed. */
    private readonly spread = 1,
  ) {}

  /** Called when a token begins, or has come: whether to look now. */
  due(now = performance.now()): boolean {
    if (this.before !== null) this.note(now - this.before);
    this.before = now;
    const gone = now - this.last;
    const known = this.plain > 0 && this.looked > 0;
    const cost = Math.max(0, this.looked - this.spread * this.plain);
    const pause = Math.min(this.slowest, Math.max(this.fastest, cost / this.share));
    const due = gone >= (known ? pause : this.fastest) && (known || this.since > this.spread || gone >= this.slowest);
    if (due) [this.last, this.since, this.sum] = [now, 0, 0];
    return due;
  }

  /** Says that a text begins: the time since the last token is no token's. */
  rest(): void {
    this.before = null;
  }

  private note(ms: number): void {
    const mean = (old: number, value: number) => old + (old ? WEIGHT : 1) * (value - old);
    this.since++;
    if (this.since > this.spread) this.plain = mean(this.plain, ms);
    else {
      this.sum += ms;
      if (this.since === this.spread) this.looked = mean(this.looked, this.sum);
    }
  }
}
