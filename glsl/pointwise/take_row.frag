// y = one row of x, the number of which is the scalar `row`; zero in columns that x does not have.
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
