// Scores toy tasks, as glgpt/scoring/task.py does. The text of a toy task has lines `question=answer`, and the model
// predicts the answers.

const LINE = /^([^=\n]+=)([^=\n]+)$/;
const SEEN = 200; // number of first lines checked to recognize a task

export interface Answers {
  /** Number of scored lines: see `answers`. */
  lines: number;
  /** The share of these lines with a completely correct answer. */
  exact_match: number;
  /** `by_position[i]`: the share of correctly predicted tokens among those that start at byte i of an answer. */
  by_position: number[];
}

/** True if a text's first lines all have the form `question=answer`. */
export function isTask(text: string): boolean {
  const lines: string[] = [];
  for (
    let at = 0, end = text.indexOf("\n");
    end >= 0 && lines.length < SEEN;
    at = end + 1, end = text.indexOf("\n", at)
  ) {
    lines.push(text.slice(at, end));
  }
  return lines.length > 0 && lines.every((line) => LINE.test(line));
}

export function questions(text: string): Set<string> {
  return new Set(text.split("\n").flatMap((line) => LINE.exec(line)?.[1] ?? []));
}

export interface Window {
  /** The bytes of each of the window's `context + 1` tokens. */
  tokens: Uint8Array[];
  /** For each token but the first, true if it was predicted correctly. */
  hits: boolean[];
}

/**
 * Scores the lines that are complete within a window and whose question is not in `seen` (the questions of the training
 * text). Skips a line whose answer begins in the window's first token, which has no prediction. Returns null if no line
 * is scored.
 */
export function answers(windows: readonly Window[], seen: ReadonlySet<string>): Answers | null {
  const positions: { right: number; all: number }[] = [];
  let lines = 0;
  let exact = 0;
  for (const [number, { tokens, hits }] of windows.entries()) {
    const ends: number[] = [];
    for (const token of tokens) ends.push((ends.at(-1) ?? 0) + token.length);
    const text = new Uint8Array(ends.at(-1) ?? 0);
    tokens.forEach((token, i) => text.set(token, ends[i]! - token.length));
    let begin = number === 0 ? 0 : text.indexOf(10) + 1;
    for (let end = text.indexOf(10, begin); end >= 0; begin = end + 1, end = text.indexOf(10, begin)) {
      const match = LINE.exec(new TextDecoder().decode(text.subarray(begin, end)));
      if (!match || seen.has(match[1]!)) continue;
      const answer = text.indexOf(61, begin) + 1; // after "="
      const first = ends.findIndex((at) => at > answer);
      if (!first) continue; // a window's first token has no prediction
      const last = ends.findIndex((at) => at > end);
      const found = hits.slice(first - 1, last);
      lines++;
      if (found.every(Boolean)) exact++;
      found.forEach((hit, i) => {
        const at = Math.max(0, ends[first - 1 + i]! - answer);
        while (positions.length <= at) positions.push({ right: 0, all: 0 });
        positions[at]!.right += hit ? 1 : 0;
        positions[at]!.all++;
      });
    }
  }
  if (!lines) return null;
  return { lines, exact_match: exact / lines, by_position: positions.map(({ right, all }) => (all ? right / all : 0)) };
}
