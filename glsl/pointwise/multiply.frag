// y = a b, elementwise.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < Y_COLS ? a_at(row, c4) * b_at(row, c4) : vec4(0.0); \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
