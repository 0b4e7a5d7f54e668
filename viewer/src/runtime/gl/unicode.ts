// Checks text.

/** Returns true if no half of a surrogate pair stands alone. */
export function isUnicode(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}
