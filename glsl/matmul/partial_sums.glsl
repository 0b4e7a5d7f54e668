// Adds up the partial sums of a product for one texel of a row. Their places are described in `matvec.frag` for a
// product of one row, and in `few_rows.frag` for a product of several rows, where BATCH_ROW is the row to read. If
// several products were drawn side by side, this product begins at pixel column SUMS_FIRST of PARTIAL_SUMS; a second
// product (`finished_sum.glsl`) begins at SECOND_FIRST of SECOND_SUMS. With PAIRS (`pair.glsl`), layers with even
// numbers are in the lower pixel of a pair, and layers with odd numbers in the upper pixel.
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
// Returns where the partial sums of texel c4 in the first slice are: (texel, row, layer).
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

// Unrolling this loop by hand was not faster: the number of rounds is constant, so drivers unroll the loop.
vec4 sum_of_partial_sums(int c4) {
  ivec3 at = place_of_sums(c4);
  vec4 sum = vec4(0.0);
  for (int s = 0; s < SUMS_SPLIT_K; s++) sum += PARTIAL_SUMS(at.z, s * SUMS_BY + at.y, SUMS_FIRST + at.x);
  return sum;
}
