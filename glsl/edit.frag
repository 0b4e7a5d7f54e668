// y = x gain + shift on the rows of positions FIRST..END-1, x elsewhere; PER rows a position. Rows of gain and of shift
// repeat from FIRST on: one row serves all, a row a head each head, a row a position one position.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define EDIT(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x, at = pos * PER + row - FIRST * PER; \
    v[n] = 4 * c4 < Y_COLS ? x_at(row, c4) : vec4(0.0); \
    if (at >= 0 && at < (END - FIRST) * PER && 4 * c4 < Y_COLS) \
      v[n] = v[n] * gain_at(at % GAIN_ROWS, c4) + shift_at(at % SHIFT_ROWS, c4); \
  }
  Y_TILES(EDIT)
  STORE_Y(v)
}
