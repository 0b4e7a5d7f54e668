// Writes the rows of x to the rows of y from FIRST on; the viewport (the drawn rectangle) begins at row FIRST.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define PLACE(n, i, j) { \
    int c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < X_COLS ? x_at(p.y - FIRST, c4) : vec4(0.0); \
  }
  Y_TILES(PLACE)
  STORE_Y(v)
}
