// Computes the scales of a head norm (an RMS norm of queries or keys): y[t, g] = 1 / sqrt(m + HEAD_EPSILON), where m is
// the mean square of row t of x in column group g. A group (one head, or all heads) has COUNT values in GROUP4 texels;
// group 0 begins at texel FIRST. With PARTIAL_SUMS, x is given as partial sums of one or several rows, which this
// shader adds up.
#include "finite.glsl"
#ifdef PARTIAL_SUMS_W
#include "finished_sum.glsl"
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int start = FIRST + p.x * GROUP4;
  float sum = 0.0;
#ifdef PARTIAL_SUMS_W
  vec2 row = mean_and_scale();
#define STORED(c4) finished_sum(c4, row)
#else
#define STORED(c4) x_at(p.y, c4)
#endif
  for (int k = 0; k < GROUP4; k++) {
    vec4 x = STORED(start + k);
    sum += dot(x, x);
  }
  float square = sum / float(COUNT);
  vec4 v[1];
  v[0] = vec4(finite(square) ? 1.0 / sqrt(square + HEAD_EPSILON) : INFINITY, 0.0, 0.0, 0.0);
  STORE_Y(v)
}
