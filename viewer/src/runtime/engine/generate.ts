// Generates a text token by token, on this device or together with a server.

import { ConstraintError } from "../constraints/constraint";
import type { Allowed, Matcher } from "../constraints/grammars";
import { ContextLost } from "../gl/device";
import { PageError } from "../gl/errors";
import { ForcedTokens } from "./forced";
import { GroupSizes } from "./group-sizes";
import { InFlight } from "./in-flight";
import type { Model } from "./model";
import { Sampler, type SamplingOptions, type Token } from "./sampling";
import type { SpeculationStats } from "./speculation";

const MAX_UNCHECKED = 4; // maximum tokens issued together between two attempts to guess

export interface Run {
  tokens: number;
  sampling: SamplingOptions;
  /** The last this many of the given ids were sampled with this seed. Sampling skips their random numbers. */
  drawn?: number;
  alternatives?: number;
  /** Stop at the model's end-of-text token (default: true). A text with a `matcher` always stops at it. */
  eos?: boolean;
  /**
   * Guess tokens and check several at once; the text stays the same. With a constraint, the guesses are the tokens that
   * the constraint forces. Without a constraint, they are the tokens that followed an earlier occurrence of the text's
   * last tokens. Default: true with a constraint on a GPU, else false.
   */
  speculate?: boolean;
  /** Called at the end of each `Stretch` with the statistics of its guesses, if guesses could be checked. */
  onGuesses?: (stats: SpeculationStats) => void;
  /** For a text that must match a constraint: finds the tokens that may come next. */
  matcher?: Matcher;
  signal?: AbortSignal;
}

/** A part of a generation, during which the context window (`windowStart` in chunks.ts) does not move. */
export interface Stretch {
  /** Ids of the tokens in the window. The caller appends each token that it receives. */
  text: number[];
  count: number;
  run: Run;
  sampler: Sampler;
  /** Number of tokens sampled with this seed before this stretch. */
  drawn: number;
}

export class TextGenerator {
  private readonly sizes: GroupSizes;

  constructor(private readonly model: Model) {
    this.sizes = new GroupSizes(model);
  }

  /** Resets the measured speed. Call this when another program is played. */
  reset(): void {
    this.sizes.tokenMs = Infinity;
  }

  /**
   * Continues `ids` and yields each token as soon as it is known. The text, including tokens generated earlier, may be
   * longer than the model's context: see `windowStart` in chunks.ts. Resumes if the graphics context is lost and
   * restored.
   */
  async *generate(ids: readonly number[], run: Run): AsyncGenerator<Token> {
    const { model } = this;
    const { placement, context } = model;
    model.check(ids.slice(0, Math.max(0, ids.length - (run.drawn ?? 0))));
    const sampler = (model.sampling.last = new Sampler(run.sampling));
    if (sampler.adjusts && placement.server) {
      throw new PageError("A model that runs on a server supports neither repetition penalty nor logit bias.");
    }
    model.cache.keepQueriesIfShown();
    const text = [...ids];
    let left = run.tokens;
    while (left > 0 && !run.signal?.aborted && (await run.matcher?.allowed) !== null) {
      const { here } = placement;
      if (run.matcher && placement.server) {
        throw new ConstraintError("A model that runs on a server supports no constraint. Run all blocks in this page.");
      }
      const read = context.window(text);
      const count = Math.min(left, context.tokens - read.length + 1); // the last token is computed from a full context
      try {
        const stretch = { text: read, count, run, sampler, drawn: (run.drawn ?? 0) + text.length - ids.length };
        for await (const token of this.tokens(stretch)) {
          left--;
          if ((run.eos !== false || run.matcher) && model.ends(token.id)) return;
          yield token;
          text.push(token.id);
          read.push(token.id);
          if (run.signal?.aborted) return;
          if (placement.here !== here) break;
        }
      } catch (error) {
        // the split point moved while the server was offline: continue with the blocks that now run in this page
        if (placement.here !== here && !run.signal?.aborted && !model.device.lost) continue;
        if (!(error instanceof ContextLost) && !model.device.lost) throw error;
        await model.recover(run.signal);
      }
    }
  }

  private tokens(stretch: Stretch): AsyncGenerator<Token> {
    const { placement, splitGenerator } = this.model;
    if (placement.server) return splitGenerator.generate(stretch);
    return stretch.run.matcher ? this.constrained(stretch, stretch.run.matcher) : this.local(stretch);
  }

  /**
   * Generates tokens that a constraint allows. While the device computes the logits after a token, the grammar finds
   * the tokens that may follow this token. A fast device begins to compute these logits before the page has read the
   * token. If the constraint forces several tokens, they are checked at once.
   */
  private async *constrained(stretch: Stretch, matcher: Matcher): AsyncGenerator<Token> {
    const { text, count, run, sampler } = stretch;
    const { cache, sampling, device } = this.model;
    const first = text.length;
    await sampling.masked.prepare();
    await cache.prepare(text);
    const forced = new ForcedTokens(this.model, (run.speculate ?? !device.software) && !sampler.adjusts);
    const sizes = new GroupSizes(this.model);
    try {
      for (let taken = 0; taken < count;) {
        const start = performance.now();
        const allowed = await matcher.allowed;
        if (!allowed || run.signal?.aborted) return;
        if (taken === 0) cache.prefill(text);
        else cache.ids.push(text.at(-1)!);
        let decoded = false; // true if the decode of the last of `tokens` was issued already
        let tokens = await forced.step(stretch, taken, allowed, matcher);
        if (!tokens.length) {
          decoded = taken + 1 < count && sizes.groups > 1 && sampling.readsOnlyToken(sampler, run.alternatives);
          tokens = [await this.allowed(stretch, taken, allowed, decoded)];
          if (taken) {
            sizes.tokenMs = performance.now() - start; // the first token's time would include the prompt
            forced.plainToken(sizes.tokenMs);
          }
        }
        matcher.accept(...tokens.map(({ id }) => id));
        taken += tokens.length;
        if (taken < count && !decoded) this.decodeNow(first + taken - 1);
        for (const [i, token] of tokens.entries()) {
          if (i) cache.ids.push(text.at(-1)!);
          yield token;
        }
      }
    } finally {
      if (forced.stats) run.onGuesses?.(forced.stats);
    }
  }

