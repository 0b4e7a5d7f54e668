// How attention's values become colours: shared by the shader that draws them and the legend that explains them.

import type { Kind } from "./attention";

/** Opacity of a weight is weight^WEIGHT_EXPONENT, so that small weights show. */
export const WEIGHT_EXPONENT = 0.4;
/** Opacity of a score is 1 - exp(-|score| / SCORE_SCALE); its hue is the sign's. */
export const SCORE_SCALE = 3;

/** The opacity of a value, with its sign: from 0 to 1 of weights, from -1 to 1 of scores. */
export function shade(kind: Kind, value: number): number {
  if (kind === "pattern") return value ** WEIGHT_EXPONENT;
  return Math.sign(value) * (1 - Math.exp(-Math.abs(value) / SCORE_SCALE));
}

/** Values that a legend names. */
export const TICKS: Record<Kind, readonly number[]> = {
  pattern: [0, 0.01, 0.1, 0.5, 1],
  scores: [-8, -2, 0, 2, 8],
  raw: [-8, -2, 0, 2, 8],
};

/** Where a legend that is linear in opacity has a value: from 0 to 1. */
export function legendPlace(kind: Kind, value: number): number {
  return kind === "pattern" ? shade(kind, value) : (1 + shade(kind, value)) / 2;
}
