// One row times a matrix, its inner dimension cut into parts: y[part, N] = x[part of K] w[part of K, N] (+ bias).
// A texel of every column tile a fragment; with one part the sum is whole and takes the bias.
#include "activation.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 acc[Y_N];
#ifdef BIAS
#define START(n, i, j) acc[n] = bias_at(0, (j) * Y_W + p.x);
#else
#define START(n, i, j) acc[n] = vec4(0.0);
#endif
  Y_TILES(START)
  int end = min((p.y + 1) * PART, K4);
  for (int k4 = p.y * PART; k4 < end; k4++) {
    vec4 x = x_at(0, k4);
    int tile = W_TR == 1 ? 0 : 4 * k4 / W_H, row = 4 * k4 - tile * W_H;
#ifdef W_F16
#define PAIR(n, lane, o) { uvec4 t = W(tile * (W_TC / 2) + (n) / 2, row + o, p.x); \
    acc[n] += x.lane * even_half(t); acc[n + 1] += x.lane * odd_half(t); }
#define STEP(n, i, j) if ((n) % 2 == 0) { PAIR(n, x, 0) PAIR(n, y, 1) PAIR(n, z, 2) PAIR(n, w, 3) }
#else
#define ROW(n, lane, o) acc[n] += x.lane * W(tile * W_TC + (n), row + o, p.x);
#define STEP(n, i, j) ROW(n, x, 0) ROW(n, y, 1) ROW(n, z, 2) ROW(n, w, 3)
#endif
    Y_TILES(STEP)
  }
#if ACT != 0
#define ACTIVATE(n, i, j) acc[n] = act(acc[n]);
  Y_TILES(ACTIVATE)
#endif
  STORE_Y(acc)
}
