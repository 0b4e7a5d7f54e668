// Measures the words and runs of characters that a text shares with its training text, as glgpt/scoring/samples.py
// does.

export const RUN = 20; // minimum characters in a row that count as a copy

export interface Copies {
  /** The share of the sample's words that also occur in the training text; null if the sample has no words. */
  known_words: number | null;
  /** Number of characters of the longest run that also occurs in the training text. */
  longest_copy: number;
  /**
   * Of the sample's runs of RUN characters, the share that also occurs in the training text; null if the sample has
   * fewer characters than RUN.
   */
  copied_runs: number | null;
}

/** Returns the runs of letters, in lower case. */
export function words(text: string): string[] {
  return (text.match(/\p{L}+/gu) ?? []).map((word) => word.toLowerCase());
}

export function copies(sample: string, training: string): Copies {
  const automaton = new Automaton(sample);
  automaton.read(training);
  const lengths = automaton.longest();
  const known = new Set<string>();
  for (const { 0: word } of training.matchAll(/\p{L}+/gu)) known.add(word.toLowerCase());
  const found = words(sample);
  const runs = lengths.slice(RUN - 1); // a run of RUN characters ends at each of these characters
  return {
    known_words: found.length ? found.filter((word) => known.has(word)).length / found.length : null,
    longest_copy: Math.max(0, ...lengths),
    copied_runs: runs.length ? runs.filter((length) => length >= RUN).length / runs.length : null,
  };
}

/** The suffix automaton of a sample (Blumer et al. 1985). Records which substrings of the sample occur in a text. */
class Automaton {
  private readonly next = [new Map<string, number>()];
  private readonly link = [-1];
  private readonly length = [0];
  private readonly best = [0];
  private readonly ends: number[] = []; // the state that each prefix of the sample leads to

  constructor(sample: string) {
    for (const char of sample) this.append(char);
  }

  private state(length: number, next: Map<string, number>, link: number): number {
    this.next.push(next);
    this.link.push(link);
    this.length.push(length);
    return this.best.push(0) - 1;
  }

  private append(char: string): void {
    let last = this.ends.at(-1) ?? 0;
    const fresh = this.state(this.length[last]! + 1, new Map(), 0);
    this.ends.push(fresh);
    for (; last >= 0 && !this.next[last]!.has(char); last = this.link[last]!) this.next[last]!.set(char, fresh);
    if (last < 0) return;
    const found = this.next[last]!.get(char)!;
    if (this.length[found] === this.length[last]! + 1) {
      this.link[fresh] = found;
      return;
    }
    const clone = this.state(this.length[last]! + 1, new Map(this.next[found]), this.link[found]!);
    this.link[found] = this.link[fresh] = clone;
    for (; last >= 0 && this.next[last]!.get(char) === found; last = this.link[last]!)
      this.next[last]!.set(char, clone);
  }

  /** Records for each state the length of its longest substring that occurs in the text. */
  read(text: string): void {
    let state = 0;
    let matched = 0;
    for (const char of text) {
      let to = this.next[state]!.get(char);
      while (to === undefined && state) {
        state = this.link[state]!;
        matched = this.length[state]!;
        to = this.next[state]!.get(char);
      }
      if (to === undefined) continue;
      state = to;
      matched++;
      if (matched > this.best[state]!) this.best[state] = matched;
    }
  }

  /** Returns for each character of the sample the length of the longest run that ends with it and is in the text. */
  longest(): number[] {
    const best = [...this.best];
    const order = Array.from(best.keys())
      .slice(1)
      .sort((a, b) => this.length[b]! - this.length[a]!);
    for (const state of order) {
      const above = this.link[state]!;
      best[above] = Math.max(best[above]!, Math.min(best[state]!, this.length[above]!));
    }
    return this.ends.map((end) => {
      let state = end;
      while (state > 0 && !best[state]) state = this.link[state]!;
      return best[state]!;
    });
  }
}
