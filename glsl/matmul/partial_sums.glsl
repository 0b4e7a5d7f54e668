// Adds up the partial sums of a one-row product for one texel of columns. `matvec.frag` describes their places, and
// `few_rows.frag` those of row BATCH_ROW of several. Products that were drawn side by side begin at the pixel columns
// SUMS_FIRST and SECOND_FIRST. PAIRS of pixels have added up two slices, and left every second layer in the row above.
#ifndef ROW_GROUPS
#define ROW_GROUPS 1
#endif
#ifndef BATCH_ROW
#define BATCH_ROW 0
#endif
#ifndef SUMS_FIRST
#define SUMS_FIRST 0
#endif
#include "places.glsl"
// The place of a texel of columns in the first slice: (texel, row, layer).
ivec3 place_of_sums(int c4) {
#if SHARED > 1
  int texel = c4 / (SHARED * TILE) * TILE + c4 % TILE;
#else
  int texel = c4;
#endif
#if SUMS_CONTIGUOUS > 0
  int layer = texel % SUMS_CONTIGUOUS, column = texel / SUMS_CONTIGUOUS;
#else
  int layer = texel / SUMS_STRIDE, column = texel % SUMS_STRIDE;
#endif
#if SHARED > 1
  layer = layer * SHARED + c4 / TILE % SHARED;
#endif
  layer += BATCH_ROW / ROW_GROUPS * PARTIAL_SUMS_TC;
  int y = BATCH_ROW % ROW_GROUPS * (SUMS_SPLIT_K * SUMS_BY) + column / 4 % SUMS_BY;
  int x = column / (4 * SUMS_BY) * 4 + column % 4;
#ifdef PAIRS
  return ivec3(x, 2 * y + layer % 2, layer / 2);
#else
  return ivec3(x, y, layer);
#endif
}

// A plain loop with a constant bound: drivers unroll it better than by hand.
vec4 sum_of_partial_sums(int c4) {
  ivec3 at = place_of_sums(c4);
  vec4 sum = vec4(0.0);
  for (int s = 0; s < SUMS_SPLIT_K; s++) sum += PARTIAL_SUMS(at.z, s * SUMS_BY + at.y, SUMS_FIRST + at.x);
  return sum;
}
