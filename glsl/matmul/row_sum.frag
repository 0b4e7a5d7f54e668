// y = row ROW of x (the residual stream), plus a product if one is given; without x, y is the product alone. If the
// product is given as PARTIAL_SUMS, this shader adds them up and adds the linear layer's bias SHIFT, if any. If the
// product is given as BRANCH, this shader applies a norm to it (`folded_norm.glsl`). With a GAIN, a fragment also
// writes g = y times the gain of the next norm, and m = the moments of the values of y that the fragment computed.
#include "moments.glsl"
#ifdef X_W
#define OWN(c) x_at(ROW, c)
#else
#define OWN(c) vec4(0.0)
#endif
#ifdef PARTIAL_SUMS_W
#include "partial_sums.glsl"
#ifdef SHIFT_W
#define PLUS + shift_at(0, c) + sum_of_partial_sums(c)
#else
#define PLUS + sum_of_partial_sums(c)
#endif
#elif defined(BRANCH_W)
#include "folded_norm.glsl"
#define PLUS + normed(branch_at(BATCH_ROW, c), c, branch)
#else
#define PLUS
#endif

void main() {
  int c4 = int(gl_FragCoord.x);
#ifdef BRANCH_W
  vec2 branch = mean_and_scale();
#endif
#ifdef GAIN_W
  vec4 x[Y_N], g[Y_N], m[1];
  vec3 sum = vec3(0.0);
#define SUM(n, i, j) { \
    int c = j * Y_W + c4; \
    x[n] = g[n] = vec4(0.0); \
    if (4 * c < Y_COLS) { \
      x[n] = OWN(c) PLUS; \
      g[n] = x[n] * GAIN_OF(c); \
      sum = merge_moments(sum, texel_moments(x[n], min(4, Y_COLS - 4 * c))); \
    } \
  }
  Y_TILES(SUM)
  m[0] = vec4(sum, 0.0);
  STORE_Y(x)
  STORE_G(g)
  STORE_M(m)
#else
  vec4 x[Y_N];
#define SUM(n, i, j) { \
    int c = j * Y_W + c4; \
    x[n] = 4 * c < Y_COLS ? OWN(c) PLUS : vec4(0.0); \
  }
  Y_TILES(SUM)
  STORE_Y(x)
#endif
}
