// Computes sets of characters and writes them as expressions of grammars, in the EBNF of the library xgrammar.

/** Ranges of code points, in order, both ends included. */
export type Characters = readonly (readonly [number, number])[];

const LAST = 0x10ffff;
const SURROGATES = [0xd800, 0xdfff] as const; // code points that are not characters
export const UNICODE: Characters = [
  [0, SURROGATES[0] - 1],
  [SURROGATES[1] + 1, LAST],
];

/** Returns the characters that are in at least one of these sets. */
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

/** Returns the characters that are in both sets. */
export const intersection = (a: Characters, b: Characters): Characters =>
  complement(union(complement(a), complement(b)));

/** Returns the characters that occur in a text. */
export const charactersOf = (text: string): Characters =>
  union(Array.from(text, (character) => [character.codePointAt(0)!, character.codePointAt(0)!] as const));

/** Returns how a grammar writes the ASCII character with this code: as the character or as an escape. */
function point(code: number): string {
  const letter = String.fromCharCode(code);
  return /[A-Za-z0-9 ]/.test(letter) ? letter : `\\u${code.toString(16).padStart(4, "0")}`;
}

// xgrammar compares each byte of UTF-8 with the code points of a class, so characters beyond ASCII would not match.
// Grammars therefore describe an ASCII encoding of the bytes: a byte above 0x7f, or the byte MARK itself, is encoded as
// MARK and another ASCII character.
const MARK = 0x1f;
const MARKED = 0x7f; // the character that follows MARK in the encoding of the byte MARK
const second = (byte: number): number => (byte === MARK ? MARKED : byte - 0x7f);
const LAST_BYTE = 0xf4; // the greatest byte that occurs in UTF-8

/**
 * Encodes bytes as the ASCII characters that grammars describe; returns "" if a byte cannot occur in UTF-8 (above
 * 0xf4).
 */
export function writtenBytes(bytes: Iterable<number>): string {
  let found = "";
  for (const byte of bytes) {
    if (byte > LAST_BYTE) return "";
    found += byte < 0x80 && byte !== MARK ? String.fromCharCode(byte) : String.fromCharCode(MARK, second(byte));
  }
  return found;
}

/** Decodes a text that `writtenBytes` encoded. Ignores a MARK at the end of the text. */
export function readBytes(written: string): Uint8Array<ArrayBuffer> {
  const found: number[] = [];
  for (let i = 0; i < written.length; i++) {
    const code = written.charCodeAt(i);
    if (code !== MARK) found.push(code);
    else if (++i < written.length) {
      const marked = written.charCodeAt(i);
      found.push(marked === MARKED ? MARK : marked + 0x7f);
    }
  }
  return Uint8Array.from(found);
}

const utf8 = new TextEncoder();

/** Returns the quoted string with which a grammar matches a text. */
export const literal = (text: string): string =>
  `"${Array.from(writtenBytes(utf8.encode(text)), (character) => point(character.charCodeAt(0))).join("")}"`;

type Range = readonly [number, number];

const classIn = (ranges: readonly Range[]): string =>
  `[${ranges.map(([low, high]) => (low === high ? point(low) : `${point(low)}-${point(high)}`)).join("")}]`;

/** Returns the expression that matches one byte above 0x7f that is in one of these ranges. */
const byteIn = (ranges: readonly Range[]): string =>
  `"${point(MARK)}" ${classIn(ranges.map(([low, high]) => [second(low), second(high)]))}`;

const CONTINUED: Range = [0x80, 0xbf]; // the bytes of a UTF-8 character after its first byte

/**
 * Returns sequences of byte ranges that together match the UTF-8 of every code point in a range. `low` and `high` are
 * the UTF-8 bytes of the first and the last code point, and must be equally long.
 */
