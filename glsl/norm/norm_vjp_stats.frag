// Computes the sums that the norm's gradient needs, for each slice of a row: texel (row, slice) = (sum of gain dy, sum
// of gain dy x', mean of the row, 1 / deviation of the row), where x' = (x - mean) / deviation.
#include "moments.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec3 moments = vec3(0.0);
  for (int s = 0; s < STATS_W; s++) moments = merge_moments(moments, STATS(0, p.y, s).xyz);
  vec2 row = norm_of(moments, float(X_COLS), EPSILON);
  vec4 a = vec4(0.0), b = vec4(0.0);
  int end = min((p.x + 1) * SLICE, C4);
  for (int c4 = p.x * SLICE; c4 < end; c4++) {
    vec4 g = GAIN_OF(c4) * dy_at(p.y, c4);
#ifndef RMS_NORM  // an RMS norm subtracts no mean
    a += g;
#endif
    b += g * (x_at(p.y, c4) - row.x) * row.y;
  }
  vec4 v[1];
  v[0] = vec4(dot(a, vec4(1.0)), dot(b, vec4(1.0)), row);
  STORE_Y(v)
}
