// Computes the moments of a slice of the residual stream of one row; blending adds up the slices. The moments are
// (sum of deviations from an origin, sum of their squares, the origin). The origin is the mean of the row's first
// texel. If the row has a large mean, the origin is near it, so the deviations are small and the variance is precise.
// Only slice 0 writes the origin, so that blending adds it once. With RMS_NORM, the origin and the first sum are 0.
#include "stream.glsl"

void main() {
  vec4 v[1];
#ifdef RMS_NORM
  const float origin = 0.0;
#else
  float origin = dot(stream_at(0), vec4(0.25));
#endif
  vec2 sums = vec2(0.0);
  int slice = slice_of_k * BANDS + BAND;
  for (int k4 = slice * SLICE; k4 < min((slice + 1) * SLICE, K4); k4++) {
    vec4 d = stream_at(k4) - origin;
    sums += vec2(dot(d, vec4(1.0)), dot(d, d));
  }
#ifdef RMS_NORM
  sums.x = 0.0;
#endif
  v[0] = vec4(sums, slice == 0 ? origin : 0.0, 0.0);
  STORE_Y(v)
}
