// FETCH_ROWS fetches four rows of w, from row `row` of row tile `tile` on, in the column tiles that this fragment
// computes, and decodes them into the array w. All fetches precede all multiplications, since on software GL a fetch is
// a call that spills the registers. For each texel column, the four rows are fetched one after the other, so that the
// processor prefetches them. If w is quantised, the four rows of column tile n share the scales and minima in
// scaling[first + n].
#define ROW(o, j) w[4 * (j - Y_J) + o]
// Number of column tiles of y that a fragment computes from one texel of w. This may be less than the number of column
// tiles in the texel (W_SHARED), since a tile of y may span several tiles of w.
#if W_SHARED > 1 && W_TC > Y_TC
#define PER_TEXEL (W_SHARED * Y_TC / W_TC)
#else
#define PER_TEXEL W_SHARED
#endif
#define COLUMNS ((Y_NC + PER_TEXEL - 1) / PER_TEXEL)  // texels per row of w
ivec3 column[COLUMNS];  // texel coordinates in w: (texel, first row, layer)
#if W_SHARED > 1 && W_TC > Y_TC
int tile_of[Y_NC];  // for each column tile of y: the number of the column tile to decode from the texel of w
#define TILE(n, j) tile_of[n]
#else
#define TILE(n, j) (j % W_SHARED)
#endif
#ifdef W_GROUP
#define WEIGHTS(levels, n) W_WEIGHTS(levels, scaling[first + n])
#else
#define WEIGHTS(levels, n) levels
#endif
#define DECODE_COLUMN(n, j) \
  for (int o = 0; o < 4; o++) w[4 * n + o] = WEIGHTS(W_DECODE(t[4 * (n / PER_TEXEL) + o], TILE(n, j)), n);
#define FETCH_ROWS \
  W_TEXEL t[4 * COLUMNS]; \
  for (int n = 0; n < COLUMNS; n++) { \
    for (int o = 0; o < 4; o++) t[4 * n + o] = W(tile * W_ACROSS + column[n].z, row + o + column[n].y, column[n].x); \
  } \
  Y_COLTILES(DECODE_COLUMN)
