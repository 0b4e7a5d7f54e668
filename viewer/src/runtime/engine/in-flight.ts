// Holds the tokens that the page has issued (it has sent the commands that compute them) and not read yet.

import type { Token } from "./sampling";

/** Holds the tokens that the device computes and the page has not read yet, in groups that share a fence and a read. */
export class InFlight {
  private groups: { tokens: Promise<Token | null>[]; came: number }[] = [];
  private began = 0; // when the device began the first group, or the read time of the last measured token, ms
  private came = 0; // when the tokens taken last were read, ms
  private taken = 0; // tokens taken since `began`

  /** Returns the number of groups. */
  get length(): number {
    return this.groups.length;
  }

  add(tokens: Promise<Token | null>[]): void {
    if (!this.groups.length) this.began = performance.now();
    const group = { tokens, came: 0 };
    for (const token of tokens) token.catch(() => {}); // `next` reports the error
    tokens[0]!.then(
      () => (group.came = performance.now()),
      () => {},
    );
    this.groups.push(group);
  }

  /** Returns the next token (null if the device could not decide) and the number of tokens after it in its group. */
  async next(): Promise<{ token: Token | null; more: number }> {
    const group = this.groups[0]!;
    const token = await group.tokens.shift()!;
    this.taken++;
    this.came = group.came;
    if (!group.tokens.length) this.groups.shift();
    return { token, more: group.tokens.length };
  }

  /** Waits for all tokens and drops them, for example because they follow a token other than the chosen one. */
  async drop(): Promise<void> {
    await Promise.allSettled(this.groups.flatMap(({ tokens }) => tokens));
    this.groups = [];
  }

  /** Sets the read time of the last token to now, because the page has only now chosen this token. */
  chosenInPage(): void {
    this.came = performance.now();
  }

  /** Returns the number of tokens taken since the last call or since the device began, and the mean ms per token. */
  measured(): { tokens: number; ms: number } {
    const [tokens, ms] = [this.taken, (this.came - this.began) / this.taken];
    [this.began, this.taken] = [this.came, 0];
    return { tokens, ms };
  }
}
