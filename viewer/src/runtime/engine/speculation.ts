// Guesses the next tokens from the text itself, or uses the tokens that a constraint forces as guesses. Checks several
// guesses in one step of the batch program. The cache rows have the same bits as if each token had its own step.
// Guessing pauses while it costs more time than it saves, as on the desktop (glgpt/inference/batching/lookup.py).

import type { Allowed, Matcher } from "../constraints/grammars";
import { PageError } from "../gl/errors";
import { draft } from "./drafts";
import type { Stretch } from "./generate";
import type { Model } from "./model";
import type { Token } from "./sampling";
import type { Several } from "./several";

const FEWEST_FORCED = 2; // minimum number of forced tokens; a step that checks fewer costs more time than it saves
const FIRST_PAUSE = 16; // tokens in the first pause of guessing; doubled for each further pause
const MAX_PAUSE = 256;
const WEIGHT = 0.3; // weight of the latest measurement in an average

/** Counts the steps that checked guesses, the guessed tokens, and the correct guesses. */
export interface SpeculationStats {
  checkedSteps: number;
  guessedTokens: number;
  acceptedTokens: number;
}

/** Decides whether to guess, from the measured time of steps with and without guesses. */
export class Guessing {
  private plain = 0; // mean ms of a token without guesses
  private checked = 0; // mean ms of a checked step, with the delay of the next tokens
  private gained = 0; // mean tokens of a checked step
  private pause = FIRST_PAUSE;
  private left = 0; // remaining tokens of the current pause
  private pending: { ms: number; tokens: number } | null = null; // the last checked step, until its delay is known
  private since = Infinity; // tokens since the last checked step; 0: the last step was checked

  /** True during a pause, after guessing cost more time than it saved. */
  get paused(): boolean {
    return this.left > 0;
  }

  /** Returns up to `most` guesses; none during a pause, or before a token without guesses was measured. */
  guesses(ids: readonly number[], most: number): number[] {
    const guesses = this.paused || !this.plain || most < 1 ? [] : draft(ids, most);
    return this.mayPay(guesses.length) ? guesses : [];
  }

  /** True if a step that checks this many guesses saves time when all of them are correct, as far as is known. */
  mayPay(guesses: number): boolean {
    return !this.plain || this.checked < (1 + guesses) * this.plain;
  }

  /** Adds the time of tokens without guesses. */
  plainTokens(msEach: number, tokens: number): void {
    this.left = Math.max(0, this.left - tokens);
    // The first tokens after a checked step also wait for copies of the caches. This delay is part of the step.
    if (this.since === 0) this.settle(this.plain ? tokens * (msEach - this.plain) : 0);
    else this.plain = average(this.plain, msEach);
    this.since += tokens;
    if (this.since > MAX_PAUSE) this.checked = this.gained = 0; // outdated
  }

  /**
   * Adds the time of a step with guesses. `accepted`: the number of correct guesses. If not `counts`, the time is not
   * used, and neither is that of the tokens after the step, which are delayed.
   */
  checkedStep(ms: number, accepted: number, counts = true): void {
    this.settle(0);
    this.since = 0;
    if (!counts) return;
    const tokens = 1 + accepted;
    this.pending = { ms, tokens };
    // A step that saved no time even without the delay begins a pause now.
    if (average(this.gained, tokens) * this.plain < average(this.checked, ms)) this.settle(0);
  }

  /** Counts the last checked step, whose next tokens came `delay` ms later than plain tokens. Begins a pause if due. */
  private settle(delay: number): void {
    if (!this.pending) return;
    this.checked = average(this.checked, this.pending.ms + delay);
    this.gained = average(this.gained, this.pending.tokens);
    this.pending = null;
    if (this.plain && this.gained * this.plain < this.checked) {
      this.left = this.pause;
      this.pause = Math.min(2 * this.pause, MAX_PAUSE);
      this.checked = this.gained = 0;
    } else this.pause = FIRST_PAUSE;
  }
}

const average = (before: number, now: number): number => (before ? before + WEIGHT * (now - before) : now);

/** Chooses the token after a row of the batch, on the device or in the page. The device must hold the row's logits. */
interface Choice {
  /** Starts the choice on the device. Resolves to null if the device cannot decide. */
  device: () => Promise<Token | null>;
  page: () => Promise<Token>;
}

/** Checks guesses of one text. */
export class Speculation {
  readonly guessing = new Guessing();
  readonly stats: SpeculationStats = { checkedSteps: 0, guessedTokens: 0, acceptedTokens: 0 };
  private held = 0; // number of rows of the text that the batch's caches hold

  constructor(
    private readonly model: Model,
    private readonly several: Several,
  ) {}

  /**
   * Returns the tokens that follow the stretch's text: the correct guesses and one more token. The caches then hold the
   * rows of all returned tokens but the last. Without guesses, returns an empty list. `taken`: the number of tokens
   * that the stretch has generated before.
   */
  async step({ text, count, run, sampler, drawn }: Stretch, taken: number): Promise<Token[]> {
    const { sampling, manifest } = this.model;
    const rows = Math.min(this.several.size, count - taken, manifest.config.n_positions - text.length + 1);
    const guesses = this.guessing.guesses(text, rows - 1);
    if (!guesses.length) return [];
    const start = performance.now();
    const first = text.length - 1; // position of the text's last token, whose row the caches lack
    this.issue(first, [text[first]!, ...guesses]);
    const choices = [0, ...guesses].map((_, i): Choice => {
      const before = [...text, ...guesses.slice(0, i)];
      return {
        device: () => sampling.choose(sampler, drawn + taken + i, run.alternatives),
        page: () => sampling.fromRow(before, sampler, drawn + taken + i, run.alternatives),
      };
    });
    const chosen = await this.chosen(this.drawing(choices), choices, guesses);
    this.keep(first, chosen, chosen.length, guesses.length);
    this.measured(start, chosen);
    return chosen;
  }

