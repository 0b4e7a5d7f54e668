// The gradient of the token embeddings: d(tokens)[c, id] = the sum of dy[row, c] over the rows whose token is id, times
// SCALE (+ plus). `order` has an entry (row, id % 4) for each row of dy; the entries are sorted by token. A texel of y
// holds four tokens; `starts` holds the range [first, end) of the four tokens' entries in `order`. So a fragment reads
// all terms of its texel: no blending is needed, and the order of addition is fixed.
#ifdef SCALE
#define TIMES * SCALE
#else
#define TIMES
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define C4(j) (j * Y_W + p.x)
#define GATHER(n, i, j) { \
    int c = i * Y_H + p.y; \
    v[n] = vec4(0.0); \
    vec4 run = 4 * C4(j) < Y_COLS && c < DY_COLS ? starts_at(0, C4(j)) : vec4(0.0); \
    vec4 lane = vec4(equal(ivec4(c % 4), ivec4(0, 1, 2, 3))); \
    int end = int(run.y); \
    for (int k = int(run.x); k < end; k++) { \
      vec4 entry = order_at(k, 0); \
      v[n] += dot(dy_at(int(entry.x), c / 4), lane) TIMES * vec4(equal(vec4(entry.y), vec4(0.0, 1.0, 2.0, 3.0))); \
    } \
  }
  Y_TILES(GATHER)
#ifdef PLUS_W
#define ADD(n, i, j) if (i * Y_H + p.y < Y_ROWS && 4 * C4(j) < Y_COLS) v[n] += plus_at(i * Y_H + p.y, C4(j));
  Y_TILES(ADD)
#endif
  STORE_Y(v)
}
