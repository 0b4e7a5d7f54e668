// The mapping from attention values to colours, shared by the shader and the legend.

import type { Kind } from "./attention";

/** The opacity of a weight is weight^WEIGHT_EXPONENT, so that small weights are visible. */
export const WEIGHT_EXPONENT = 0.4;
/** The opacity of a score is 1 - exp(-|score| / SCORE_SCALE); its hue shows the sign. */
export const SCORE_SCALE = 3;

/** Returns the signed opacity of a value: from 0 to 1 for weights, from -1 to 1 for scores. */
export function shade(kind: Kind, value: number): number {
  if (kind === "pattern") return value ** WEIGHT_EXPONENT;
  return Math.sign(value) * (1 - Math.exp(-Math.abs(value) / SCORE_SCALE));
}

/** Values labelled in the legend. */
export const TICKS: Record<Kind, readonly number[]> = {
  pattern: [0, 0.01, 0.1, 0.5, 1],
  scores: [-8, -2, 0, 2, 8],
  raw: [-8, -2, 0, 2, 8],
};

/** Returns the position of a value, from 0 to 1, in a legend that is linear in opacity. */
export function legendPlace(kind: Kind, value: number): number {
  return kind === "pattern" ? shade(kind, value) : (1 + shade(kind, value)) / 2;
}
