// y = a + b. The three tensors may have different layouts.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define ADD(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < Y_COLS ? a_at(row, c4) + b_at(row, c4) : vec4(0.0); \
  }
  Y_TILES(ADD)
  STORE_Y(v)
}
