// Changes an activation: y = x gain + shift. Row 1 of gain and shift is used at position AT, and row 0 at all other
// positions.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int one = int(floor(at_at(0, 0).x + 0.5));
  vec4 v[Y_N];
#define EDIT(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x, of = pos + row == one ? 1 : 0; \
    v[n] = 4 * c4 < Y_COLS ? x_at(row, c4) * gain_at(of, c4) + shift_at(of, c4) : vec4(0.0); \
  }
  Y_TILES(EDIT)
  STORE_Y(v)
}
