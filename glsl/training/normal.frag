// Initialises a parameter: y = MEAN + SPREAD * normally distributed numbers (Box and Muller 1958) from a hash of (seed,
// SITE, row, texel), where SITE is the number of this parameter. Of every ROW_PERIOD rows, the first ROW_LIVE rows are
// filled; columns likewise. The other rows and columns are padding and become zero. AdamW's averages m and s become
// zero too.
#include "circle.glsl"
#include "hash.glsl"

vec2 normal_pair(uvec2 h) {
  vec2 u = (vec2(h >> 8u) + 0.5) / 16777216.0;
  return sqrt(-2.0 * log(u.x)) * on_circle(6.28318530718 * u.y);
}

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N], zero[Y_N];
#define DRAW(n, i, j) { \
    int r = i * Y_H + p.y, c4 = j * Y_W + p.x; \
    ivec4 c = 4 * c4 + ivec4(0, 1, 2, 3); \
    uvec4 h = hash(hash(uvec4(r, c4, SITE, 0)) ^ uvec4(seed, 0, 0, 0)); \
    bvec4 live = lessThan(c % COLUMN_PERIOD, ivec4(r < Y_ROWS && r % ROW_PERIOD < ROW_LIVE ? COLUMN_LIVE : 0)); \
    vec4 drawn = SPREAD > 0.0 ? MEAN + SPREAD * vec4(normal_pair(h.xy), normal_pair(h.zw)) : vec4(MEAN); \
    v[n] = mix(vec4(0.0), drawn, live) * vec4(lessThan(c, ivec4(Y_COLS))); \
    zero[n] = vec4(0.0); \
  }
  Y_TILES(DRAW)
  STORE_Y(v)
  STORE_M(zero)
  STORE_S(zero)
}
