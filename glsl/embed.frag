// y[t, :] = wte[:, id[t]] + wpe[pos + t / BATCH, :], where positions have an embedding; wte is transposed, [n_embd, vocab], as the product with it wants.
vec4 token(int id, int c4) {
  int c = 4 * c4, texel = id >> 2, lane = id & 3;
  return vec4(wte_at(c, texel)[lane], wte_at(c + 1, texel)[lane], wte_at(c + 2, texel)[lane],
              wte_at(c + 3, texel)[lane]);
}

#ifdef WPE_ROWS
#define POSITION(t, c4) + wpe_at(min(pos + (t) / BATCH, WPE_ROWS - 1), c4)
#else
#define POSITION(t, c4)
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define EMBED(n, i, j) { \
    int t = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < WTE_ROWS \
      ? token(int(ids_at(t, 0).x), c4) POSITION(t, c4) : vec4(0.0); \
  }
  Y_TILES(EMBED)
  STORE_Y(v)
}
