// finished_sum(c4, row) returns texel c4 of the product of one row, from the partial sums of the product. `row` is the
// result of mean_and_scale. With MOMENTS, the product was computed from the row before its norm, and the norm is
// applied here. SHIFT is the bias of the linear layer, if it was not folded into the norm's bias.
// second_sum(c4, row) returns the same for SECOND_SUMS, another product of this row that has the same shape.
#include "partial_sums.glsl"
#ifdef MOMENTS
#include "folded_norm.glsl"
#else
vec2 mean_and_scale() { return vec2(0.0, 1.0); }
#endif

vec4 finished_sum(int c4, vec2 row) {
#ifdef MOMENTS
  vec4 v = normed(sum_of_partial_sums(c4), c4, row);
#else
  vec4 v = sum_of_partial_sums(c4);
#endif
#ifdef SHIFT_W
  v += shift_at(0, c4);
#endif
  return v;
}

#ifdef SECOND_SUMS_W
#ifndef SECOND_FIRST
#define SECOND_FIRST 0
#endif
vec4 second_sum(int c4, vec2 row) {
  ivec3 at = place_of_sums(c4);
  vec4 v = vec4(0.0);
  for (int s = 0; s < SUMS_SPLIT_K; s++) v += SECOND_SUMS(at.z, s * SUMS_BY + at.y, SECOND_FIRST + at.x);
#ifdef MOMENTS
  v = normed(v, c4, row);
#endif
#ifdef SECOND_SHIFT_W
  v += second_shift_at(0, c4);
#endif
  return v;
}
#endif
