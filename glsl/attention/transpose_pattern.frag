// Transposes each pattern: y[s * N_HEAD + g, t] = x[t * N_HEAD + g, s] for t < ROWS, and zero for other t. g numbers
// the heads of all sequences.
float value(int t, int g, int s) { return t < ROWS ? x_one(t * N_HEAD + g, s) : 0.0; }

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define TRANSPOSE(n, i, j) { \
    int row = i * Y_H + p.y, g = row % N_HEAD, s = min(row / N_HEAD, X_COLS - 1), t = 4 * (j * Y_W + p.x); \
    v[n] = vec4(value(t, g, s), value(t + 1, g, s), value(t + 2, g, s), value(t + 3, g, s)); \
  }
  Y_TILES(TRANSPOSE)
  STORE_Y(v)
}
