// y[M, N] = act(x[M, K] w[K, N] + bias) (+ residual): one fragment computes a texel of every tile it writes, so each
// fetched texel of x feeds all column tiles and each texel of w all row tiles.
#include "activation.glsl"

ivec2 p;
vec4 acc[Y_N];

// A row of w at the texels of this fragment's column tiles: `row` of row tile `tile`.
#ifdef W_F16
#if Y_NC == 1
#define LOAD_ROW { uvec4 t = W(tile * (W_TC / 2) + FIRST_COLUMN / 2, row, p.x); \
    w[0] = FIRST_COLUMN % 2 == 0 ? even_half(t) : odd_half(t); }
#else
#define LOAD_ROW { uvec4 t = W(tile * (W_TC / 2) + FIRST_COLUMN / 2, row, p.x); \
    w[0] = even_half(t); w[1] = odd_half(t); }
#endif
#else
ivec3 column[Y_NC];  // where in w
#define LOAD_W(n, j) w[n] = W(tile * W_ACROSS + column[n].z, row + column[n].y, column[n].x);
#define LOAD_ROW Y_COLTILES(LOAD_W)
#endif

// acc += x (four columns of each row tile) times four rows of w.
void multiply(vec4 x[Y_TR], int tile, int row) {
  vec4 w[Y_NC];
#define LANE_X(n, i, j) acc[n] += x[i].x * w[(j) - FIRST_COLUMN];
#define LANE_Y(n, i, j) acc[n] += x[i].y * w[(j) - FIRST_COLUMN];
#define LANE_Z(n, i, j) acc[n] += x[i].z * w[(j) - FIRST_COLUMN];
#define LANE_W(n, i, j) acc[n] += x[i].w * w[(j) - FIRST_COLUMN];
  LOAD_ROW Y_TILES(LANE_X) row++;
  LOAD_ROW Y_TILES(LANE_Y) row++;
  LOAD_ROW Y_TILES(LANE_Z) row++;
  LOAD_ROW Y_TILES(LANE_W)
}

#ifdef X_F16
// `n` texels of x from `x0`: the even halves meet rows w0.. of row tile t0, the odd halves (if any) w1.. of t1.
void segment(int layer, int x0, int n, int t0, int w0, int t1, int w1) {
  for (int k = 0; k < n; k++) {
    uvec4 t[Y_TR];
    vec4 x[Y_TR];
#define FETCH_X(i) t[i] = X(i * (X_TC / 2) + layer, p.y, x0 + k);
    Y_ROWTILES(FETCH_X)
#define EVEN(i) x[i] = even_half(t[i]);
    Y_ROWTILES(EVEN)
    multiply(x, t0, w0 + 4 * k);
    if (t1 >= 0) {
#define ODD(i) x[i] = odd_half(t[i]);
      Y_ROWTILES(ODD)
      multiply(x, t1, w1 + 4 * k);
    }
  }
}
#else
void segment(int layer, int x0, int n, int t0, int w0, int t1, int w1) {
  for (int k = 0; k < n; k++) {
    vec4 x[Y_TR];
#define FETCH_X(i) x[i] = X(i * X_TC + layer, p.y, x0 + k);
    Y_ROWTILES(FETCH_X)
    multiply(x, t0, w0 + 4 * k);
  }
}
#endif

void main() {
  p = ivec2(gl_FragCoord.xy);
#define C4(j) ((j) * Y_W + p.x)
#ifndef W_F16
#define LOCATE(n, j) { int c4 = min(C4(j), W_W * W_TC - 1); column[n] = W_PLACE(c4); }
  Y_COLTILES(LOCATE)
#endif
#ifdef BIAS
#define START(n, i, j) acc[n] = bias_at(0, min(C4(j), BIAS_W * BIAS_TC - 1));
#else
#define START(n, i, j) acc[n] = vec4(0.0);
#endif
  Y_TILES(START)
  SEGMENTS
#if ACT != 0
#define ACTIVATE(n, i, j) acc[n] = act(acc[n]);
  Y_TILES(ACTIVATE)
#endif
#ifdef RESIDUAL
#define ADD(n, i, j) acc[n] += RESIDUAL((i) * RESIDUAL_TC + (j), p.y, p.x);
  Y_TILES(ADD)
#endif
#if 4 * Y_W * Y_TC >= Y_COLS + 4
#define EDGE(n, i, j) if (4 * C4(j) >= Y_COLS) acc[n] = vec4(0.0);
  Y_TILES(EDGE)
#endif
  STORE_Y(acc)
}
