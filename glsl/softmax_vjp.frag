// dx = pattern (d(pattern) - sum over the row of pattern d(pattern)); zero beyond the position, as the pattern is.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int t = (i * Y_H + p.y) / N_HEAD; \
    v[n] = vec4(0.0); \
    if (4 * p.x <= t) { \
      float sum = 0.0; \
      for (int s = 0; s < STATS_W; s++) sum += STATS(i, p.y, s).x; \
      v[n] = X(i, p.y, p.x) * (DY(i, p.y, p.x) - sum); \
    } \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
