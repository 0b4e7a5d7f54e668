// Rows of w from `row` on of row tile `tile`, at the texels of this fragment's column tiles. f32: all fetches come before
// all multiplications, since on software GL each is a call that empties the registers, and a column's rows together, for
// the processor to fetch ahead. Packed: row by row, since four rows unpacked at once cost an H200 6%.
#ifdef W_F16
vec4 w[Y_NC];
#if Y_NC == 1
#define UNPACK(t) w[0] = Y_J % 2 == 0 ? even_half(t) : odd_half(t);
#else
#define UNPACK(t) w[0] = even_half(t); w[1] = odd_half(t);
#endif
#define FETCH_ROW(o) { uvec4 t = W(tile * (W_TC / 2) + Y_J / 2, row + o, p.x); UNPACK(t) }
#define FETCH_ROWS
#define ROW(o, j) w[j - Y_J]
#else
vec4 w[4 * Y_NC];
ivec3 column[Y_NC];  // where in w
#define FETCH_COLUMN(n, j) \
  for (int o = 0; o < 4; o++) w[4 * n + o] = W(tile * W_ACROSS + column[n].z, row + o + column[n].y, column[n].x);
#define FETCH_ROW(o)
#define FETCH_ROWS Y_COLTILES(FETCH_COLUMN)
#define ROW(o, j) w[4 * (j - Y_J) + o]
#endif
