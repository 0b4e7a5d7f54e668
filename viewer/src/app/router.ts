// The page's address: reads the parameters of all views from it and writes them to it.

import { batch } from "@preact/signals";
import { VIEWS, PARAMS, OTHER_KEYS } from "./features";
import { readParams, writeParams } from "./stores/link";
import { route } from "./stores/route";

const ALL = [...PARAMS, ...VIEWS.flatMap(({ params }) => params)];
const KNOWN = new Set(["view", ...OTHER_KEYS, ...ALL.map(({ key }) => key)]);

/** Applies the address: all of it, or, for an entry of this page's history, the view and the selection within it. */
export function readAddress(history = false): void {
  const link = route.read();
  batch(() => {
    route.unknown.value = [...new Set(link.keys())].filter((key) => !KNOWN.has(key));
    route.view.value = VIEWS.find(({ name }) => name === link.get("view"))?.name ?? "text";
    readParams(history ? ALL.filter((each) => each.history) : ALL, link);
  });
}

/** Writes the current settings to the address. */
export function writeAddress(): void {
  const view = route.view.value;
  const { params } = VIEWS.find(({ name }) => name === view)!;
  route.write([["view", view], ...writeParams(PARAMS), ...writeParams(params)]);
}

/** True if the address has this key. */
export const addressHas = (key: string) => route.link.has(key);
