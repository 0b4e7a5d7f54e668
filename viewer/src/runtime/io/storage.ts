// Stores small values in the browser. The browser's storage may throw, for example in a private window or if it is
// full. Reading then returns null, and writing returns false.

const TEST = "glgpt test"; // key of a test value, which is deleted at once
const MAX_TEXT = 1_000_000; // maximum characters of a stored text; browsers store about 5 million per origin

class GuardedStorage {
  constructor(private readonly area: () => Storage) {}

  /** True if the browser stores values. Writes a test value to find out. */
  get works(): boolean {
    if (!this.write(TEST, 0)) return false;
    this.area().removeItem(TEST);
    return true;
  }

  /** Returns a stored value; null: no value is stored, or it is not JSON. */
  read(key: string): unknown {
    try {
      return JSON.parse(this.area().getItem(key) ?? "null");
    } catch {
      return null;
    }
  }

  /** Stores a value as JSON. Returns false if the browser refuses. */
  write(key: string, value: unknown): boolean {
    try {
      this.area().setItem(key, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  }

  /** Returns the stored text; "": no text is stored. */
  readText(key: string): string {
    const text = this.read(key);
    return typeof text === "string" ? text : "";
  }

  /** Stores a text, or "" if the text has more than `MAX_TEXT` characters or the browser refuses to store it. */
  writeText(key: string, text: string): void {
    if (text.length > MAX_TEXT || !this.write(key, text)) this.write(key, "");
  }
}

/** Values that are kept for all later visits in this browser. */
export const browserStorage = new GuardedStorage(() => localStorage);
/** Values that a tab keeps when it is reloaded. */
export const tabStorage = new GuardedStorage(() => sessionStorage);
