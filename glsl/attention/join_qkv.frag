// y = (q, k, v), concatenated along the columns.
vec4 part_at(int row, int c4) {
  if (4 * c4 < Q_COLS) return q_at(row, c4);
  c4 -= Q_COLS / 4;
  if (4 * c4 < K_COLS) return k_at(row, c4);
  return v_at(row, c4 - K_COLS / 4);
}

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define JOIN(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < Y_COLS ? part_at(row, c4) : vec4(0.0); \
  }
  Y_TILES(JOIN)
  STORE_Y(v)
}
