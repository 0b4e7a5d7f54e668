// Lets the device choose tokens ahead of the page while a constraint allows the same set of tokens (the mask) at each
// position, as within a long string. The device then computes further tokens while the page reads the previous ones. If
// a token changes the mask, the tokens that were chosen after it are discarded.

import type { Allowed, Matcher } from "../constraints/grammars";
import type { Stretch } from "./generate";
import type { GroupSizes } from "./group-sizes";
import { InFlight } from "./in-flight";
import type { Model } from "./model";
import type { Token } from "./sampling";

const MIN_STREAK = 8; // tokens with the same mask before tokens are chosen ahead
const WAGER = 16; // tokens with the same mask after which the groups become one token larger

export class SameMask {
  private mask: Allowed | null = null; // the mask of the previous token
  private streak = 0; // number of consecutive tokens chosen with this mask
  private readonly inFlight = new InFlight();
  private from = 0; // number of tokens of the stretch before the first token that is chosen ahead
  private issued = 0; // number of tokens of the stretch that were chosen, on the device or by the page

  /** `sizes`: chooses the number of tokens that are issued together (a group) from the time that a token takes. */
  constructor(
    private readonly model: Model,
    private readonly sizes: GroupSizes,
  ) {}

  /** True if the device computes tokens after those that `step` returned. */
  get ahead(): boolean {
    return this.inFlight.length > 0;
  }

  /** Records the time and the mask of a token that was not chosen ahead. */
  plainToken(ms: number, allowed: Allowed): void {
    this.sizes.tokenMs = ms;
    this.streak = allowed === this.mask ? this.streak + 1 : 1;
    this.mask = allowed;
  }

  /**
   * Returns the next tokens of a text whose logits are on the device or are being computed, and appends them to the
   * matcher's text. Returns an empty list if choosing ahead does not pay (`pays`) or if the device cannot decide; the
   * device then holds the logits after the text. `taken`: the number of the stretch's earlier tokens.
   */
  async step(stretch: Stretch, taken: number, allowed: Allowed, matcher: Matcher): Promise<Token[]> {
    const { cache } = this.model;
    const { count, text } = stretch;
    if (!this.ahead) {
      if (!this.pays(stretch, allowed)) return [];
      this.from = this.issued = taken;
    }
    const start = performance.now();
    const fill = () => {
      while (this.inFlight.length < this.sizes.groups && this.issued < count) this.issue(stretch, taken, allowed);
    };
    fill();
    const { tokens, whole } = await this.read();
    if (whole) fill(); // keeps the device busy while the grammar follows the tokens
    const kept = tokens.slice(0, await this.append(tokens, allowed, matcher));
    this.streak += kept.length;
    if (!whole || (await matcher.allowed) !== allowed) {
      await this.drop();
      if (kept.length) cache.write(kept.at(-1)!.id);
      else cache.again(text);
    }
    kept.forEach((token, i) => i + 1 < kept.length && (token.more = kept.length - 1 - i));
    if (kept.length) this.sizes.tokenMs = (performance.now() - start) / kept.length;
    return kept;
  }

  /** True if the mask has stayed the same, and the device is fast enough to compute a group during a read. */
  private pays({ run, sampler }: Stretch, allowed: Allowed): boolean {
    if (!this.model.sampling.readsOnlyToken(sampler, run.alternatives)) return false;
    return allowed === this.mask && this.streak >= MIN_STREAK && this.sizes.groups > 1;
  }

  /** Waits for the issued tokens and discards them. */
  async drop(): Promise<void> {
    await this.inFlight.drop();
    this.streak = 0;
  }

  /** Issues the commands that choose a group of tokens. The logits of the first token are already being computed. */
  private issue({ text, count, sampler, drawn }: Stretch, taken: number, allowed: Allowed): void {
    const { cache, sampling, reader } = this.model;
    const size = Math.min(this.sizes.tokens, 1 + Math.floor(this.streak / WAGER), count - this.issued);
    const tokens: Promise<Token | null>[] = [];
    for (const end = this.issued + size; this.issued < end; this.issued++) {
      if (this.issued > this.from) cache.decode(text.length + this.issued - taken - 1);
      tokens.push(sampling.chooseAllowed(sampler, drawn + this.issued, allowed));
    }
    this.inFlight.add(tokens);
    reader.close();
  }

  /**
   * Returns the tokens of the first group, up to a token that ends the text (included) or that the device cannot decide
   * (excluded). `whole`: true if these are all tokens of the group.
   */
  private async read(): Promise<{ tokens: Token[]; whole: boolean }> {
    const tokens: Token[] = [];
    for (;;) {
      const { token, more } = await this.inFlight.next();
      if (token) tokens.push(token);
      if (!more || !token || this.model.ends(token.id)) return { tokens, whole: token !== null && !more };
    }
  }

  /**
   * Appends tokens to the matcher's text, up to the first token after which the mask differs. Returns the number of
   * appended tokens. A last token that ends the text is not appended, but counted if the mask before it is the same.
   */
  private async append(tokens: readonly Token[], allowed: Allowed, matcher: Matcher): Promise<number> {
    const ids = tokens.map(({ id }) => id).filter((id) => !this.model.ends(id));
    const appended = ids.length ? await matcher.acceptSame(ids) : 0;
    return appended === ids.length && (await matcher.allowed) === allowed ? tokens.length : appended;
  }
}
