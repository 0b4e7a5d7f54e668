// Four rows of w from `row` on of row tile `tile`, at the texels of this fragment's column tiles, into the array w. All
// fetches come before all multiplications, since on software GL each is a call that empties the registers, and a column's
// rows together, for the processor to fetch ahead.
#define ROW(o, j) w[4 * (j - Y_J) + o]
#ifdef W_F16
#define UNPACK(half_of, n) for (int o = 0; o < 4; o++) w[4 * n + o] = half_of(t[o]);
#if Y_NC == 1
#define UNPACK_ALL if (Y_J % 2 == 0) { UNPACK(even_half, 0) } else { UNPACK(odd_half, 0) }
#else
#define UNPACK_ALL UNPACK(even_half, 0) UNPACK(odd_half, 1)
#endif
#define FETCH_ROWS \
  uvec4 t[4]; \
  for (int o = 0; o < 4; o++) t[o] = W(tile * (W_TC / 2) + Y_J / 2, row + o, p.x); \
  UNPACK_ALL
#else
ivec3 column[Y_NC];  // where in w
#define FETCH_COLUMN(n, j) \
  for (int o = 0; o < 4; o++) w[4 * n + o] = W(tile * W_ACROSS + column[n].z, row + o + column[n].y, column[n].x);
#define FETCH_ROWS Y_COLTILES(FETCH_COLUMN)
#endif
