// Texel k of a row of y = (maximum, sum of exponentials) of texels k, k + Y_W, k + 2 Y_W, ... of the same row of scores
// (see `softmax.glsl`). Keys after the row's position are ignored.
#include "softmax.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define STATS(n, i, j) { \
    int keys = min(pos + (i * Y_H + p.y) / N_HEAD + 1, X_COLS); \
    vec2 sum = NOTHING; \
    for (int c4 = p.x; 4 * c4 < keys; c4 += Y_W) { \
      sum = merge_softmax(sum, texel_softmax(X(i, p.y, c4), keys - 4 * c4)); \
    } \
    v[n] = vec4(sum, 0.0, 0.0); \
  }
  Y_TILES(STATS)
  STORE_Y(v)
}
