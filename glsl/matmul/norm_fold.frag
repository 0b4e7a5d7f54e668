// Folds a norm's gain and bias into the linear layer after the norm: g = gain w, and b = bias w + SHIFT, where w is the
// weight of the layer and SHIFT is its bias.
void main() {
  vec4 g[G_N], b[G_N];
#ifdef SHIFT
#define OWN_BIAS(c4) shift_at(0, c4)
#else
#define OWN_BIAS(c4) vec4(0.0)
#endif
#define FOLD(n, i, j) { \
    int c4 = min(j * G_W + int(gl_FragCoord.x), W_W * W_TC - 1); \
    g[n] = vec4(0.0); \
    b[n] = OWN_BIAS(c4); \
    for (int k = 0; k < GAIN_COLS; k += 4) { \
      vec4 gain = gain_at(0, k / 4), bias = bias_at(0, k / 4), gain_w = vec4(0.0), bias_w = vec4(0.0); \
      for (int o = 0; o < min(4, GAIN_COLS - k); o++) { \
        vec4 w = w_at(k + o, c4); \
        gain_w += gain[o] * w; \
        bias_w += bias[o] * w; \
      } \
      g[n] += gain_w; \
      b[n] += bias_w; \
    } \
    if (4 * (j * G_W + int(gl_FragCoord.x)) >= G_COLS) g[n] = b[n] = vec4(0.0); \
  }
  G_TILES(FOLD)
  STORE_G(g)
  STORE_B(b)
}
