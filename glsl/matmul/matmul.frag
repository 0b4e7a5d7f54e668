// y[M, N] = act(x[M, K] w[K, N] + bias) (+ residual). A fragment computes one texel of every tile that the pass writes,
// so each fetched texel of x is used for all column tiles, and each texel of w is used for all row tiles. With
// SPLIT_K > 1, K is split into slices. Each tile of y then holds the partial sums of all slices, next to each other,
// and `matmul_sum.frag` adds them up.
#include "activation.glsl"

#define ACROSS (Y_W / SPLIT_K)
#if SPLIT_K > 1
int slice;
#else
const int slice = 0;
#endif
ivec2 p;
vec4 acc[Y_N];
#include "weight_rows.glsl"

// multiply adds to acc the product of x (four columns of each row tile) and four rows of w. If x is in f32, the sum of
// the four products is added to acc, so acc is rounded once instead of four times. If x is packed, each product is
// added to acc directly: the rounding of acc is then small compared with that of x.
#ifdef W_GROUP
void multiply(vec4 x[Y_NR], int tile, int row, Scaling scaling[X_SHARED * Y_NC], int first) {
#else
void multiply(vec4 x[Y_NR], int tile, int row) {
#endif
#define LANE_X(n, i, j) acc[n] += x[i - Y_I].x * ROW(0, j);
#define LANE_Y(n, i, j) acc[n] += x[i - Y_I].y * ROW(1, j);
#define LANE_Z(n, i, j) acc[n] += x[i - Y_I].z * ROW(2, j);
#define LANE_W(n, i, j) acc[n] += x[i - Y_I].w * ROW(3, j);
#define FOUR(n, i, j) \
  acc[n] += x[i - Y_I].x * ROW(0, j) + x[i - Y_I].y * ROW(1, j) + x[i - Y_I].z * ROW(2, j) + x[i - Y_I].w * ROW(3, j);
  vec4 w[4 * Y_NC];  // local, because a global array made prefills in the page 10% slower
  FETCH_ROWS
#if X_SHARED == 1
  Y_TILES(FOUR)
#else
  Y_TILES(LANE_X) Y_TILES(LANE_Y) Y_TILES(LANE_Z) Y_TILES(LANE_W)
#endif
}

// segment multiplies `n` texels of each row of x, from texel `x0` of `layer` on, by the matching rows of w. With
// SPLIT_K > 1, it multiplies only those of the `n` texels that are in this fragment's slice. A texel of x holds values
// of X_SHARED column tiles. For tile t of these, at[t] is the place in w of the first matching row: (row tile of w, row
// in this row tile). The row tile is -1 if column tile t is beyond the end of x.
#define FETCH_X(n, i) t[n] = X(i * X_ACROSS + layer, p.y, x0 + k);
#define MULTIPLY(tile) \
  if (at[tile].x >= 0) { \
    for (int n = 0; n < Y_NR; n++) x[n] = X_DECODE(t[n], tile); \
    multiply(x, at[tile].x, W_Y(at[tile].y + 4 * k) SCALING_OF(tile)); \
  }
void segment(int layer, int x0, int n, ivec2 at[X_SHARED]) {
  int k = n * slice / SPLIT_K, end = n * (slice + 1) / SPLIT_K;
#define STEP { \
    X_TEXEL t[Y_NR]; \
    vec4 x[Y_NR]; \
    Y_ROWTILES(FETCH_X) \
    X_EACH_SHARED(MULTIPLY) \
  }
#ifdef W_GROUP
  // Each round of this loop ends where a group of rows of w ends. So for each column tile of x, the scales of w are
  // constant during a round, and are fetched once per round.
  while (k < end) {
    int stop = end;
    Scaling scaling[X_SHARED * Y_NC];
#define SCALING_OF(tile) , scaling, tile * Y_NC
#define LOAD_SCALING(tile) \
    if (at[tile].x >= 0) { \
      int row = at[tile].y + 4 * k; \
      stop = min(stop, k + (W_GROUP - row % W_GROUP) / 4); \
      for (int c = 0; c < Y_NC; c++) { \
        scaling[tile * Y_NC + c] = w_scaling(at[tile].x, row, column[c / PER_TEXEL], TILE(c, (Y_J + c))); \
      } \
    }
    X_EACH_SHARED(LOAD_SCALING)
    for (; k < stop; k++) STEP
  }
#else
#define SCALING_OF(tile)
  int count = n % SPLIT_K == 0 ? n / SPLIT_K : end - k;  // usually constant: products with packed x are then 10% faster
  for (int m = 0; m < count; m++, k++) STEP
#endif
}

void main() {
  p = ivec2(gl_FragCoord.xy);
#if SPLIT_K > 1
  slice = p.x / ACROSS;
  p.x %= ACROSS;
#endif
#define C4(j) ((j) * ACROSS + p.x)
#define LOCATE(n, j) \
  if (n % PER_TEXEL == 0) { \
    int c4 = min(C4(j), W_W * W_TC - 1); \
    column[n / PER_TEXEL] = W_PLACE(c4); \
  }
  Y_COLTILES(LOCATE)
#ifdef BIAS
#define START(n, i, j) acc[n] = bias_at(0, min(C4(j), BIAS_W * BIAS_TC - 1));
#else
#define START(n, i, j) acc[n] = vec4(0.0);
#endif
  Y_TILES(START)
#if defined UNROLL_TILES && W_SHARED > 1 && W_TC > Y_TC
  // A tile of y spans several tiles of w, and a fragment needs one of these. The loop over K is written once for each
  // tile of w. In each copy, decoding shifts bits by a constant, which saves 5% of a product's time.
#define WITH_TILE(t) \
  if (p.x / W_W == t) { \
    for (int n = 0; n < Y_NC; n++) tile_of[n] = ((Y_J + n) * (W_TC / Y_TC) + t) % W_SHARED; \
    SEGMENTS \
  }
  WITH_TILE(0)
  WITH_TILE(1)
#if W_TC / Y_TC > 2
  WITH_TILE(2)
  WITH_TILE(3)
#endif
#else
#if W_SHARED > 1 && W_TC > Y_TC
#define LOCATE_TILE(n, j) tile_of[n] = C4(j) / W_W % W_SHARED;
  Y_COLTILES(LOCATE_TILE)
#endif
#ifdef SEGMENTS
  SEGMENTS
#else
  for (int k4 = 0, n = 0; 4 * k4 < X_COLS; k4 += n) {
    n = min(min(X_W - k4 % X_W, (W_H - 4 * k4 % W_H + 3) / 4), (X_COLS + 3) / 4 - k4);
    segment(k4 / X_W, k4 % X_W, n, ivec2[1](ivec2(4 * k4 / W_H, 4 * k4 % W_H)));
  }
#endif
#endif
#if ACT != 0
#define ACTIVATE(n, i, j) acc[n] = act(acc[n]);
  Y_TILES(ACTIVATE)
#endif
#ifdef RESIDUAL
#define ADD(n, i, j) acc[n] += RESIDUAL((i) * RESIDUAL_TC + (j), p.y, p.x);
  Y_TILES(ADD)
#endif
#if SPLIT_K == 1 && 4 * Y_W * Y_TC >= Y_COLS + 4
#define EDGE(n, i, j) if (4 * C4(j) >= Y_COLS) acc[n] = vec4(0.0);
  Y_TILES(EDGE)
#endif
  STORE_Y(acc)
}
