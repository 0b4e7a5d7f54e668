// The settings that a link carries: a table of parameters, each a signal with its key, its text and its default.

import { batch, type Signal } from "@preact/signals";

/** A setting that a link carries. */
export interface Param<T> {
  key: string;
  signal: Signal<T>;
  /** Returns the value of a text; undefined if the text is invalid. */
  parse: (text: string) => T | undefined;
  /** Returns the text of a value; null: the link does without it. */
  format: (value: T) => string | null;
  /** The value without a valid text. */
  default: () => T;
  /** True if an entry of the browser's history restores it, as opposed to settings of the text. */
  history: boolean;
}

/** A parameter of any type, as tables hold them. */
export interface AnyParam {
  readonly key: string;
  readonly history: boolean;
  /** Sets the signal from a link. */
  read: (link: URLSearchParams) => void;
  /** Returns the text for a link; null: none. */
  write: () => string | null;
}

/** Returns a row of a table. `history` is true unless given, `format` is `String` unless given. */
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

/** Returns a number; undefined if the text is none. */
export function parseNumber(text: string): number | undefined {
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
}

/** Returns a function that parses a number and moves it into a range. */
export const parseWithin = (most: number) => (text: string) => {
  const value = parseNumber(text);
  return value === undefined ? undefined : Math.min(Math.max(0, value), most);
};

/** Returns a non-negative integer; undefined if the text is not a number. */
export function parseWhole(text: string): number | undefined {
  const value = parseNumber(text);
  return value === undefined ? undefined : Math.min(Math.max(0, Math.floor(value)), Number.MAX_SAFE_INTEGER);
}

/** Returns a function that accepts one of these texts. */
export const parseOneOf =
  <T extends string>(all: readonly T[]) =>
  (text: string) =>
    all.find((each) => each === text);

/** Returns the text itself. */
export const parseText = (text: string) => text;

/** Formats a value unless it is zero or empty. */
export const unlessEmpty = (value: string | number) => (value ? String(value) : null);
