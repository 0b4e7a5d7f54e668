// Texel k of a row of y = the sum of x * dy over texels k, k + Y_W, k + 2 Y_W, ... of the same row of the pattern x,
// where dy is the gradient of the pattern.
#include "pattern.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define SUM(n, i, j) { \
    int keys = (i * Y_H + p.y) / N_HEAD + 1; \
    vec4 sum = vec4(0.0); \
    for (int c4 = p.x; 4 * c4 < keys && 4 * c4 < X_COLS; c4 += Y_W) sum += X_OF(i, p.y, c4) * DY(i, p.y, c4); \
    v[n] = vec4(dot(sum, vec4(1.0)), 0.0, 0.0, 0.0); \
  }
  Y_TILES(SUM)
  STORE_Y(v)
}
