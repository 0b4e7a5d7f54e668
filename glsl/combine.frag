// One row from the partial sums of a split product: y = act(bias + sum over parts).
#include "activation.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define SUM(n, i, j) { \
    v[n] = bias_at(0, j * Y_W + p.x); \
    for (int s = 0; s < PARTS; s++) v[n] += X(j, s, p.x); \
    v[n] = act(v[n]); \
  }
  Y_TILES(SUM)
  STORE_Y(v)
}
