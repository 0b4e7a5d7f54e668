// Defines the page's error class, and helpers for errors.

/** An error whose message the page shows to its user. */
export class PageError extends Error {}

/** Returns `value`. If `value` is undefined or null, throws a PageError that names `what`. */
export function must<T>(value: T | undefined | null, what: string): T {
  if (value === undefined || value === null) throw new PageError(`${what} is missing`);
  return value;
}

/** Returns the message of a thrown value. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
