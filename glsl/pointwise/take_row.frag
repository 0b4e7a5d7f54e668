// y = one row of x: the scalar `row` is the row's number. Columns of y that x does not have are zero.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define TAKE(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < X_COLS ? x_at(row, c4) : vec4(0.0); \
  }
  Y_TILES(TAKE)
  STORE_Y(v)
}
