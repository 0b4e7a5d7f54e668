// Computes the moments (mean, sum of squared deviations, count) of a set of values, and merges the moments of two sets
// (Chan, Golub and LeVeque 1979). This method never subtracts two large sums, so the variance of a residual stream with
// a large mean is precise.
#include "finite.glsl"
#ifdef GAIN_OFFSET
#define GAIN_OF(c4) (gain_at(0, c4) + GAIN_OFFSET)
#else
#define GAIN_OF(c4) gain_at(0, c4)
#endif

vec3 merge_moments(vec3 a, vec3 b) {
  float n = max(a.z + b.z, 1.0), d = b.x - a.x;
  return vec3(a.x + d * (b.z / n), a.y + b.y + d * d * (a.z * b.z / n), a.z + b.z);
}

// Returns the moments of the first `lanes` values of a texel.
vec3 texel_moments(vec4 v, int lanes) {
  vec4 mask = vec4(lessThan(ivec4(0, 1, 2, 3), ivec4(lanes)));
  float mean = dot(v, mask) / float(lanes);
  vec4 d = (v - mean) * mask;
  return vec3(mean, dot(d, d), float(lanes));
}

// Returns (value that a norm subtracts from a row, factor by which it multiplies the difference) for the row's moments.
// An RMS norm (Zhang and Sennrich 2019) subtracts 0. If the mean square overflows, the factor is set to infinity, since
// 1 / sqrt(infinity) = 0 would turn the row into the bias and hide the overflow.
vec2 norm_of(vec3 moments, float count, float epsilon) {
  float variance = moments.y / count, square = variance + moments.x * moments.x;
#ifdef RMS_NORM
  return vec2(0.0, finite(square) ? 1.0 / sqrt(square + epsilon) : INFINITY);
#else
  return vec2(moments.x, finite(square) ? 1.0 / sqrt(variance + epsilon) : INFINITY);
#endif
}
