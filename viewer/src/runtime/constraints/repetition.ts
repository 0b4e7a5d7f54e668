// Grammars of counted characters. For each position of an expression xgrammar computes in advance which tokens may
// follow: 30 ms with a vocabulary of 49,152 tokens. Written out, 200 characters have more than 200 positions. Here they
// share one, up to the last few characters.

import { classOf, continued, inJson, type Characters } from "./characters";

const REACH = 16; // characters of a token that are known in advance; the last REACH - 1 of a text are written out
const BASE = 16; // repetitions of a rule for the next longer one
const INLINE = 16; // most repetitions that an expression writes out
const NOTHING = String.raw`"\u001f\u007e"`; // in no token, since no byte is written so

/** Returns an expression that repeats low..high times. */
export function repeated(expression: string, low: number, high: number): string {
  if (high === 0) return '""';
  return high === Infinity ? `${expression}{${low},}` : `${expression}{${low},${high}}`;
}

/** Returns rules as a grammar. */
export const rulesText = (rules: Iterable<readonly [name: string, expression: string]>): string =>
  Array.from(rules, ([name, expression]) => `${name} ::= ${expression}`).join("\n");

/** Makes rules of counted characters, which the expressions of one grammar share. */
export class Repetitions {
  readonly rules = new Map<string, string>();
  private readonly names = new Map<string, string>(); // the rule of each class

  /** `json`: the characters stand in a JSON string. */
  constructor(private readonly json = false) {}

  /** Returns the expression of a character of a set; null if none can be written. */
  written(set: Characters): string | null {
    return (this.json ? inJson : classOf)(set);
  }

  /** Returns the expression of low..high characters of a set, of which one can be written. */
  of(set: Characters, low: number, high: number): string {
    const few = (high === Infinity ? low : high) <= INLINE;
    return few ? repeated(this.written(set)!, low, high) : this.shared(set, low, high);
  }

  /** Returns a rule of low..high characters of a set, of which one can be written. */
  shared(set: Characters, low: number, high: number): string {
    const one = this.written(set)!;
    const name = this.names.get(one) ?? `characters_${this.names.size}`;
    this.names.set(one, name);
    this.rule(name, () => one);
    if (high < REACH) return this.last(name, low, high);
    if (high === Infinity && low < REACH) return this.rule(`${name}_${low}_more`, () => repeated(one, low, high));
    return this.long(name, set, low, high);
  }

  /** Returns the name of a rule. `expression` makes it the first time. */
  private rule(name: string, expression: () => string): string {
    if (!this.rules.has(name)) {
      this.rules.set(name, ""); // keeps its place before the rules that it reads
      this.rules.set(name, expression());
    }
    return name;
  }

  /** Returns the rule of low..high characters, fewer than REACH, written out. */
  private last(one: string, low: number, high: number): string {
    if (high === 0) return '""';
    return this.rule(`${one}_${low}_${high}`, () => {
      const more = `${one} ${this.last(one, Math.max(0, low - 1), high - 1)}`;
      return low ? more : `"" | ${more}`;
    });
  }

  /** Returns the rule of low..high characters, of which all but the last ones are followed by REACH - 1 or more. */
  private long(one: string, set: Characters, low: number, high: number): string {
    return this.rule(`${one}_${low}_${high === Infinity ? "more" : high}`, () => {
      this.far(one, set);
      if (high === Infinity) return `${this.exactly(one, low)} ${one}*`;
      const far = high - REACH + 1;
      const first = Math.min(low, far);
      const rest = this.last(one, low - first, REACH - 1);
      return `${this.exactly(one, first)} ${this.upTo(one, far - first, rest)}`;
    });
  }

  /**
   * Adds the rule of a character that REACH - 1 or more of its class may follow. A token with at most REACH characters
   * of the class is allowed, and one with a character of another class after them is examined when it may come. That
   * holds in each place, so xgrammar shall not replace the rule by its expression, nor derive what follows it: it has
   * an alternative that never occurs, and is used once, before another rule.
   */
  private far(one: string, set: Characters): void {
    this.rule("nothing", () => NOTHING);
    this.rule("end", () => '"" | nothing');
    const { same, other } = continued(set, this.json);
    const ahead = same === null ? [] : [`${same}{${REACH - 1}}`];
    if (other !== null) ahead.push(same === null ? other : `${same}* ${other}`);
    this.rule(`${one}_ahead`, () => ahead.join(" | "));
    this.rule(`${one}_far`, () => `${this.rules.get(one)!} | nothing (=${one}_ahead)`);
    this.rule(this.power(one, 0), () => `${one}_far end`);
  }

  /** Returns the name of the rule of BASE^level far characters. */
  private power(one: string, level: number): string {
    if (!level) return `${one}_far_1`;
    return this.rule(`${one}_far_${BASE ** level}`, () => `${this.power(one, level - 1)}{${BASE}}`);
  }

  /** Returns the rule of fewer than BASE^level far characters. */
  private below(one: string, level: number): string {
    if (!level) return "";
    const digit = () => `${this.power(one, level - 1)}{0,${BASE - 1}}`;
    return this.rule(`${one}_below_${BASE ** level}`, () => `${digit()} ${this.below(one, level - 1)}`);
  }

  /** Returns the expression of a number of far characters. */
  private exactly(one: string, count: number): string {
    const found: string[] = [];
    for (const [level, digit] of digits(count)) found.push(`${this.power(one, level)}{${digit}}`);
    return found.join(" ") || '""';
  }

  /** Returns the expression of fewer than `count` far characters, or `count` and `rest`. */
  private upTo(one: string, count: number, rest: string): string {
    let found = rest;
    for (const [level, digit] of digits(count).reverse()) {
      const power = this.power(one, level);
      found = `(${power}{0,${digit - 1}} ${this.below(one, level)} | ${power}{${digit}} ${found})`;
    }
    return found;
  }
}

/** Returns the digits of a number to BASE that are not 0, the highest first, each with its place. */
function digits(count: number): [level: number, digit: number][] {
  const found: [number, number][] = [];
  for (let [rest, level] = [count, 0]; rest; rest = Math.floor(rest / BASE), level++) {
    if (rest % BASE) found.unshift([level, rest % BASE]);
  }
  return found;
}
