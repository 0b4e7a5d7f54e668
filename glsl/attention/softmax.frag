// The pattern of scores x: y = exp(x - maximum) / sum. y is zero for keys after the row's position. STATS holds the
// pairs (maximum, sum) of parts of the row, which are merged here. With TO_POSITION, a fragment writes nothing if its
// first column tile has only keys after the positions of its rows in all row tiles, including row tiles that another
// pass writes.
#include "softmax.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
#ifdef TO_POSITION
  if (4 * (Y_J * Y_W + p.x) > pos + ((Y_TR - 1) * Y_H + p.y) / N_HEAD) discard;
#endif
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int row = i * Y_H + p.y, t = pos + row / N_HEAD, k = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * k <= t) { \
      vec2 sum = NOTHING; \
      for (int s = 0; s < STATS_W; s++) sum = merge_softmax(sum, STATS(i, p.y, s).xy); \
      v[n] = exp(X(i, p.y, k) - sum.x) / sum.y; \
      v[n] = mix(v[n], vec4(0.0), greaterThan(4 * k + ivec4(0, 1, 2, 3), ivec4(t))); \
    } \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
