// The gradient of a soft cap: dx = dy (1 - (y / CAP)^2) for the capped scores y = CAP tanh(x / CAP); the input
// x holds dy. Masked scores y are far below -CAP. y / CAP is clamped to -1 for these, so dx is 0.
#include "pattern.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[D_N];
#define APPLY(n, i, j) { \
    int row = i * D_H + p.y, c4 = j * D_W + p.x; \
    vec4 y = clamp(y_at(row, c4) / CAP, -1.0, 1.0); \
    v[n] = 4 * c4 < D_COLS ? X_OF(i, p.y, c4) * (1.0 - y * y) : vec4(0.0); \
  }
  D_TILES(APPLY)
  STORE_D(v)
}