function sequences(low: readonly number[], high: readonly number[]): Range[][] {
  let [first, last] = [low[0]!, high[0]!];
  const [lowest, highest] = [low.slice(1), high.slice(1)];
  if (!lowest.length) return [[[first, last]]];
  if (first === last) return sequences(lowest, highest).map((rest) => [[first, first], ...rest]);
  const found: Range[][] = [];
  const all = lowest.map(() => CONTINUED);
  const add = (byte: number, from: readonly number[], to: readonly number[]) =>
    found.push(...sequences(from, to).map((rest): Range[] => [[byte, byte], ...rest]));
  const [least, most] = [all.map(([byte]) => byte), all.map(([, byte]) => byte)];
  if (lowest.some((byte) => byte > CONTINUED[0])) add(first++, lowest, most);
  if (highest.some((byte) => byte < CONTINUED[1])) add(last--, least, highest);
  if (first <= last) found.push([[first, last], ...all]);
  return found;
}

const ASCII: Characters = [[0, 0x7f]];
// The code points whose UTF-8 has 2, 3 and 4 bytes.
const LENGTHS: Characters = [[0x80, 0x7ff], [0x800, 0xffff], [0x10000, LAST]]; // prettier-ignore

/** Returns the expression that matches one character of a set; null if the set is empty. */
export function classOf(set: Characters): string | null {
  const plain = intersection(set, complement([[MARK, MARK]]));
  const own = intersection(plain, ASCII);
  const found = own.length ? [classIn(own)] : [];
  if (intersection(set, [[MARK, MARK]]).length) found.push(literal("\x1f"));
  const ends = new Map<string, Range[]>(); // the ranges of first bytes, by the expression of the other bytes
  for (const length of LENGTHS) {
    for (const [low, high] of intersection(set, [length])) {
      const [from, to] = [low, high].map((code) => [...utf8.encode(String.fromCodePoint(code))]);
      for (const [first, ...rest] of sequences(from!, to!)) {
        const end = rest.map((range) => byteIn([range])).join(" ");
        ends.set(end, [...(ends.get(end) ?? []), first!]);
      }
    }
  }
  for (const [end, firsts] of ends) found.push(`${byteIn(firsts)} ${end}`);
  return found.length > 1 ? `(${found.join(" | ")})` : (found[0] ?? null);
}

/** The characters that grammars leave unescaped in a JSON string. */
const PRINTED = complement([[0, 0x1f], ...charactersOf('"\\\x7f')]);
const ESCAPES: Record<string, string> = { '"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t" };

/**
 * Returns the expression that matches one character of a set in a JSON string, escaped where necessary; null if no
 * character of the set can be written.
 */
export function inJson(set: Characters): string | null {
  const printed = classOf(intersection(set, PRINTED));
  const found = printed === null ? [] : [printed];
  for (const [character, letter] of Object.entries(ESCAPES)) {
    if (intersection(set, charactersOf(character)).length) found.push(literal(`\\${letter}`));
  }
  return found.length > 1 ? `(${found.join(" | ")})` : (found[0] ?? null);
}

const ESCAPED = charactersOf(Object.keys(ESCAPES).join(""));

/**
 * Returns two grammar expressions: `same` matches one character of a set, and `other` matches the beginning of a text
 * that begins with a character outside the set. An expression is null if it would match nothing.
 * Unless the set has all characters beyond ASCII, both expressions treat every character beyond ASCII as outside the
 * set. `json`: the characters are in a JSON string.
 */
export function continued(set: Characters, json: boolean): { same: string | null; other: string | null } {
  const form = json ? inJson : classOf;
  const all = !intersection(complement(ASCII), complement(set)).length; // all characters beyond ASCII
  const same = all ? set : intersection(intersection(set, ASCII), complement([[MARK, MARK]]));
  const escaped = json ? intersection(same, ESCAPED) : [];
  const begun = union(
    json ? intersection(same, PRINTED) : same,
    charactersOf(escaped.length ? "\\" : ""),
    all ? [[MARK, MARK]] : [],
  );
  const found = intersection(ASCII, complement(begun));
  const other = found.length ? [classIn(found)] : [];
  if (all && !json && !intersection(set, [[MARK, MARK]]).length) other.push(literal("\x1f"));
  const unescaped = escaped.length ? form(intersection(ESCAPED, complement(same))) : null;
  if (unescaped !== null) other.push(unescaped);
  return { same: form(same), other: other.length ? `(${other.join(" | ")})` : null };
}
