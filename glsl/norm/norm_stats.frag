// Divides each row of x into slices and computes the moments of each slice: texel (row, slice) of y is (mean, sum of
// squared deviations, number of values, 0).
#include "moments.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec3 sum = vec3(0.0);
  int end = min((p.x + 1) * SLICE, C4);
  for (int c4 = p.x * SLICE; c4 < end; c4++) {
    sum = merge_moments(sum, texel_moments(x_at(p.y, c4), min(4, X_COLS - 4 * c4)));
  }
  vec4 v[1];
  v[0] = vec4(sum, 0.0);
  STORE_Y(v)
}
