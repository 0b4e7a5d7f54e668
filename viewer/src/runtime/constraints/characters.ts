// Sets of characters, and how a grammar (the EBNF of xgrammar) writes them.

/** Ranges of code points, in order, both ends included. */
export type Characters = readonly (readonly [number, number])[];

const LAST = 0x10ffff;
const SURROGATES = [0xd800, 0xdfff] as const; // not characters
export const UNICODE: Characters = [
  [0, SURROGATES[0] - 1],
  [SURROGATES[1] + 1, LAST],
];

/** Returns the characters of any of these sets. */
export function union(...sets: readonly Characters[]): Characters {
  const sorted = sets.flat().sort(([a], [b]) => a - b);
  const found: [number, number][] = [];
  for (const [low, high] of sorted) {
    const last = found.at(-1);
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else found.push([low, high]);
  }
  return found;
}

/** Returns the characters that are not in a set. */
export function complement(set: Characters): Characters {
  const found: [number, number][] = [];
  let from = 0;
  for (const [low, high] of union(set, [SURROGATES])) {
    if (low > from) found.push([from, low - 1]);
    from = high + 1;
  }
  if (from <= LAST) found.push([from, LAST]);
  return found;
}

/** Returns the characters of both sets. */
export const intersection = (a: Characters, b: Characters): Characters =>
  complement(union(complement(a), complement(b)));

/** Returns the set of the characters of a text. */
export const charactersOf = (text: string): Characters =>
  union(Array.from(text, (character) => [character.codePointAt(0)!, character.codePointAt(0)!] as const));

/** Returns a code point as a grammar writes it. */
function point(code: number): string {
  const letter = String.fromCodePoint(code);
  if (/[A-Za-z0-9 ]/.test(letter)) return letter;
  const hex = code.toString(16);
  return code > 0xffff ? `\\U${hex.padStart(8, "0")}` : `\\u${hex.padStart(4, "0")}`;
}

/** Returns a text as a grammar's string. */
export const literal = (text: string): string =>
  `"${Array.from(text, (character) => point(character.codePointAt(0)!)).join("")}"`;

const literalOf = (code: number): string => literal(String.fromCodePoint(code));

const ASCII: Characters = [[0, 0x7f]];
const OTHERS = complement(ASCII);
const MAX_OTHERS = 256; // characters beyond ASCII that are listed

/**
 * Returns a set as a grammar's expression; null if the grammar can write none of its characters. Beyond ASCII these are all
 * or up to MAX_OTHERS characters: xgrammar compares bytes with the code points of other classes.
 */
export function classOf(set: Characters): string | null {
  const own = intersection(set, ASCII);
  const ranges = (of: Characters) =>
    of.map(([low, high]) => (low === high ? point(low) : `${point(low)}-${point(high)}`)).join("");
  if (!intersection(OTHERS, complement(set)).length) {
    return `[^${ranges(intersection(complement(own), ASCII))}]`;
  }
  const others = intersection(set, OTHERS);
  const few = others.reduce((sum, [low, high]) => sum + high - low + 1, 0) <= MAX_OTHERS ? others : [];
  const found = few.flatMap(([low, high]) => Array.from({ length: high - low + 1 }, (_, i) => literalOf(low + i)));
  if (own.length)
    found.unshift(own.length === 1 && own[0]![0] === own[0]![1] ? literalOf(own[0]![0]) : `[${ranges(own)}]`);
  return found.length > 1 ? `(${found.join(" | ")})` : (found[0] ?? null);
}

/** The characters that JSON writes as they are in a string. */
const PRINTED = complement([[0, 0x1f], ...charactersOf('"\\\x7f')]);
const ESCAPES: Record<string, string> = { '"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t" };

/** Returns the form of a set in a JSON string; null as in `classOf`. */
export function inJson(set: Characters): string | null {
  const printed = classOf(intersection(set, PRINTED));
  const found = printed === null ? [] : [printed];
  for (const [character, letter] of Object.entries(ESCAPES)) {
    if (intersection(set, charactersOf(character)).length) found.push(literal(`\\${letter}`));
  }
  return found.length > 1 ? `(${found.join(" | ")})` : (found[0] ?? null);
}
