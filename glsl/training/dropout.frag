// y = x / (1 - RATE) if a hash of (seed, step, micro-batch, SITE, row, texel) keeps the value, else 0. SITE is the
// number of this dropout in the model; the scalar `row` is the number of the micro-batch, not a row of x. Because of
// the hash, the forward and the backward pass drop the same values, on every device, without a stored mask.
#include "hash.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define DROP(n, i, j) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      uvec4 h = hash(hash(uvec4(r, c4, SITE, row)) ^ uvec4(seed, step, 0, 0)); \
      v[n] = mix(vec4(0.0), x_at(r, c4) / (1.0 - RATE), lessThan(vec4(h >> 8u), vec4((1.0 - RATE) * 16777216.0))); \
    } \
  }
  Y_TILES(DROP)
  STORE_Y(v)
}
