// The selection of the Attention view: the enlarged head, the pinned ones, and what is shown of them.

import { batch, signal } from "@preact/signals";
import { KINDS, MEAN, type Kind } from "../../drawing/attention";
import { param, parseOneOf, parseWhole } from "../../stores/link";
import { engine } from "../../stores/model";

export const layer = signal(0);
/** A head, or MEAN. */
export const head = signal(0);
/** True if no head was chosen: the view selects the sharpest. */
export const sought = signal(true);
/** Pinned heads, as `layer.head`. */
export const beside = signal<string[]>([]);
export const kind = signal<Kind>("pattern");

/** Enlarges a head. */
export function chooseHead(ofLayer: number, which: number): void {
  batch(() => {
    layer.value = ofLayer;
    head.value = which;
    sought.value = false;
  });
}

export const headName = (ofLayer: number, which: number) => `${ofLayer}.${which === MEAN ? "mean" : which}`;

/** Returns the layer and head of a name such as `3.5` or `3.mean`. */
export function headNamed(name: string): [number, number] {
  const [ofLayer, which] = name.split(".");
  return [Number(ofLayer), which === "mean" ? MEAN : Number(which)];
}

/** Restricts the selection to the current model's layers and heads. */
export function fit(): void {
  const { placement, manifest } = engine().model;
  const { blocks } = placement;
  const { n_head } = manifest.config;
  layer.value = Math.min(layer.value, blocks - 1);
  head.value = Math.min(head.value, n_head - 1);
  beside.value = beside.value.filter((name) => {
    const [ofLayer, which] = headNamed(name);
    return ofLayer < blocks && which < n_head;
  });
}

const unlessSought = (text: string) => (sought.value ? null : text);

export const params = [
  param({ key: "kind", signal: kind, parse: parseOneOf(KINDS), default: () => "pattern" as const }),
  param({
    key: "layer",
    signal: layer,
    parse: parseWhole,
    format: (value) => unlessSought(String(value)),
    default: () => 0,
  }),
  param({
    key: "head",
    signal: head,
    parse: (text) => (text === "mean" ? MEAN : parseWhole(text)),
    format: (value) => unlessSought(value === MEAN ? "mean" : String(value)),
    default: () => 0,
  }),
  param({ key: "head", signal: sought, parse: () => false, format: () => null, default: () => true }),
  param<string[]>({
    key: "beside",
    signal: beside,
    parse: (text) => text.split(",").filter((name) => /^\d+\.(\d+|mean)$/.test(name)),
    format: (names) => names.join() || null,
    default: () => [],
  }),
];
