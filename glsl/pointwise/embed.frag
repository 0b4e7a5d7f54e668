// y[t, :] = tokens[:, id[t]] * SCALE + positions[pos + t / BATCH, :]. Without position embeddings, y is only the first
// term. With PLACES, the position of row t is PLACES[t]. `tokens` is stored transposed, as [n_embd, vocab], because a
// tied head (an output layer with the same weight) multiplies by `tokens` in this form.
vec4 token(int id, int c4) {
  int c = 4 * c4, texel = id >> 2, lane = id & 3;
  return vec4(tokens_at(c, texel)[lane], tokens_at(c + 1, texel)[lane], tokens_at(c + 2, texel)[lane],
              tokens_at(c + 3, texel)[lane]);
}

#ifdef PLACES_W
#define AT(t) int(PLACES(0, t, 0).x)
#else
#define AT(t) (pos + (t) / BATCH)
#endif
#ifdef POSITIONS_ROWS
#define POSITION(t, c4) + positions_at(min(AT(t), POSITIONS_ROWS - 1), c4)
#else
#define POSITION(t, c4)
#endif

#ifdef SCALE
#define TIMES * SCALE
#else
#define TIMES
#endif

#ifdef TOKENS_MINIMUM  // padding rows of `tokens` decode to the minimum, but padding columns of y must be zero
#define IN_COLUMNS(v, c4) mix(vec4(0.0), v, lessThan(4 * (c4) + ivec4(0, 1, 2, 3), ivec4(Y_COLS)))
#else
#define IN_COLUMNS(v, c4) (v)
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define EMBED(n, i, j) { \
    int t = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < TOKENS_ROWS \
      ? IN_COLUMNS(token(int(ids_at(t, 0).x), c4) TIMES POSITION(t, c4), c4) : vec4(0.0); \
  }
  Y_TILES(EMBED)
  STORE_Y(v)
}
