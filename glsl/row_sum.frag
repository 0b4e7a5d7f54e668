// One row of the residual stream: x + shift + the partial sums of a split product; beside it the row times the next
// norm's gain, and the moments of what this fragment wrote.
#include "moments.glsl"

void main() {
  int c4 = int(gl_FragCoord.x);
  vec4 x[Y_N], g[Y_N], m[1];
  vec3 sum = vec3(0.0);
#define SUM(n, i, j) { \
    int c = j * Y_W + c4; \
    x[n] = g[n] = vec4(0.0); \
    if (4 * c < Y_COLS) { \
      x[n] = x_at(0, c) PLUS_SHIFT; \
      for (int s = 0; s < PARTS; s++) x[n] += part_at(s, c); \
      g[n] = x[n] * gain_at(0, c); \
      sum = merge_moments(sum, texel_moments(x[n], min(4, Y_COLS - 4 * c))); \
    } \
  }
#ifdef SHIFT
#define PLUS_SHIFT + shift_at(0, c)
#else
#define PLUS_SHIFT
#define part_at(s, c) vec4(0.0)
#endif
  Y_TILES(SUM)
  m[0] = vec4(sum, 0.0);
  STORE_Y(x)
  STORE_G(g)
  STORE_M(m)
}
