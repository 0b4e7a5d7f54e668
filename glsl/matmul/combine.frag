// Adds up the partial sums of a product of one row, or of each of several rows: y = act(sum). With MOMENTS, the product
// was computed from the row before its norm, and the norm is applied to the sum before `act`. With TIMES, y is
// multiplied by the tensor TIMES. With SECOND_SUMS, y is multiplied by another product of the row, of the same shape;
// SECOND_SUMS holds the partial sums of this product.
#include "activation.glsl"
#include "finished_sum.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
  vec2 row = mean_and_scale();
#ifdef SECOND_SUMS_W
#define FACTOR(c4) * second_sum(c4, row)
#elif defined(TIMES_W)
#define FACTOR(c4) * times_at(BATCH_ROW, c4)
#else
#define FACTOR(c4)
#endif
#define SUM(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) v[n] = act(finished_sum(c4, row)) FACTOR(c4); \
  }
  Y_TILES(SUM)
  STORE_Y(v)
}
