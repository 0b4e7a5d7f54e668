// One row times a matrix, its inner dimension cut into parts: y[part, N] = x[part of K] w[part of K, N].
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 acc[Y_N];
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
#ifndef W_F16
  ivec2 column[Y_N];  // (column tile of w, texel in it)
#define LOCATE(n, i, j) { int c4 = min((j) * Y_W + p.x, W_W * W_TC - 1); column[n] = ivec2(c4 / W_W, c4 % W_W); }
  Y_TILES(LOCATE)
#endif
  int end = min((p.y + 1) * PART, K4);
  for (int k4 = p.y * PART; k4 < end; k4++) {
    vec4 x = x_at(0, k4);
    int tile = W_TR == 1 ? 0 : 4 * k4 / W_H, row = 4 * k4 - tile * W_H;
    // Row by row: the texels of one row lie in the same page, those of one column do not (2x on software GL).
#ifdef W_F16
#define PAIR(n, j, lane, o) { uvec4 t = W(tile * (W_TC / 2) + (j) / 2, row + o, p.x); \
    acc[n] += x.lane * even_half(t); acc[(n) | 1] += x.lane * odd_half(t); }
#define ROW_X(n, i, j) if ((n) % 2 == 0) PAIR(n, j, x, 0)
#define ROW_Y(n, i, j) if ((n) % 2 == 0) PAIR(n, j, y, 1)
#define ROW_Z(n, i, j) if ((n) % 2 == 0) PAIR(n, j, z, 2)
#define ROW_W(n, i, j) if ((n) % 2 == 0) PAIR(n, j, w, 3)
#else
#define TEXEL(n, o) W(tile * W_TC + column[n].x, row + o, column[n].y)
#define ROW_X(n, i, j) acc[n] += x.x * TEXEL(n, 0);
#define ROW_Y(n, i, j) acc[n] += x.y * TEXEL(n, 1);
#define ROW_Z(n, i, j) acc[n] += x.z * TEXEL(n, 2);
#define ROW_W(n, i, j) acc[n] += x.w * TEXEL(n, 3);
#endif
    Y_TILES(ROW_X) Y_TILES(ROW_Y) Y_TILES(ROW_Z) Y_TILES(ROW_W)
  }
#define EDGE(n, i, j) if (4 * ((j) * Y_W + p.x) >= Y_COLS) acc[n] = vec4(0.0);
  Y_TILES(EDGE)
  STORE_Y(acc)
}
