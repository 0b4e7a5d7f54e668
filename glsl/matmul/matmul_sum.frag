// y = act(the sum of a product's partial sums + bias) (+ residual). `matmul.frag` describes where the partial sums are.
// y has the same row tiles as the partial sums, but may have other column tiles.
#include "activation.glsl"

#define SLICE_W (PARTIAL_SUMS_W / SPLIT_K)  // width of a slice's partial sums in a column tile, in texels
#if Y_W == SLICE_W
#define TILE(j, c4) (j)
#else
#define TILE(j, c4) (c4 / SLICE_W)
#endif
#define PARTIAL_SUM(i, tile, texel) \
  PARTIAL_SUMS_DECODE(PARTIAL_SUMS((i) * PARTIAL_SUMS_ACROSS + (tile) / PARTIAL_SUMS_SHARED, p.y, texel), \
                      (tile) % PARTIAL_SUMS_SHARED)

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
      int tile = TILE(j, c4), texel = c4 - tile * SLICE_W; \
      for (int s = 0; s < SPLIT_K; s++) v[n] += PARTIAL_SUM(i, tile, s * SLICE_W + texel); \
      v[n] = act(v[n]) PLUS(i, j); \
    } \
  }
  Y_TILES(SUM)
  STORE_Y(v)
}
