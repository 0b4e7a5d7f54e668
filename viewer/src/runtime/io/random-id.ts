// Generates random ids.

const BYTES = 16;

/** Returns a random id. `crypto.randomUUID` is missing from pages over plain http. */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
