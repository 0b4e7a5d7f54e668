// Cleans up and inspects a text, as glgpt/data does.

import { splitAt } from "./batches";

export const CLEANING = ["headers", "lines", "blanks", "duplicates"] as const;
export type CleaningStep = (typeof CLEANING)[number];

/** The effect of a clean-up step: the numbers of removed characters and of places where characters were removed. */
export interface Removed {
  step: CleaningStep;
  characters: number;
  places: number;
}

export interface Inspection {
  bytes: number;
  characters: number;
  lines: number;
  /** Number of distinct characters. */
  distinct: number;
  /** Each script's (writing system's) share of the letters, the greatest first. */
  scripts: Record<string, number>;
  /** Bytes held back for validation and scoring. */
  held_back: number;
}

// These patterns take linear time on any text. In BEGIN, the lookahead rejects a last line without LF; otherwise, each
// `***` in this line would start a search for LF. In LAST_LINES and BLANKS, the lookbehind lets a match start only at
// the first character of a run; otherwise, each character of the run would start a search. A line begins only after LF,
// as in Python; with the flag `m`, a line would also begin after CR.
const BEGIN = /(?<![^\n])\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG(?=[^\n]*\n)[^\n]*\*\*\*[^\n]*\n/;
const END = /(?<![^\n])\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG/;
const LAST_LINES = /(?<![\r\n])[\r\n]+$/;
const BLANKS = /(?<![ \t])[ \t]+(?=\n|$)/g;

function length(documents: readonly string[]): number {
  let count = 0;
  for (const document of documents) for (const char of document) count += char ? 1 : 0;
  return count;
}

function replaced(text: string, pattern: RegExp, by: string): [string, number] {
  let count = 0;
  return [text.replace(pattern, () => (count++, by)), count];
}

function apply(step: Exclude<CleaningStep, "duplicates">, text: string): [string, number] {
  if (step === "headers") {
    let places = 0;
    const begin = BEGIN.exec(text);
    if (begin) {
      text = text.slice(begin.index + begin[0].length).replace(/^[\r\n]+/, "");
      places++;
    }
    const end = END.exec(text);
    if (end) {
      text = `${text.slice(0, end.index).replace(LAST_LINES, "")}\n`;
      places++;
    }
    return [text, places];
  }
  if (step === "lines") {
    const places = replaced(text, /\r/g, "\r")[1];
    return [text.replace(/\r\n?/g, "\n"), places];
  }
  const [plain, ends] = replaced(text, BLANKS, "");
  const [done, runs] = replaced(plain, /\n{3,}/g, "\n\n");
  return [done, ends + runs];
}

/** Applies clean-up steps to documents. Returns one text and the effect of each step. */
export function clean(
  documents: readonly string[],
  steps: readonly CleaningStep[],
): { text: string; removed: Removed[] } {
  const removed: Removed[] = [];
  for (const step of CLEANING) {
    if (!steps.includes(step)) continue;
    const before = length(documents);
    let places = 0;
    if (step === "duplicates") {
      const kept = [...new Set(documents)];
      places = documents.length - kept.length;
      documents = kept;
    } else {
      documents = documents.map((document) => {
        const [text, count] = apply(step, document);
        places += count;
        return text;
      });
    }
    removed.push({ step, characters: before - length(documents), places });
  }
  return { text: documents.join(""), removed };
}

const SCRIPTS = [
  "Latin",
  "Greek",
  "Cyrillic",
  "Arabic",
  "Hebrew",
  "Devanagari",
  "Thai",
  "Hangul",
  "Hiragana",
  "Katakana",
  "Han",
];
const OF = SCRIPTS.map((name) => [name, new RegExp(`\\p{Script=${name}}`, "u")] as const);

export function inspect(text: string, validation: number): Inspection {
  const counts = new Map<string, number>();
  let characters = 0;
  for (const char of text) {
    characters++;
    counts.set(char, (counts.get(char) ?? 0) + 1);
  }
  const letters = new Map<string, number>();
  for (const [char, count] of counts) {
    if (!/\p{L}/u.test(char)) continue;
    const name = OF.find(([, pattern]) => pattern.test(char))?.[0] ?? "other";
    letters.set(name, (letters.get(name) ?? 0) + count);
  }
  const total = [...letters.values()].reduce((a, b) => a + b, 0);
  const ordered = [...letters].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const bytes = new TextEncoder().encode(text);
  return {
    bytes: bytes.length,
    characters,
    lines: counts.get("\n") ?? 0,
    distinct: counts.size,
    scripts: Object.fromEntries(ordered.map(([name, count]) => [name, count / total])),
    held_back: bytes.length - splitAt(bytes, validation),
  };
}
