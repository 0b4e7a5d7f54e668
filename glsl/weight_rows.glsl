// Four rows of w from `row` on of row tile `tile`, in this fragment's column tiles, decoded into the array w. All fetches
// come before all multiplications, since on software GL each is a call that empties the registers, and a column's rows
// together, for the processor to fetch ahead.
#define ROW(o, j) w[4 * (j - Y_J) + o]
#define COLUMNS ((Y_NC + W_SHARED - 1) / W_SHARED)  // texels of a row of w
ivec3 column[COLUMNS];  // where in w
#define DECODE_COLUMN(n, j) \
  for (int o = 0; o < 4; o++) w[4 * n + o] = W_DECODE(t[4 * (n / W_SHARED) + o], j % W_SHARED);
#define FETCH_ROWS \
  W_TEXEL t[4 * COLUMNS]; \
  for (int n = 0; n < COLUMNS; n++) { \
    for (int o = 0; o < 4; o++) t[4 * n + o] = W(tile * W_ACROSS + column[n].z, row + o + column[n].y, column[n].x); \
  } \
  Y_COLTILES(DECODE_COLUMN)
