// The gradient of a softmax: y = x * (dy - sum over the row of x * dy), where x is the pattern and dy its gradient.
// Like the pattern, y is zero for keys after the row's position. STATS holds the sums of x * dy over parts of the row.
#include "pattern.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int t = (i * Y_H + p.y) / N_HEAD, k = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * k <= t) { \
      float sum = 0.0; \
      for (int s = 0; s < STATS_W; s++) sum += STATS(i, p.y, s).x; \
      v[n] = X_OF(i, p.y, k) * (DY(i, p.y, k) - sum); \
    } \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
