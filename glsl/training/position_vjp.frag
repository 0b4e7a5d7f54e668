// The gradient of the position embeddings: d(positions)[t] = the sum of dy at position t over all sequences of the
// batch (+ plus). For positions that dy does not have, the sum is 0.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define SUM(n, i, j) { \
    int t = i * Y_H + p.y, c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS && t < DY_ROWS / BATCH) for (int b = 0; b < BATCH; b++) v[n] += dy_at(t * BATCH + b, c4); \
  }
  Y_TILES(SUM)
#ifdef PLUS_W
#define ADD(n, i, j) if (i * Y_H + p.y < Y_ROWS) v[n] += plus_at(i * Y_H + p.y, j * Y_W + p.x);
  Y_TILES(ADD)
#endif
  STORE_Y(v)
}
