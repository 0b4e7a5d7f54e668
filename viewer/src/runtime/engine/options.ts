// Checks the options that a caller passes to the scriptable object `globalThis.glgpt`.

import { PageError } from "../gl/errors";

/** The names of a method's options. With this type, the compiler refuses a list that lacks a name. */
export type Names<T> = Record<keyof Required<T>, true>;

/**
 * Throws a PageError for an option that `method` does not have, and names the option that was probably meant. Without
 * this check, an option such as `max_tokens` would be ignored silently.
 */
export function checkOptions<T extends object>(method: string, options: T, names: Names<T>): void {
  if (typeof options !== "object" || (options as T | null) === null) {
    throw new PageError(`${method} takes an object of options, not a ${typeof options}.`);
  }
  const known = Object.keys(names);
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  const meant = closest(unknown, known);
  const help = meant ? `did you mean ${meant}?` : `it takes ${known.join(", ")}.`;
  throw new PageError(`${method} has no option ${unknown}: ${help}`);
}

const plain = (name: string) => name.replace(/[_-]/g, "").toLowerCase();

/**
 * Returns the known name that equals `unknown` except for case and separators. If there is none, returns a known name
 * that `unknown` contains, or undefined.
 */
function closest(unknown: string, known: readonly string[]): string | undefined {
  const wanted = plain(unknown);
  return known.find((name) => plain(name) === wanted) ?? known.find((name) => wanted.includes(plain(name)));
}
