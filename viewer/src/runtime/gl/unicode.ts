// Checks text.

/** True if the text has no unpaired surrogate. */
export function isUnicode(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}
