// One row times a matrix, its inner dimension cut into parts: y = x[part of K] w[part of K, a few column texels].
// x is one row, or the ranges that attention left of it.
// Pixels walk the columns in blocks of 4 x BY, so that the pixels a driver runs together read one stretch of a row.
#ifdef KEYS
#include "attended.glsl"
#define FACTOR(k4) attended(k4)
#else
#define FACTOR(k4) x_at(0, k4)
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int column = p.x / 4 * (4 * BY) + p.y % BY * 4 + p.x % 4, part = p.y / BY;
  vec4 acc[Y_N];
  ivec3 at[Y_N];  // where in w
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
#ifdef W_F16
  at[0] = ivec3(column % W_W, 0, min(column / W_W, W_ACROSS - 1));
#else
#define LOCATE(n, i, j) { \
    int c4 = min(NEAR > 0 ? NEAR * column + n : column + n * APART, W_W * W_TC - 1); \
    at[n] = W_PLACE(c4); \
  }
  Y_TILES(LOCATE)
#endif
  int end = min((part + 1) * PART, K4);
  for (int k4 = part * PART; k4 < end; k4++) {
    vec4 x = FACTOR(k4);
    int tile = W_TR == 1 ? 0 : 4 * k4 / W_H, row = 4 * k4 - tile * W_H;
    // All fetches before the multiplications, since on software GL each is a call that empties the registers; row by
    // row, since the texels of one row lie in the same page, those of one column do not (2x there).
#ifdef W_F16
    uvec4 w[4];
    for (int o = 0; o < 4; o++) w[o] = W(tile * W_ACROSS + at[0].z, row + o, at[0].x);
    acc[0] += x.x * even_half(w[0]) + x.y * even_half(w[1]) + x.z * even_half(w[2]) + x.w * even_half(w[3]);
    acc[1] += x.x * odd_half(w[0]) + x.y * odd_half(w[1]) + x.z * odd_half(w[2]) + x.w * odd_half(w[3]);
#else
    vec4 w[4 * Y_N];
    for (int o = 0; o < 4; o++) {
#define TEXEL(n, i, j) w[4 * n + o] = W(tile * W_ACROSS + at[n].z, at[n].y + row + o, at[n].x);
      Y_TILES(TEXEL)
    }
#define ADD(n, i, j) acc[n] += x.x * w[4 * n] + x.y * w[4 * n + 1] + x.z * w[4 * n + 2] + x.w * w[4 * n + 3];
    Y_TILES(ADD)
#endif
  }
  STORE_Y(acc)
}
