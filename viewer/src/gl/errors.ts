// Errors whose message is meant for the person in front of the page.

/** An error whose message is meant for the person in front of the page. */
export class PageError extends Error {}

/** `value`, or a PageError that says what is missing. */
export function must<T>(value: T | undefined | null, what: string): T {
  if (value === undefined || value === null) throw new PageError(`${what} is missing`);
  return value;
}

/** Returns the message of anything that was thrown. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
