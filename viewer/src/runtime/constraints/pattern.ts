// Converts a regular expression to a grammar. The expression must match a whole text.

import { charactersOf, complement, intersection, literal, UNICODE, union, type Characters } from "./characters";
import { PageError } from "../gl/errors";
import { Repetitions } from "./repetition";

const DIGITS: Characters = [[0x30, 0x39]];
const WORDS = union(DIGITS, [
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
]);
const LINE_ENDS = charactersOf("\n\r\u2028\u2029");
const BLANKS = union(charactersOf(" \t\f\v\u00a0\u1680\u202f\u205f\u3000\ufeff"), [[0x2000, 0x200a]], LINE_ENDS);
const CLASSES: Record<string, Characters> = {
  d: DIGITS,
  D: complement(DIGITS),
  w: WORDS,
  W: complement(WORDS),
  s: BLANKS,
  S: complement(BLANKS),
};
const CONTROLS: Record<string, string> = { n: "\n", r: "\r", t: "\t", f: "\f", v: "\v", 0: "\0" };
const MAX_TIMES = 4096; // maximum count of a repetition
const MAX_SIZE = 1 << 14; // maximum characters and classes of an expression, with each repetition written out
const MAX_DEPTH = 64; // maximum depth of groups

export interface PatternOptions {
  /** True if `.` matches line ends. */
  dotAll?: boolean;
}

/**
 * Returns the grammar expression for a regular expression, and adds the rules that the result uses to `repetitions`.
 * Throws PageError for unsupported syntax.
 */
export function patternGrammar(source: string, repetitions: Repetitions, options: PatternOptions = {}): string {
  return new Parser(source, repetitions, options).whole();
}

/** A part of a grammar. `size`: the number of its characters and classes, with each repetition written out. */
interface Part {
  text: string;
  size: number;
  /** The set of characters, if the part matches exactly one character. */
  set?: Characters;
}

class Parser {
  private at = 0;
  private depth = 0;

  constructor(
    private readonly source: string,
    private readonly repetitions: Repetitions,
    private readonly options: PatternOptions,
  ) {}

  whole(): string {
    const { text } = this.alternatives();
    if (this.at < this.source.length) throw this.refused("a closing parenthesis has no opening one");
    return text;
  }

  private refused(why: string): PageError {
    return new PageError(`at character ${this.at + 1}, ${why}`);
  }

  private peek(text: string): boolean {
    return this.source.startsWith(text, this.at);
  }

  private take(text: string): boolean {
    const found = this.peek(text);
    if (found) this.at += text.length;
    return found;
  }

  private get ended(): boolean {
    return this.at >= this.source.length;
  }

  private alternatives(): Part {
    if (++this.depth > MAX_DEPTH) throw this.refused(`groups are nested more than ${MAX_DEPTH} deep`);
    const found = [this.sequence()];
    while (this.take("|")) found.push(this.sequence());
    this.depth--;
    return { text: `(${texts(found).join(" | ")})`, size: this.size(found) };
  }

  /** Returns the total size of parts that repeat `times` times. Throws PageError if the total exceeds `MAX_SIZE`. */
  private size(parts: readonly Part[], times = 1): number {
    const found = times * parts.reduce((sum, { size }) => sum + size, 0);
    if (found <= MAX_SIZE) return found;
    throw this.refused(`repetitions expand the expression to ${found} characters; at most ${MAX_SIZE} are supported`);
  }

  private sequence(): Part {
    const found: Part[] = [];
    if (this.depth === 1) this.take("^"); // the whole text has to match anyway
    while (!this.ended && !this.peek("|") && !this.peek(")")) {
      if (this.depth === 1 && this.peek("$") && [undefined, "|"].includes(this.source[this.at + 1])) {
        this.at++;
        break;
      }
      found.push(this.repeated(this.atom()));
    }
    return { text: texts(found).join(" ") || '""', size: this.size(found) };
  }

  private repeated(atom: Part): Part {
    const found = this.quantified(atom);
    if (found !== atom) this.take("?"); // lazy repetition matches the same texts
    return found;
  }

