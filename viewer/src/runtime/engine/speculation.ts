// Guesses tokens of a text from the text itself and checks several in one step of the batch program, whose rows have
// the bits of single steps. Guessing pauses while it does not pay, as on the desktop
// (glgpt/inference/batching/lookup.py).

import { draft } from "./drafts";
import type { Stretch } from "./generate";
import type { Model } from "./model";
import type { Token } from "./sampling";
import type { Several } from "./several";

const FIRST_PAUSE = 16; // tokens without guesses after some that did not pay; doubled each time
const MAX_PAUSE = 256;
const WEIGHT = 0.3; // of the latest measurement in an average

/** Counts the steps that checked guesses, the guesses, and those that were right. */
export interface SpeculationStats {
  checkedSteps: number;
  guessedTokens: number;
  acceptedTokens: number;
}

/** Decides whether to guess, from the measured time of steps with and without guesses. */
export class Guessing {
  private plain = 0; // averages: ms of a token without guesses, ms and tokens of a checked step
  private checked = 0;
  private gained = 0;
  private pause = FIRST_PAUSE;
  private left = 0; // tokens of the current pause

  /** Returns up to `most` guesses; none while they do not pay, or before a token without guesses was measured. */
  guesses(ids: readonly number[], most: number): number[] {
    return this.left || !this.plain || most < 1 ? [] : draft(ids, most);
  }

  /** Adds the time of tokens without guesses. */
  plainTokens(msEach: number, tokens: number): void {
    this.plain = average(this.plain, msEach);
    this.left = Math.max(0, this.left - tokens);
  }

  /** Adds a step with guesses, of which `accepted` were right. */
  checkedStep(ms: number, accepted: number): void {
    this.checked = average(this.checked, ms);
    this.gained = average(this.gained, 1 + accepted);
    if (this.gained * this.plain < this.checked) {
      this.left = this.pause;
      this.pause = Math.min(2 * this.pause, MAX_PAUSE);
      this.checked = this.gained = 0;
    } else this.pause = FIRST_PAUSE;
  }
}

const average = (before: number, now: number): number => (before ? before + WEIGHT * (now - before) : now);

/** Checks guesses of one text. */
export class Speculation {
  readonly guessing = new Guessing();
  readonly stats: SpeculationStats = { checkedSteps: 0, guessedTokens: 0, acceptedTokens: 0 };
  private held = 0; // rows of the text that the batch's caches hold

  constructor(
    private readonly model: Model,
    private readonly several: Several,
  ) {}

  /**
   * Returns the tokens that follow the stretch's text, of which `taken` were chosen before: the right guesses and one
   * more; none without guesses. The caches then hold the rows of all but the last.
   */
  async step({ text, count, run, sampler, drawn }: Stretch, taken: number): Promise<Token[]> {
    const { model, several } = this;
    const { cache, sampling, manifest } = model;
    const rows = Math.min(several.size, count - taken, manifest.config.n_positions - text.length + 1);
    const guesses = this.guessing.guesses(text, rows - 1);
    if (!guesses.length) return [];
    const start = performance.now();
    const first = text.length - 1; // the position of the last token, whose row is the first to compute
    several.adopt(Math.min(this.held, first), first);
    several.check(first, [text[first]!, ...guesses]);
    const drawing = [0, ...guesses].map((_, i) => {
      several.take(i);
      return sampling.choose(sampler, drawn + taken + i, run.alternatives);
    });
    await Promise.allSettled(drawing);
    const chosen: Token[] = [];
    for (const [i, one] of drawing.entries()) {
      let token = await one;
      if (!token) {
        several.take(i);
        const before = [...text, ...guesses.slice(0, i)];
        token = await sampling.fromRow(before, sampler, drawn + taken + i, run.alternatives);
      }
      chosen.push(token);
      if (token.id !== guesses[i]) break;
    }
    several.restore(first, chosen.length);
    this.held = first + chosen.length;
    cache.lacksQueries(first);
    cache.write(chosen.at(-1)!.id);
    chosen.forEach((token, i) => i + 1 < chosen.length && (token.more = chosen.length - 1 - i));
    if (several.checks) this.guessing.checkedStep(performance.now() - start, chosen.length - 1);
    several.checks = true;
    this.stats.checkedSteps++;
    this.stats.guessedTokens += guesses.length;
    this.stats.acceptedTokens += chosen.length - 1;
    return chosen;
  }
}
