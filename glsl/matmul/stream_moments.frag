// Adds up the moments of a row of the residual stream over slices of it: (sum of deviations from an origin near its values,
// sum of their squares, the origin). The origin keeps the precision of a variance whose row has a large mean. With RMS_NORM
// it is 0, and so is the first sum.
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