  /**
   * Returns the next tokens of a text whose logits are on the device: the forced tokens that the model also chooses, up
   * to the first difference, and one more token (none if the text must end). The caches then hold the rows of all
   * returned tokens but the last. Returns an empty list if fewer than `FEWEST_FORCED` tokens are forced, if checking
   * them cannot save time, or during a pause of guessing. `taken`: the number of tokens that the stretch has generated
   * before.
   */
  async forced(stretch: Stretch, taken: number, allowed: Allowed, matcher: Matcher): Promise<Token[]> {
    const { text, run, sampler, drawn } = stretch;
    const { cache, sampling, reader } = this.model;
    const guesses = this.forcedIds(stretch, taken, allowed);
    if (guesses.length < FEWEST_FORCED || !this.guessing.mayPay(guesses.length)) return [];
    const start = performance.now();
    const choice = (by: Allowed, i: number): Choice => {
      const before = [...text, ...guesses.slice(0, i)];
      return {
        device: () => sampling.chooseAllowed(sampler, drawn + taken + i, by, run.alternatives),
        page: () => sampling.fromRow(before, sampler, drawn + taken + i, run.alternatives, by),
      };
    };
    const first = choice(allowed, 0);
    const drawnFirst = first.device();
    drawnFirst.catch(() => {}); // awaited below, after the other rows are issued
    this.issue(text.length, guesses);
    const after = await matcher.after(guesses);
    const end = after.indexOf(null);
    const choices = (end < 0 ? after : after.slice(0, end)).map((by, i) => choice(by!, i + 1));
    const drawing = this.drawing(choices);
    reader.close();
    let token = await drawnFirst;
    if (!token) {
      await Promise.allSettled(drawing);
      cache.again(text); // the device no longer holds these logits
      token = await first.page();
    }
    const right = token.id === guesses[0];
    const chosen = [token, ...(right ? await this.chosen(drawing, choices, guesses.slice(1)) : [])];
    if (!right) await Promise.allSettled(drawing);
    this.keep(text.length, chosen, chosen.length - 1, guesses.length);
    this.measured(start, chosen);
    return chosen;
  }

  /** Returns the tokens that a constraint forces, as many as one step can check; none if guessing pauses. */
  private forcedIds({ count, sampler }: Stretch, taken: number, allowed: Allowed): number[] {
    const most = Math.min(this.several.size, count - taken - 1);
    if (!allowed.forced || most < FEWEST_FORCED || sampler.adjusts || this.guessing.paused) return [];
    try {
      const ids = this.model.tokenizer!.encodeOrdinary(allowed.forced).slice(0, most);
      return allowed.has(ids[0]!) ? ids : [];
    } catch (error) {
      if (error instanceof PageError) return []; // the vocabulary has no tokens for the text
      throw error;
    }
  }

  /** Computes the rows of `tokens`, which are at the positions from `first` on in the text. */
  private issue(first: number, tokens: readonly number[]): void {
    this.several.adopt(Math.min(this.held, first), first);
    this.several.check(first, tokens);
  }

  /** Starts the choice of the token after each row. */
  private drawing(choices: readonly Choice[]): Promise<Token | null>[] {
    return choices.map(({ device }, row) => {
      this.several.take(row);
      const token = device();
      token.catch(() => {}); // callers that await the token receive the error
      return token;
    });
  }

  /** Returns the tokens chosen after the rows, up to the first token that differs from its guess. */
  private async chosen(
    drawing: readonly Promise<Token | null>[],
    choices: readonly Choice[],
    guesses: readonly number[],
  ): Promise<Token[]> {
    await Promise.allSettled(drawing);
    const chosen: Token[] = [];
    for (const [row, one] of drawing.entries()) {
      let token = await one;
      if (!token) {
        this.several.take(row);
        token = await choices[row]!.page();
      }
      chosen.push(token);
      if (token.id !== guesses[row]) break;
    }
    return chosen;
  }

  /** Copies `rows` rows, from row `first` on, to the text's caches, and writes the last token for the next step. */
  private keep(first: number, chosen: readonly Token[], rows: number, guessed: number): void {
    const { cache } = this.model;
    this.several.restore(first, rows);
    this.held = first + rows;
    if (rows) cache.lacksQueries(first);
    cache.write(chosen.at(-1)!.id);
    chosen.forEach((token, i) => i + 1 < chosen.length && (token.more = chosen.length - 1 - i));
    this.stats.checkedSteps++;
    this.stats.guessedTokens += guessed;
    this.stats.acceptedTokens += chosen.length - 1;
  }

  /** Adds the time of a checked step. The first one does not count, since the driver may still compile shaders. */
  private measured(start: number, chosen: readonly Token[]): void {
    this.guessing.checkedStep(performance.now() - start, chosen.length - 1, this.stats.checkedSteps > 1);
  }
}
