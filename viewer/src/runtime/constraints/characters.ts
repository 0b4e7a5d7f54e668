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

/** Returns a character of ASCII as a grammar writes it. */
function point(code: number): string {
  const letter = String.fromCharCode(code);
  return /[A-Za-z0-9 ]/.test(letter) ? letter : `\\u${code.toString(16).padStart(4, "0")}`;
}

// A grammar describes bytes of UTF-8, since xgrammar compares bytes with the code points of a class. Bytes beyond
// ASCII, and MARK itself, are written as MARK and another character of ASCII.
const MARK = 0x1f;
const MARKED = 0x7f; // follows MARK for the byte MARK
const second = (byte: number): number => (byte === MARK ? MARKED : byte - 0x7f);
const LAST_BYTE = 0xf4; // the greatest of UTF-8

/** Returns bytes of UTF-8 as the characters that grammars describe; "" if one of them is not a byte of UTF-8. */
export function writtenBytes(bytes: Iterable<number>): string {
  let found = "";
  for (const byte of bytes) {
    if (byte > LAST_BYTE) return "";
    found += byte < 0x80 && byte !== MARK ? String.fromCharCode(byte) : String.fromCharCode(MARK, second(byte));
  }
  return found;
}

/** Returns the bytes of a text of `writtenBytes`, without an incomplete mark at its end. */
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

/** Returns a text as a grammar's string. */
export const literal = (text: string): string =>
  `"${Array.from(writtenBytes(utf8.encode(text)), (character) => point(character.charCodeAt(0))).join("")}"`;

type Range = readonly [number, number];

const classIn = (ranges: readonly Range[]): string =>
  `[${ranges.map(([low, high]) => (low === high ? point(low) : `${point(low)}-${point(high)}`)).join("")}]`;

/** Returns the expression of a byte beyond ASCII. */
const byteIn = (ranges: readonly Range[]): string =>
  `"${point(MARK)}" ${classIn(ranges.map(([low, high]) => [second(low), second(high)]))}`;

const CONTINUED: Range = [0x80, 0xbf];

/** Returns sequences of ranges of bytes: those of the code points between two of the same length in UTF-8. */
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
const LENGTHS: Characters = [[0x80, 0x7ff], [0x800, 0xffff], [0x10000, LAST]]; // prettier-ignore

/** Returns a set as a grammar's expression; null if it is empty. */
export function classOf(set: Characters): string | null {
  const plain = intersection(set, complement([[MARK, MARK]]));
  const own = intersection(plain, ASCII);
  const found = own.length ? [classIn(own)] : [];
  if (intersection(set, [[MARK, MARK]]).length) found.push(literal("\x1f"));
  const ends = new Map<string, Range[]>(); // the first bytes before each sequence of the others
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

const ESCAPED = charactersOf(Object.keys(ESCAPES).join(""));

/**
 * Returns what may follow a character of a set: characters of the same set, and what begins anything else; null if
 * there are none. Unless the set has all characters beyond ASCII, these count as something else.
 */
export function continued(set: Characters, json: boolean): { same: string | null; other: string | null } {
  const form = json ? inJson : classOf;
  const all = !intersection(complement(ASCII), complement(set)).length; // those beyond ASCII
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
