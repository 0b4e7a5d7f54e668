// How often the page may look at tokens while they come, singly or several at once: as often as costs a small share of the time.

const WEIGHT = 0.2; // of the newest value in a running mean
const SETTLED = 120; // ms after which a look delays no token any more: frames are drawn behind tokens that are under way
const TOKENS = 4; // without a look, after that, to know what a token takes by itself
const CHECK = 60; // looks from one such pause to the next

export class Meter {
  private plain = 0; // ms of a token that no look delays, running mean
  private cost = 0; // ms that a look delays all tokens together, running mean
  private last = -Infinity; // when it looked last
  private before: number | null = null; // when the last token came
  private came = 0; // tokens that were read together with one that follows
  private tokens = 0; // since the last look
  private settled = 0; // of these, those that it did not delay
  private looks = 0; // since `plain` was measured

  constructor(
    /** Of the time that looking may take. */
    private readonly share: number,
    /** ms from one look to the next, at least and at most. */
    private readonly fastest: number,
    private readonly slowest: number,
  ) {}

  /** Called when a token has come: whether to look now. Not where `more` that were read together with it follow. */
  due(more = 0, now = performance.now()): boolean {
    this.came++;
    if (more) return false;
    if (this.before !== null) this.note(now, now - this.before, this.came);
    this.before = now;
    this.came = 0;
    const gone = now - this.last;
    const known = this.plain > 0 && this.looks < CHECK;
    const pause = Math.min(this.slowest, Math.max(this.fastest, this.cost / this.share));
    const due = gone >= pause && (known || this.settled >= TOKENS || gone >= this.slowest);
    if (!due) return false;
    if (this.tokens && this.plain) this.cost = mean(this.cost, Math.max(0, gone - this.tokens * this.plain));
    [this.last, this.tokens, this.settled] = [now, 0, 0];
    this.looks++;
    return true;
  }

  /** Says that a text begins: the time since the last token is no token's, and the first is shown at once. */
  rest(): void {
    this.before = null;
    this.last = -Infinity;
    this.tokens = this.settled = this.came = 0;
  }

  private note(now: number, ms: number, tokens: number): void {
    this.tokens += tokens;
    if (now - ms - this.last < SETTLED) return;
    this.settled += tokens;
    this.plain = mean(this.plain, ms / tokens);
    if (this.settled >= TOKENS) this.looks = 0;
  }
}

const mean = (old: number, value: number) => old + (old ? WEIGHT : 1) * (value - old);