  /** Returns a part with the quantifier that follows it, or `atom` itself if no quantifier follows. */
  private quantified(atom: Part): Part {
    const counts = /^\{(\d+)(?:(,)(\d*))?\}/.exec(this.source.slice(this.at));
    let suffix = "";
    let times = 1;
    if (counts) {
      const [text, least, comma, most] = counts as unknown as [string, string, string?, string?];
      const [low, high] = [Number(least), Number(most || least)];
      if (high < low) throw this.refused(`the minimum of {${low},${high}} is greater than its maximum`);
      if (high > MAX_TIMES) throw this.refused(`${text} repeats more than ${MAX_TIMES} times`);
      times = Math.max(1, high);
      this.size([atom], times);
      this.at += text.length;
      const bound = comma && !most ? Infinity : high;
      if (atom.set) return { text: this.repetitions.of(atom.set, low, bound), size: times };
      suffix = `{${low}${comma ?? ""}${most ?? ""}}`;
    } else {
      suffix = ["*", "+", "?"].find((sign) => this.take(sign)) ?? "";
    }
    return suffix ? { text: `${atom.text}${suffix}`, size: times * atom.size } : atom;
  }

  private atom(): Part {
    if (this.take("(")) return this.group();
    if (this.take("[")) return this.written(this.members());
    if (this.take(".")) return this.written(this.options.dotAll ? UNICODE : complement(LINE_ENDS));
    if (this.take("\\")) return this.written(this.escaped(false));
    const character = String.fromCodePoint(this.source.codePointAt(this.at)!);
    if (character === "^" || character === "$") {
      throw this.refused(`the anchor ${character} is supported only at the edges of the expression`);
    }
    if ("*+?".includes(character)) throw this.refused(`${character} has nothing to repeat`);
    this.at += character.length;
    return this.written(charactersOf(character));
  }

  private group(): Part {
    if (this.peek("?=") || this.peek("?!") || this.peek("?<=") || this.peek("?<!")) {
      throw this.refused("look-around is not supported");
    }
    if (!this.take("?:")) {
      const name = /^\?<\w+>/.exec(this.source.slice(this.at));
      if (name) this.at += name[0].length;
      else if (this.peek("?")) throw this.refused("groups with flags are not supported");
    }
    const found = this.alternatives();
    if (!this.take(")")) throw this.refused("a parenthesis is not closed");
    return found;
  }

  /** Reads a class after its opening bracket, and returns its characters. */
  private members(): Characters {
    const inverted = this.take("^");
    let found: Characters = [];
    while (!this.take("]")) {
      if (this.ended) throw this.refused("a bracket is not closed");
      const low = this.member();
      if (this.peek("-") && !this.peek("-]") && single(low)) {
        this.at++;
        const high = this.member();
        if (!single(high) || high[0]![0] < low[0]![0]) throw this.refused("a range of characters has no valid end");
        found = union(found, [[low[0]![0], high[0]![0]]]);
      } else found = union(found, low);
    }
    return inverted ? complement(found) : found;
  }

  private member(): Characters {
    if (this.take("\\")) return this.escaped(true);
    const character = this.source.codePointAt(this.at);
    if (character === undefined) throw this.refused("a bracket is not closed");
    this.at += character > 0xffff ? 2 : 1;
    return [[character, character]];
  }

  /** Reads an escape after its backslash, and returns the characters that the escape matches. */
  private escaped(inClass: boolean): Characters {
    const letter = this.source[this.at];
    if (letter === undefined) throw this.refused("a backslash has nothing to escape");
    const code = /^(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})/.exec(this.source.slice(this.at));
    if (code) {
      const value = parseInt(code[1] ?? code[2] ?? code[3]!, 16);
      if (!intersection(UNICODE, [[value, value]]).length) throw this.refused(`\\${code[0]} is not a character`);
      this.at += code[0].length;
      return [[value, value]];
    }
    if (/[1-9k]/.test(letter)) throw this.refused("back references are not supported");
    if (/[pP]/.test(letter)) throw this.refused("classes of Unicode properties are not supported");
    if (!inClass && /[bB]/.test(letter)) throw this.refused("word boundaries are not supported");
    const control = letter === "b" ? "\b" : CONTROLS[letter];
    const known = CLASSES[letter] ?? (control === undefined ? undefined : charactersOf(control));
    if (!known && /[A-Za-z]/.test(letter)) throw this.refused(`the escape \\${letter} is not supported`);
    this.at++;
    return known ?? charactersOf(letter);
  }

  private written(set: Characters): Part {
    const text = this.repetitions.written(set);
    if (text === null) throw this.refused("a class has no character that can be written");
    return { text, size: 1, set };
  }
}

const texts = (parts: readonly Part[]): string[] => parts.map(({ text }) => text);
const single = (set: Characters): boolean => set.length === 1 && set[0]![0] === set[0]![1];

/** Returns the expression for one of several texts. */
export const choiceGrammar = (choices: readonly string[]): string => choices.map(literal).join(" | ");
