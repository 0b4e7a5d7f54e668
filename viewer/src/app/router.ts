// The page's address: reads the parameters of all views from it and writes them to it.

import { batch } from "@preact/signals";
import { VIEWS, PARAMS } from "./features";
import { readParams, writeParams } from "./stores/link";
import { route, type View } from "./stores/route";

/** The first view that every model has. */
const FIRST = VIEWS.find(({ available }) => !available)!;
const ALL = [...PARAMS, ...VIEWS.flatMap(({ params }) => params)];
const KNOWN = new Set(["view", ...ALL.map(({ key }) => key)]);

/** Returns the view that is shown. */
export const currentView = (): View => VIEWS.find(({ name }) => name === route.view.value) ?? FIRST;

/** Applies the address. If it is that of a history entry (`history`), applies only the view and its selection. */
export function readAddress(history = false): void {
  const link = route.read();
  batch(() => {
    route.unknown.value = [...new Set(link.keys())].filter((key) => !KNOWN.has(key));
    route.view.value = (VIEWS.find(({ name }) => name === link.get("view")) ?? FIRST).name;
    readParams(history ? ALL.filter((each) => each.history) : ALL, link);
  });
}

/** Writes the current settings to the address. */
export function writeAddress(): void {
  const { name, params } = currentView();
  route.write([["view", name], ...writeParams(PARAMS), ...writeParams(params)]);
}

/** True if the address has this key. The caller does not subscribe to changes of the address. */
export const addressHas = (key: string) => route.link.peek().has(key);
