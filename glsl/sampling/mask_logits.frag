// y = x for tokens whose bit in `allowed` is set, and FORBIDDEN for other tokens. A logit that is not finite stays
// unchanged. Each number of `allowed` holds the bits of 16 tokens; the lowest bit is for the first token.
#include "finite.glsl"

const float FORBIDDEN = -3.3e38;  // finite, and below LEAST (`nucleus.glsl`): sampling ignores such logits

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define MASK(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      int bits = int(allowed_at(0, c4 / 16)[c4 / 4 % 4]) >> 4 * (c4 % 4); \
      vec4 x = x_at(0, c4); \
      for (int lane = 0; lane < 4; lane++) { \
        v[n][lane] = 4 * c4 + lane >= Y_COLS ? 0.0 : (bits >> lane) % 2 == 1 || !finite(x[lane]) ? x[lane] : FORBIDDEN; \
      } \
    } \
  }
  Y_TILES(MASK)
  STORE_Y(v)
}
