// One row: x = the row (plus bias and the partial sums of a split product, where there are some), y = its norm.
// Each fragment takes the moments of the whole row itself: a second pass would cost more than these fetches.
#include "moments.glsl"

vec4 value(int c4) {
#ifdef PARTS
  vec4 sum = x_at(0, c4) + shift_at(0, c4);
  for (int s = 0; s < PARTS; s++) sum += part_at(s, c4);
  return sum;
#else
  return x_at(ROW, c4);
#endif
}

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec3 sum = vec3(0.0);
  for (int c4 = 0; c4 < C4; c4++) sum = merge_moments(sum, texel_moments(value(c4), min(4, X_COLS - 4 * c4)));
  float scale = 1.0 / sqrt(sum.y / float(X_COLS) + EPSILON);
  vec4 x[Y_N], y[Y_N];
#define NORM(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    x[n] = c4 < C4 ? value(c4) : vec4(0.0); \
    y[n] = c4 < C4 ? (x[n] - sum.x) * scale * gain_at(0, c4) + bias_at(0, c4) : vec4(0.0); \
  }
  Y_TILES(NORM)
  STORE_Y(y)
#ifdef PARTS
  STORE_SUM(x)
#endif
}
