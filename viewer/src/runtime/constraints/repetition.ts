// Builds grammars of counted characters, such as 100 to 200 letters. For each position of an expression, xgrammar
// computes in advance which tokens may follow: this takes 30 ms per position with a vocabulary of 49,152 tokens. 200
// characters that are written out have more than 200 positions. In the grammars of this module, all but the last
// REACH - 1 characters share one position.

import { classOf, continued, inJson, type Characters } from "./characters";

// Maximum characters of a token that is checked in advance. Rules write out the last REACH - 1 characters of a text.
const REACH = 16;
const BASE = 16; // a rule of many characters repeats the next shorter rule this many times
const INLINE = 16; // maximum repetitions that an expression writes out
const NOTHING = String.raw`"\u001f\u007e"`; // matches no token, because `writtenBytes` never returns this text

/** Returns the expression that repeats `expression` low..high times. */
export function repeated(expression: string, low: number, high: number): string {
  if (high === 0) return '""';
  return high === Infinity ? `${expression}{${low},}` : `${expression}{${low},${high}}`;
}

/** Returns the text of a grammar with these rules. */
export const rulesText = (rules: Iterable<readonly [name: string, expression: string]>): string =>
  Array.from(rules, ([name, expression]) => `${name} ::= ${expression}`).join("\n");

/** Makes rules of counted characters. The expressions of one grammar share these rules. */
export class Repetitions {
  readonly rules = new Map<string, string>();
  private readonly names = new Map<string, string>(); // the rule of each set of characters, by the set's expression

  /** `json`: the characters stand in a JSON string. */
  constructor(private readonly json = false) {}

  /** Returns the expression that matches one character of a set; null if no character of the set can be written. */
  written(set: Characters): string | null {
    return (this.json ? inJson : classOf)(set);
  }

  /** Returns an expression that matches low..high characters of a set that has at least one writable character. */
  of(set: Characters, low: number, high: number): string {
    const few = (high === Infinity ? low : high) <= INLINE;
    return few ? repeated(this.written(set)!, low, high) : this.shared(set, low, high);
  }

  /**
   * Returns the name of a rule that matches low..high characters of a set with at least one writable character; `""` if
   * `high` is 0.
   */
  shared(set: Characters, low: number, high: number): string {
    const one = this.written(set)!;
    const name = this.names.get(one) ?? `characters_${this.names.size}`;
    this.names.set(one, name);
    this.rule(name, () => one);
    if (high < REACH) return this.last(name, low, high);
    if (high === Infinity && low < REACH) return this.rule(`${name}_${low}_more`, () => repeated(one, low, high));
    return this.long(name, set, low, high);
  }

  /** Returns `name`. The first call with this name adds the rule, with the result of `expression`. */
  private rule(name: string, expression: () => string): string {
    if (!this.rules.has(name)) {
      this.rules.set(name, ""); // keeps the rule's place before the rules that it refers to
      this.rules.set(name, expression());
    }
    return name;
  }

  /** Returns the name of the rule that writes out low..high characters; `""` if `high` is 0. `high` is below REACH. */
  private last(one: string, low: number, high: number): string {
    if (high === 0) return '""';
    return this.rule(`${one}_${low}_${high}`, () => {
      const more = `${one} ${this.last(one, Math.max(0, low - 1), high - 1)}`;
      return low ? more : `"" | ${more}`;
    });
  }

  /**
   * Returns the name of the rule of low..high characters. All but the last REACH - 1 use the shared rule of `far`; if
   * `high` is Infinity, only the first `low` characters do.
   */
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
   * Adds the rule of a "far" character: REACH - 1 or more characters of the same set may follow it. Where a far
   * character may stand, a token of at most REACH characters of the set is always allowed. A token that begins in the
   * set and then leaves it is checked only during generation. This is the same for every far character, so xgrammar
   * can compute the allowed tokens once for the rule. But xgrammar must neither replace the rule by its expression nor
   * derive what follows the rule. Therefore the rule has an alternative that never matches, and only one other rule
   * refers to it: `…_far_1`, which consists of the far rule and then the rule `end`.
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

  /** Returns the name of the rule of BASE^level far characters (see `far`). */
  private power(one: string, level: number): string {
    if (!level) return `${one}_far_1`;
    return this.rule(`${one}_far_${BASE ** level}`, () => `${this.power(one, level - 1)}{${BASE}}`);
  }

  /** Returns the name of the rule of fewer than BASE^level far characters; "" for level 0. */
  private below(one: string, level: number): string {
    if (!level) return "";
    const digit = () => `${this.power(one, level - 1)}{0,${BASE - 1}}`;
    return this.rule(`${one}_below_${BASE ** level}`, () => `${digit()} ${this.below(one, level - 1)}`);
  }

  /** Returns the expression of exactly `count` far characters. */
  private exactly(one: string, count: number): string {
    const found: string[] = [];
    for (const [level, digit] of digits(count)) found.push(`${this.power(one, level)}{${digit}}`);
    return found.join(" ") || '""';
  }

  /** Returns the expression of either fewer than `count` far characters, or `count` far characters and then `rest`. */
  private upTo(one: string, count: number, rest: string): string {
    let found = rest;
    for (const [level, digit] of digits(count).reverse()) {
      const power = this.power(one, level);
      found = `(${power}{0,${digit - 1}} ${this.below(one, level)} | ${power}{${digit}} ${found})`;
    }
    return found;
  }
}

/** Returns the nonzero digits of a number in base BASE, each with its exponent (`level`), highest exponent first. */
function digits(count: number): [level: number, digit: number][] {
  const found: [number, number][] = [];
  for (let [rest, level] = [count, 0]; rest; rest = Math.floor(rest / BASE), level++) {
    if (rest % BASE) found.unshift([level, rest % BASE]);
  }
  return found;
}
