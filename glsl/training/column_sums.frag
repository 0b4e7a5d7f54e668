// Adds up rows of x in slices of ROWS rows: row i of y = the sum of rows i * ROWS to i * ROWS + ROWS - 1 of x (+ plus).
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
  int end = min((p.y + 1) * ROWS, X_ROWS);
#define SUM(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < X_COLS) for (int row = p.y * ROWS; row < end; row++) v[n] += x_at(row, c4); \
  }
  Y_TILES(SUM)
#ifdef PLUS_W
#define PLUS_SUM(n, i, j) if (4 * (j * Y_W + p.x) < PLUS_COLS) v[n] += plus_at(0, j * Y_W + p.x);
  Y_TILES(PLUS_SUM)
#endif
  STORE_Y(v)
}
