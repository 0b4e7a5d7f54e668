// Limits how often the page updates during generation, so that updates cost only a small share of the time.
// A "look" is one such update: it reads results back and renders, which delays the tokens after it. A read may return
// several tokens.

const WEIGHT = 0.2; // weight of the newest value in a running mean
const SETTLED = 120; // ms for which a look delays tokens: its frame is drawn after the tokens that are queued
const TOKENS = 4; // undelayed tokens needed to measure the time of a token
const CHECK = 60; // looks until the time of an undelayed token is measured again

export class Meter {
  private plain = 0; // running mean: ms of an undelayed token
  private cost = 0; // running mean: ms that a look delays the tokens after it, in total
  private last = -Infinity; // time of the last look, ms
  private before: number | null = null; // arrival time of the previous token, ms
  private came = 0; // tokens received so far in the current read
  private tokens = 0; // tokens since the last look
  private settled = 0; // tokens since the last look that this look did not delay
  private looks = 0; // looks since `plain` was measured

  constructor(
    /** Maximum share of the time that looks may cost. */
    private readonly share: number,
    /** Minimum and maximum ms between two looks. */
    private readonly fastest: number,
    private readonly slowest: number,
  ) {}

  /** Called for each token. Returns true if a look is due; always false while `more` tokens of the same read follow. */
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

  /** Called when a text begins: the pause before its first token is not measured, and that token is shown at once. */
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

/** Returns a meter for a generated text: looks take at most 3% of the time, one every 40 ms to 1 s. */
export const textMeter = () => new Meter(0.03, 40, 1000);
