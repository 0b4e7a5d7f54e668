// y[s, head] = SCALE * sum over t >= s of x[s, head, t] dz[t, head], for every sequence of the batch. For the gradient
// of values, x is the transposed pattern. For the gradient of keys, x is the transposed gradient of scores, and dz
// holds the queries. GROUP heads of x and dz share one head of y, which gets the sum of their gradients.
// Each row tile of y holds a different range of s. A fragment computes one s in each tile, so it uses each fetched
// texel of dz for several s.
#include "pattern.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int b = p.y % BATCH, last = Y_ROWS / BATCH - 1;
  vec4 acc[Y_N];
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
  for (int g = 0; g < GROUP; g++) {
    int head = p.x / D4 * GROUP + g, row = p.y * N_HEAD + head, column = head * D4 + p.x % D4;
    for (int t4 = p.y / BATCH / 4; 4 * t4 <= last; t4++) {
#define GIVEN(o) dz_at(min(4 * t4 + o, last) * BATCH + b, column)
      vec4 d0 = GIVEN(0), d1 = GIVEN(1), d2 = GIVEN(2), d3 = GIVEN(3);
#define ADD(n, i, j) { \
        vec4 w = X_OF(i, row, t4); \
        acc[n] += w.x * d0 + w.y * d1 + w.z * d2 + w.w * d3; \
      }
      Y_TILES(ADD)
    }
  }
#define SCALED(n, i, j) acc[n] *= SCALE;
  Y_TILES(SCALED)
  STORE_Y(acc)
}
