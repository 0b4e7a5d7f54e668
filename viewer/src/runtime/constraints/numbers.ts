// Builds grammar expressions that match the numbers in a range.

import { PageError } from "../gl/errors";

const DIGITS = 15; // maximum digits before the decimal point
const DECIMALS = 2; // minimum decimals of fractions with the same integer part as a fractional bound (see `numbers`)
const MAX_DECIMALS = 15;

/** The keywords of JSON Schema that bound a number. */
export interface Bounds {
  minimum?: number | undefined;
  maximum?: number | undefined;
  exclusiveMinimum?: number | undefined;
  exclusiveMaximum?: number | undefined;
}

/** Returns the expression for `least` to `most` digits. */
function digits(least: number, most = least): string {
  if (most === 0) return "";
  return most === 1 && least === 1 ? "[0-9]" : `[0-9]{${least === most ? least : `${least},${most}`}}`;
}

const joined = (...parts: string[]): string => parts.filter(Boolean).join(" ");

/** Returns the expression for the digit strings from `low` to `high`, which are equally long; "" if both are empty. */
function between(low: string, high: string): string {
  const n = low.length;
  if (/^0*$/.test(low) && /^9*$/.test(high)) return digits(n);
  let [first, last] = [Number(low[0]), Number(high[0])];
  const digit = (from: number, to: number) => (from === to ? `"${from}"` : `[${from}-${to}]`);
  if (first === last) return joined(digit(first, last), between(low.slice(1), high.slice(1)));
  const [zeros, nines] = ["0".repeat(n - 1), "9".repeat(n - 1)];
  const found: string[] = [];
  if (low.slice(1) !== zeros) found.push(joined(digit(first, first++), between(low.slice(1), nines)));
  const end = high.slice(1) === nines ? "" : joined(digit(last, last--), between(zeros, high.slice(1)));
  if (first <= last) found.push(joined(digit(first, last), digits(n - 1)));
  if (end) found.push(end);
  return found.length > 1 ? `(${found.join(" | ")})` : found[0]!;
}

/** Returns the expressions for the integers low..high. `low` is at least 0. */
function natural(low: bigint, high: bigint): string[] {
  const [first, last] = [String(low), String(high)];
  if (first.length === last.length) return [between(first, last)];
  const found: string[] = [];
  if (low === 0n) found.push("[0-9]");
  else found.push(between(first, "9".repeat(first.length)));
  const least = first.length + 1;
  let most = last.length;
  const end = /^9+$/.test(last) ? "" : between("1".padEnd(last.length, "0"), last);
  if (end) most--;
  if (least <= most) found.push(joined("[1-9]", digits(least - 1, most - 1)));
  if (end) found.push(end);
  return found;
}

/** Returns the expressions for the numbers low..high. The limits are in units of 10^-point, and `low` is at least 0. */
function decimals(low: bigint, high: bigint, point: number): string[] {
  const unit = 10n ** BigInt(point);
  const fraction = (value: bigint) => String(value % unit).padStart(point, "0");
  const [first, last] = [low / unit, high / unit];
  const within = (whole: bigint, from: string, to: string) => `"${whole}" "." ${between(from, to)}`;
  if (first === last && low % unit) return [within(first, fraction(low), fraction(high))];
  const found: string[] = [];
  if (low % unit) found.push(within(first, fraction(low), "9".repeat(point)));
  const start = low % unit ? first + 1n : first;
  if (start < last) found.push(`(${natural(start, last - 1n).join(" | ")}) ("." ${digits(1, MAX_DECIMALS)})?`);
  found.push(`"${last}"`);
  if (high % unit) found.push(within(last, "0".repeat(point), fraction(high)));
  return found;
}

type Range = (low: bigint, high: bigint) => string[];

/** Returns the expressions for the numbers low..high. `range` does this for limits that are not negative. */
function signed(low: bigint, high: bigint, range: Range): string[] {
  if (low > high) return [];
  const found = high >= 0n ? range(low > 0n ? low : 0n, high) : [];
  if (low < 0n) found.push(...range(high < 0n ? -high : 1n, -low).map((part) => `"-" ${part}`));
  return found;
}

/** Returns the shortest decimal form of a number: `units` * 10^-decimals. */
function decimal(value: number): { units: bigint; decimals: number } {
  const [, sign = "", whole = "0", fraction = "", exponent = "0"] =
    /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(value)) ?? [];
  const decimals = fraction.length - Number(exponent);
  const units = BigInt(`${sign}${whole}${fraction}`) * 10n ** BigInt(Math.max(0, -decimals));
  return { units, decimals: Math.max(0, decimals) };
}

/** Returns a value in units of 10^-point, rounded up. With `above`, the result is always greater than the value. */
function units(value: number, point: number, above: boolean): bigint {
  const { units: own, decimals } = decimal(value);
  const scaled = own * 10n ** BigInt(Math.max(0, point - decimals));
  const step = 10n ** BigInt(Math.max(0, decimals - point));
  const floor = scaled / step - (scaled % step < 0n ? 1n : 0n);
  const exact = floor * step === scaled;
  return exact ? floor + (above ? 1n : 0n) : floor + 1n;
}

/**
 * Returns the lowest and the highest number within bounds, in units of 10^-point. A side without a bound ends at the
 * greatest number with `DIGITS` digits before the decimal point, or at its negative.
 */
function range({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Bounds, point: number): [bigint, bigint] {
  const far = 10n ** BigInt(DIGITS + point) - 1n;
  const lows = [
    ...(minimum === undefined ? [] : [units(minimum, point, false)]),
    ...(exclusiveMinimum === undefined ? [] : [units(exclusiveMinimum, point, true)]),
  ];
  const highs = [
    ...(maximum === undefined ? [] : [-units(-maximum, point, false)]),
    ...(exclusiveMaximum === undefined ? [] : [-units(-exclusiveMaximum, point, true)]),
  ];
  const low = lows.reduce((a, b) => (a > b ? a : b), lows[0] ?? -far);
  const high = highs.reduce((a, b) => (a < b ? a : b), highs[0] ?? far);
  return [low, high];
}

const isBound = (bound: number | undefined): bound is number => bound !== undefined;

/** Returns the expression for the integers within bounds. Throws PageError if none exists. */
export function integers(bounds: Bounds): string {
  if (!Object.values(bounds).some(isBound)) return `"-"? ("0" | [1-9] [0-9]{0,${DIGITS - 1}})`;
  const found = signed(...range(bounds, 0), natural);
  if (!found.length) throw new PageError("no integer is within its bounds");
  return found.join(" | ");
}

/**
 * Returns the expression for the numbers within bounds. A number with the same integer part as a fractional bound has
 * either no decimals, or as many as the bound with the most decimals (at least `DECIMALS`). Throws PageError if no
 * number is within the bounds, or if a bound has more than `MAX_DECIMALS` decimals.
 */
export function numbers(bounds: Bounds): string {
  const given = Object.values(bounds as Record<string, number | undefined>).filter(isBound);
  if (!given.length) {
    return `"-"? ("0" | [1-9] [0-9]{0,${DIGITS - 1}}) ("." [0-9]{1,${DIGITS}})? ([eE] [+-]? [0-9]{1,2})?`;
  }
  const point = Math.max(DECIMALS, ...given.map((bound) => decimal(bound).decimals));
  if (point > MAX_DECIMALS) throw new PageError(`its bounds have more than ${MAX_DECIMALS} decimals`);
  const found = signed(...range(bounds, point), (low, high) => decimals(low, high, point));
  if (!found.length) throw new PageError("no number is within its bounds");
  return found.join(" | ");
}
