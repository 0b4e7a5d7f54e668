// Decides how many tokens are issued together, from the time that a token takes on this device.

import type { Model } from "./model";

const GROUP_MS = 25; // target ms of a group of tokens that are issued together: two groups take three frames
const MAX_AHEAD_MS = 20; // maximum ms per token for two groups: with slower tokens, the page would not respond

export class GroupSizes {
  /** Milliseconds per token of the last group. Infinity until known, so that tokens are issued one at a time. */
  tokenMs = Infinity;

  constructor(private readonly model: Model) {}

  /**
   * Returns how many groups to issue: a fast GPU computes one group while the page reads the other. On software GL,
   * issuing a pass waits for earlier passes, which would block the page.
   */
  get groups(): number {
    return this.tokenMs <= MAX_AHEAD_MS && !this.model.device.software ? 2 : 1;
  }

  /** Returns how many tokens to issue together. */
  get tokens(): number {
    return Math.max(1, Math.min(this.model.manifest.tuning.ahead, Math.floor(GROUP_MS / this.tokenMs)));
  }
}
