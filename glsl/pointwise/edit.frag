// Changes an activation: y = x gain + shift. For each position and head, WHICH holds the number of the row of gain and
// shift to use; if the number is 0, y = x. PER is the number of heads: row t * PER + head of y belongs to position
// pos + t. With ONLY_ROW, all rows of y belong to position pos + ONLY_ROW. With ALL_POSITIONS, x has a row for each
// position of the context, and row r of y is computed from row pos + r of x.
// With MASKED (the score of a masked key), x holds attention scores, and masked scores stay unchanged.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#ifdef ONLY_ROW
#define POSITION(r) (pos + ONLY_ROW)
#else
#define POSITION(r) (pos + (r) / PER)
#endif
#ifdef ALL_POSITIONS
#define SOURCE(r) min(pos + (r), X_ROWS - 1)
#else
#define SOURCE(r) (r)
#endif
#ifdef MASKED
#define CHANGED(x, y) mix(y, x, lessThanEqual(x, vec4(0.1 * MASKED)))
#else
#define CHANGED(x, y) (y)
#endif
#define EDIT(n, i, j) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x, head = r % PER; \
    vec4 heads = which_at(min(POSITION(r), WHICH_ROWS - 1), head / 4); \
    int k = int(heads[head % 4] + 0.5); \
    v[n] = 4 * c4 < Y_COLS ? x_at(SOURCE(r), c4) : vec4(0.0); \
    if (k > 0 && 4 * c4 < Y_COLS) v[n] = CHANGED(v[n], v[n] * gain_at(k, c4) + shift_at(k, c4)); \
  }
  Y_TILES(EDIT)
  STORE_Y(v)
}
