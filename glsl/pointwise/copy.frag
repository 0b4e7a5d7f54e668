// Copies x to y, which has another layout. If y is larger than x, the additional rows and columns are zero.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define COPY(n, i, j) { \
    int row = i * Y_H + p.y, c4 = j * Y_W + p.x; \
    v[n] = row < X_ROWS && 4 * c4 < X_COLS ? x_at(row, c4) : vec4(0.0); \
  }
  Y_TILES(COPY)
  STORE_Y(v)
}
