// Small values in the browser's storage. A private window, a full disk or a policy makes each of its calls throw.

const TEST = "glgpt test"; // a key that is deleted at once

class GuardedStorage {
  constructor(private readonly area: () => Storage) {}

  /** True if values are stored. */
  get works(): boolean {
    if (!this.write(TEST, 0)) return false;
    this.area().removeItem(TEST);
    return true;
  }

  /** Returns a stored value; null: there is none, or it was not written by this page. */
  read(key: string): unknown {
    try {
      return JSON.parse(this.area().getItem(key) ?? "null");
    } catch {
      return null;
    }
  }

  /** Stores a value as JSON. Returns false if the browser does not. */
  write(key: string, value: unknown): boolean {
    try {
      this.area().setItem(key, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  }
}

/** Values that all visits of this browser share. */
export const browserStorage = new GuardedStorage(() => localStorage);
/** Values that a tab retains over a reload. */
export const tabStorage = new GuardedStorage(() => sessionStorage);
