// Guesses how a text continues by searching the text itself, for speculative decoding (prompt lookup).

const LONGEST = 6; // the last 6 tokens of the text, or fewer, are searched for earlier in the text
const SHORTEST = 2;

/**
 * Returns up to `most` ids that followed the latest earlier occurrence of the text's last tokens; none if those tokens
 * did not occur before. Longer endings are searched first, because the ids that followed a longer ending are more
 * likely to follow again.
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
