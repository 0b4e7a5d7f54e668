// y = act(the sum of a product's partial sums + bias) (+ residual); `matmul.frag` says where they are.
#include "activation.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#ifdef BIAS
#define START(c4) bias_at(0, c4)
#else
#define START(c4) vec4(0.0)
#endif
#ifdef RESIDUAL
#define PLUS(i, j) + RESIDUAL((i) * RESIDUAL_TC + (j), p.y, p.x)
#else
#define PLUS(i, j)
#endif
#define SUM(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      v[n] = START(c4); \
      for (int s = 0; s < SPLIT_K; s++) v[n] += PARTIAL_SUMS(i * PARTIAL_SUMS_TC + j, p.y, s * Y_W + p.x); \
      v[n] = act(v[n]) PLUS(i, j); \
    } \
  }
  Y_TILES(SUM)
  STORE_Y(v)
}
