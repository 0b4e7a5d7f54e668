// Applies a norm after a product with a weight w. `normed` converts the product of (x gain) and w to the product of the
// normed row x' = (x - mean) / deviation * gain + bias and w: x' w = ((x gain) w - mean (gain w)) / deviation + bias w.
// The inputs gain_w and bias_w hold gain w and bias w (+ the layer's bias). Without these inputs, the norm is an RMS
// norm: x' w = (x gain) w / root mean square.
// mean_and_scale returns (mean, 1 / deviation) of the row. Each texel of MOMENTS holds (mean, sum of squared
// deviations, count) of a slice of the row; one loop without a division combines the slices. If the mean square
// overflows, the scale is set to infinity, since 1 / sqrt(infinity) = 0 would turn the row into the bias and hide the
// overflow.
#include "finite.glsl"
#include "places.glsl"
#ifndef BATCH_ROW
#define BATCH_ROW 0
#endif
// With MOMENTS_FIRST, MOMENTS is the output of `stream_moments.frag`, which begins at pixel column MOMENTS_FIRST.
#ifdef MOMENTS_FIRST
vec2 mean_and_scale() {
  vec4 m = vec4(0.0);
  for (int s = 0; s < SUMS_SPLIT_K; s++) m += MOMENTS(0, s * SUMS_BY, MOMENTS_FIRST);
  float d = m.x / float(WIDTH), mean = m.z + d, variance = max(m.y / float(WIDTH) - d * d, 0.0);
  float mean_square = variance + mean * mean;
  return vec2(mean, finite(mean_square) ? 1.0 / sqrt(variance + EPSILON) : INFINITY);
}
#elif !defined(GAIN_W_W)
vec2 mean_and_scale() {
  float sum = 0.0;
  for (int i = 0; i < MOMENTS_W; i++) {
    vec4 m = MOMENTS(0, BATCH_ROW, i);
    sum += m.y + m.z * m.x * m.x;
  }
  float square = sum / float(WIDTH);
  return vec2(0.0, finite(square) ? 1.0 / sqrt(square + EPSILON) : INFINITY);
}
#else
vec2 mean_and_scale() {
  float origin = MOMENTS(0, BATCH_ROW, 0).x;  // subtracted from means, so that a large mean costs no precision
  vec3 sum = vec3(0.0);  // over slices: n d, n d^2 (n: count, d: mean - origin), squared deviations
  for (int i = 0; i < MOMENTS_W; i++) {
    vec4 m = MOMENTS(0, BATCH_ROW, i);
    float d = m.x - origin;
    sum += vec3(m.z * d, m.z * d * d, m.y);
  }
  float d = sum.x / float(WIDTH), mean = origin + d, variance = (sum.y + sum.z) / float(WIDTH) - d * d;
  return vec2(mean, finite(variance + mean * mean) ? 1.0 / sqrt(variance + EPSILON) : INFINITY);
}

#endif
#ifndef GAIN_W_W
vec4 normed(vec4 product, int c4, vec2 row) { return product * row.y; }
#else
vec4 normed(vec4 product, int c4, vec2 row) {
  return (product - row.x * gain_w_at(0, c4)) * row.y + bias_w_at(0, c4);
}
#endif
