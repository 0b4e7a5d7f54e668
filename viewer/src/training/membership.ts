// Stores what a member of a federation needs at a later visit: the key with which it rejoins, and the state of its
// training.

import type { About } from "./files";
import type { Store } from "./store";

interface Kept {
  resume: string;
  state?: Uint8Array<ArrayBuffer>;
  about?: About;
}

export class Membership {
  kept: Kept = { resume: "" };
  private name = "";
  private readonly released = new AbortController();

  constructor(private readonly store: Store) {}

  /**
   * Loads the key and the state of an earlier visit. Each tab is a separate member, so the browser stores them in
   * numbered slots: a tab locks and uses the first slot that no other tab has locked.
   */
  async open(session: string): Promise<void> {
    for (let slot = 0; ; slot++) {
      const name = `federation ${session} ${slot}`;
      if (!(await this.lock(name))) continue;
      this.name = name;
      this.kept = (await this.store.kept<Kept>(name).catch(() => undefined)) ?? { resume: "" };
      return;
    }
  }

  private lock(name: string): Promise<boolean> {
    const { signal } = this.released;
    const locks = navigator.locks as LockManager | undefined;
    if (!locks) return Promise.resolve(true); // a page from plain HTTP has no Web Locks
    return new Promise((resolve) => {
      const hold = (lock: Lock | null) => {
        resolve(lock !== null);
        return lock && new Promise<void>((release) => signal.addEventListener("abort", () => release()));
      };
      // A browser that blocks site data rejects the request. It stores no memberships, so tabs need no locks.
      locks.request(`glgpt ${name}`, { ifAvailable: true }, hold).catch(() => resolve(true));
    });
  }

  async keep(): Promise<void> {
    // If the browser stores nothing, a later visit joins as a new member.
    await this.store.keep(this.name, this.kept).catch(() => {});
  }

  /** Releases the slot. */
  close(): void {
    this.released.abort();
  }
}
