// y = x transposed: texel (r, c4) of y holds rows 4 c4 .. 4 c4 + 3 of column r of x. Values of rows and columns that x
// does not have are zero.
float x_value(int row, int r) { return row < X_ROWS && r < X_COLS ? x_one(row, r) : 0.0; }

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define TRANSPOSE(n, i, j) { \
    int r = i * Y_H + p.y, row = 4 * (j * Y_W + p.x); \
    v[n] = vec4(x_value(row, r), x_value(row + 1, r), x_value(row + 2, r), x_value(row + 3, r)); \
  }
  Y_TILES(TRANSPOSE)
  STORE_Y(v)
}
