// Finds the tokens of a text that the model's context holds.

import { windowStart } from "./chunks";

export class Context {
  /** `tokens`: the number of tokens that the context holds. */
  constructor(readonly tokens: number) {}

  /** Returns the tokens of a text from which its next token is computed. */
  window(text: readonly number[]): number[] {
    return text.slice(windowStart(text.length, this.tokens));
  }

  /** Returns the tokens from which a text's last token was computed, and the last token if it fits the context too. */
  read<T>(text: readonly T[]): T[] {
    const from = this.readFrom(text.length);
    return text.slice(from, from + this.tokens);
  }

  /** Returns where the tokens of `read` begin in a text of this many tokens. */
  readFrom(length: number): number {
    return windowStart(Math.max(1, length) - 1, this.tokens);
  }
}