  /**
   * Chooses a token from those that a constraint allows. `taken`: the number of the stretch's earlier tokens. If
   * `early`, issues the token's decode before the page has read the token.
   */
  private async allowed(
    { text, run, sampler, drawn }: Stretch,
    taken: number,
    allowed: Allowed,
    early: boolean,
  ): Promise<Token> {
    const { cache, sampling, reader } = this.model;
    const [step, position] = [drawn + taken, text.length];
    const choosing = sampler.adjusts ? null : sampling.chooseAllowed(sampler, step, allowed, run.alternatives);
    choosing?.catch(() => {}); // awaited below
    reader.close();
    if (early) this.decodeNow(position);
    const chosen = await choosing;
    if (chosen) return chosen;
    if (early) cache.again(text); // the early decode has replaced the logits from which this token is chosen
    const token = await sampling.fromRow(text, sampler, step, run.alternatives, allowed);
    if (early) this.decodeNow(position);
    return token;
  }

  /** Decodes the token at `position`. Makes the device start now instead of waiting for more commands. */
  private decodeNow(position: number): void {
    this.model.cache.decode(position);
    this.model.device.gl.flush();
  }

  /** Generates tokens without a constraint. If the device samples, issues several tokens before it reads them. */
  private async *local(stretch: Stretch): AsyncGenerator<Token> {
    const { text, count, run, sampler, drawn } = stretch;
    const { cache, sampling, placement, batch } = this.model;
    const speculation = run.speculate && !sampler.adjusts ? await batch.speculation() : null;
    const inFlight = new InFlight();
    const { here } = placement;
    const first = text.length;
    const top = run.alternatives;
    await cache.prepare(text);
    if (speculation || sampler.settings.topK !== null) await sampling.prepare(sampler, top);
    try {
      for (let issued = 0, taken = 0; taken < count; taken++) {
        const checked = issued === taken && taken ? ((await speculation?.step(stretch, taken)) ?? []) : [];
        if (checked.length) {
          for (const token of checked) {
            cache.ids.push(text.at(-1)!);
            yield token;
            if (run.signal?.aborted) return;
          }
          taken += checked.length - 1;
          issued = taken + 1;
          continue;
        }
        const inPage = sampling.inPage(sampler, top);
        const groups = taken && !inPage && !speculation ? this.sizes.groups : 1;
        while (inFlight.length < groups && issued < count) {
          const most = taken && !inPage ? Math.min(this.sizes.tokens, speculation ? MAX_UNCHECKED : Infinity) : 1;
          const end = Math.min(count, issued + most);
          inFlight.add(this.issue(stretch, first, issued, end, inPage));
          issued = end;
        }
        let { token, more } = await inFlight.next();
        if (taken) cache.ids.push(text.at(-1)!);
        if (!token) {
          await inFlight.drop(); // the tokens issued after this one were not computed from the token chosen below
          more = 0;
          if (taken > 0 && !inPage) cache.again(text); // later decodes replaced this token's logits
          token =
            inPage && !sampler.adjusts
              ? await sampling.early(sampler, drawn + taken, top)
              : await sampling.fromRow(text, sampler, drawn + taken, top);
          issued = taken + 1;
          inFlight.chosenInPage();
        }
        if (!more) {
          const { tokens, ms } = inFlight.measured();
          if (taken) {
            this.sizes.tokenMs = ms;
            speculation?.guessing.plainTokens(ms, tokens);
          }
        }
        if (taken) this.model.splitGenerator.report(here, this.sizes.tokenMs);
        if (more) token.more = more;
        yield token;
        if (run.signal?.aborted) return;
      }
    } finally {
      await inFlight.drop();
      if (speculation) run.onGuesses?.(speculation.stats);
    }
  }

  /**
   * Issues the new tokens `from` to `end` - 1 of a stretch, and returns them. New token 0 has position `first`. With
   * `inPage`, the promises resolve to null, because the page chooses each token.
   */
  private issue(
    { text, run, sampler, drawn }: Stretch,
    first: number,
    from: number,
    end: number,
    inPage: boolean,
  ): Promise<Token | null>[] {
    const { cache, sampling, reader } = this.model;
    const tokens: Promise<Token | null>[] = [];
    for (let i = from; i < end; i++) {
      if (i === 0) cache.prefill(text);
      else cache.decode(first + i - 1);
      tokens.push(inPage ? Promise.resolve(null) : sampling.choose(sampler, drawn + i, run.alternatives));
    }
    reader.close();
    return tokens;
  }
}
