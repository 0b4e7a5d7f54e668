// The gradient of a head norm: dx = scale gain dy - x scale^3 mean(gain dy x). Each group of columns (one head, or all
// heads) has a scale (`head_scales.frag`) and a mean. dx is written to the columns of y from texel FIRST on; the other
// columns are 0.
#ifdef GAIN_PER_HEAD
#define OWN_GAIN(c4) gain_at(0, (c4) % GROUP4)
#else
#define OWN_GAIN(c4) gain_at(0, c4)
#endif
#ifdef GAIN_OFFSET
#define GAIN_OF(c4) (OWN_GAIN(c4) + GAIN_OFFSET)
#else
#define GAIN_OF(c4) OWN_GAIN(c4)
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x - FIRST; \
    v[n] = vec4(0.0); \
    if (c4 >= 0 && 4 * c4 < DY_COLS) { \
      int group = c4 / GROUP4; \
      float scale = scales_at(row, group).x, sum = 0.0; \
      for (int k = group * GROUP4; k < (group + 1) * GROUP4; k++) { \
        sum += dot(GAIN_OF(k) * dy_at(row, k), x_at(row, FIRST + k)); \
      } \
      v[n] = scale * GAIN_OF(c4) * dy_at(row, c4) - x_at(row, FIRST + c4) * (scale * scale * scale * sum / float(COUNT)); \
    } \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
