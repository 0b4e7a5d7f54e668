// The gradient of a norm: dx = (gain dy - mean(gain dy) - x' mean(gain dy x')) / deviation (+ plus), where
// x' = (x - mean) / deviation. BACK is the output of `norm_vjp_stats.frag`: for each slice of a row, the sum of gain dy
// and that of gain dy x' over the slice, and the row's mean and 1 / deviation.
#include "moments.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      vec4 s = BACK(0, row, 0); \
      for (int k = 1; k < BACK_W; k++) s.xy += BACK(0, row, k).xy; \
      s.xy /= float(Y_COLS); \
      vec4 normed = (x_at(row, c4) - s.z) * s.w; \
      v[n] = (GAIN_OF(c4) * dy_at(row, c4) - s.x - normed * s.y) * s.w; \
      int beyond = 4 * c4 + 4 - Y_COLS; \
      if (beyond > 0) v[n] *= vec4(lessThan(ivec4(0, 1, 2, 3), ivec4(4 - beyond))); \
    } \
  }
  Y_TILES(APPLY)
#ifdef PLUS_W
#define ADD(n, i, j) if (4 * (j * Y_W + p.x) < Y_COLS) v[n] += plus_at(min(i * Y_H + p.y, Y_ROWS - 1), j * Y_W + p.x);
  Y_TILES(ADD)
#endif
  STORE_Y(v)
}
