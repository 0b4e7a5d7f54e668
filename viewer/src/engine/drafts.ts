// Guessing how a text continues from the text itself, for speculative decoding (prompt look-up).

const LONGEST = 6; // tokens of the text's end that are looked for earlier in it
const SHORTEST = 2;

/**
 * What followed the latest earlier occurrence of the text's last tokens, up to `most` ids; none without one. Longer endings
 * are looked for first, since what follows them is likelier to follow again.
 */
export function draft(ids: readonly number[], most: number): number[] {
  for (let n = Math.min(LONGEST, ids.length - 1); n >= SHORTEST; n--) {
    const ending = ids.length - n;
    for (let at = ending - 1; at >= 0; at--) {
      let same = 0;
      while (same < n && ids[at + same] === ids[ending + same]) same++;
      if (same === n) return ids.slice(at + n, at + n + most);
    }
  }
  return [];
}
