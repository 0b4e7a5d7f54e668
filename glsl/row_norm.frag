// The norm of one row of x. Each fragment takes the moments of the whole row itself.
#include "moments.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec3 sum = vec3(0.0);
  for (int c4 = 0; c4 < C4; c4++) sum = merge_moments(sum, texel_moments(x_at(ROW, c4), min(4, X_COLS - 4 * c4)));
  float scale = 1.0 / sqrt(sum.y / float(X_COLS) + EPSILON);
  vec4 v[Y_N];
#define NORM(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = c4 < C4 ? (x_at(ROW, c4) - sum.x) * scale * gain_at(0, c4) + bias_at(0, c4) : vec4(0.0); \
  }
  Y_TILES(NORM)
  STORE_Y(v)
}
