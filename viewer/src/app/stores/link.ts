// The settings in a link to the page: a table of parameters. Each has a key, a signal that holds its value, functions
// that convert the value to and from the text in the link, and a default.

import { batch, type Signal } from "@preact/signals";

/** A setting in a link to the page. */
export interface Param<T> {
  key: string;
  signal: Signal<T>;
  /** Returns the value of a text in a link; undefined if the text is invalid. */
  parse: (text: string) => T | undefined;
  /** Returns the text that a link has for a value; null omits the parameter from the link. */
  format: (value: T) => string | null;
  /** Returns the value to use if the link has no valid text. */
  default: () => T;
  /** True if going back in the browser's history restores the value; false if the value stays, as for the prompt. */
  history: boolean;
}

/** A row of a table of parameters, whatever the type of its value. */
export interface AnyParam {
  readonly key: string;
  readonly history: boolean;
  /** Sets the signal from a link. */
  read: (link: URLSearchParams) => void;
  /** Returns the text for a link; null omits the parameter. */
  write: () => string | null;
}

/** Returns a row of a table. `history` defaults to true, and `format` to `String`. */
export function param<T>(
  row: Pick<Param<T>, "key" | "signal" | "parse"> & Partial<Param<T>> & { default: () => T },
): AnyParam {
  const { key, signal, parse, format = String, history = true } = row;
  return {
    key,
    history,
    read: (link) => {
      const text = link.get(key);
      const value = text === null ? undefined : parse(text);
      signal.value = value === undefined ? row.default() : value;
    },
    write: () => format(signal.value),
  };
}

/** Sets all signals of a table from a link. */
export function readParams(params: readonly AnyParam[], link: URLSearchParams): void {
  batch(() => params.forEach((each) => each.read(link)));
}

/** Returns the keys and texts of a table. */
export function writeParams(params: readonly AnyParam[]): [string, string][] {
  return params.flatMap((each): [string, string][] => {
    const text = each.write();
    return text === null ? [] : [[each.key, text]];
  });
}

/** Returns the number that a text stands for; undefined if the text is not a finite number. */
export function parseNumber(text: string): number | undefined {
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
}

/** Returns a function like `parseNumber` that clamps the number to the range from 0 to `most`. */
export const parseWithin = (most: number) => (text: string) => {
  const value = parseNumber(text);
  return value === undefined ? undefined : Math.min(Math.max(0, value), most);
};

/** Returns the number in a text, rounded down, and 0 if it is negative; undefined if the text is not a number. */
export function parseWhole(text: string): number | undefined {
  const value = parseNumber(text);
  return value === undefined ? undefined : Math.min(Math.max(0, Math.floor(value)), Number.MAX_SAFE_INTEGER);
}

/** Returns a parser that accepts the texts `all`, and returns undefined for any other text. */
export const parseOneOf =
  <T extends string>(all: readonly T[]) =>
  (text: string) =>
    all.find((each) => each === text);

export const parseText = (text: string) => text;

/** Returns a text that is to be an object's key; undefined for a key that all objects have, such as "constructor". */
export const parseKey = (text: string) => (text in {} ? undefined : text);

/** Formats a value unless it is zero or empty. */
export const unlessEmpty = (value: string | number) => (value ? String(value) : null);
