// Layer norm: y = (x - mean) / sqrt(variance + eps) * gain + bias (Ba et al. 2016). With RMS_NORM:
// y = x / sqrt(mean square + eps) * gain. STATS holds the moments of slices of each row of x.
#include "moments.glsl"
#ifdef BIAS_W
#define PLUS_BIAS(c4) + bias_at(0, c4)
#else
#define PLUS_BIAS(c4)
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
  vec2 row[Y_NR];
#define ROW(n, i) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1); \
    vec3 sum = vec3(0.0); \
    for (int s = 0; s < STATS_W; s++) sum = merge_moments(sum, STATS(0, r, s).xyz); \
    row[n] = norm_of(sum, float(X_COLS), EPSILON); \
  }
  Y_ROWTILES(ROW)
#define NORM(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      vec4 x = x_at(min(i * Y_H + p.y, Y_ROWS - 1), c4); \
      v[n] = (x - row[i - Y_I].x) * row[i - Y_I].y * GAIN_OF(c4) PLUS_BIAS(c4); \
    } \
  }
  Y_TILES(NORM)
  STORE_Y(v)
}
