// y[t, head] = SCALE * sum over keys s of x[t * N_HEAD + head, s] v[s, head], where x is the attention pattern. A
// fragment computes y for several t, and adds up the keys up to the position of the last of these t. With BATCH > 1,
// the rows of the sequences alternate: rows t * BATCH + b of y and v belong to sequence b.
#include "pattern.glsl"

#if GROUP > 1  // GROUP heads share one head of values
int value_column(int c4) { return c4 / (D4 * GROUP) * D4 + c4 % D4; }
#else
#define value_column(c4) (c4)
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 acc[Y_N];
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
  int keys = min(pos + min((Y_I + Y_NR - 1) * Y_H + p.y, Y_ROWS - 1) / BATCH + 1, V_H / BATCH), b = p.y % BATCH;
#define ROW_OF(i, j) ((i * Y_H + p.y) * N_HEAD + (j * Y_W + p.x) / D4)
#define PATTERN(i, j) X_OF(i, p.y * N_HEAD + (j * Y_W + p.x) / D4, s / 4)
#define COLUMN(j) value_column(min(j * Y_W + p.x, V_COLS / 4 * GROUP - 1))
#define VALUE(j, o) v_at((s + o) * BATCH + b, COLUMN(j))
  int s = 0;
  for (; s + 4 <= keys; s += 4) {
    vec4 v[4 * Y_NC];
#define LOAD(n, j) v[4 * n] = VALUE(j, 0); v[4 * n + 1] = VALUE(j, 1); v[4 * n + 2] = VALUE(j, 2); v[4 * n + 3] = VALUE(j, 3);
    Y_COLTILES(LOAD)
    vec4 w[Y_N];
#define WEIGHT(n, i, j) w[n] = PATTERN(i, j);
    Y_TILES(WEIGHT)
#define MIX(n, i, j) { \
      const int o = 4 * (j - Y_J); \
      acc[n] += w[n].x * v[o] + w[n].y * v[o + 1] + w[n].z * v[o + 2] + w[n].w * v[o + 3]; \
    }
    Y_TILES(MIX)
  }
  // Adds the last keys one by one, since the rows of v after the last key are undefined.
  for (int lane = 0; lane < keys - s; lane++) {
#define REST(n, i, j) acc[n] += PATTERN(i, j)[lane] * VALUE(j, lane);
    Y_TILES(REST)
  }
#define EDGE(n, i, j) acc[n] = j * Y_W + p.x < V_COLS / 4 * GROUP ? acc[n] * SCALE : vec4(0.0);
  Y_TILES(EDGE)
  STORE_Y(acc)
}
